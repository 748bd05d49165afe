"""managedFields: its entries, each a field manager and the fields that it has set.

There is one entry for each manager, operation and subresource, and for updates also for each version. They
are listed as Kubernetes lists them: Apply before Update, then by time, manager, version and subresource. Only
the ten newest updaters keep their names; older ones become `ancient-changes`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.kube import field_set
from koguma.kube.field_set import FieldSet
from koguma.model import violation
from koguma.model.errors import Invalid
from koguma.model.schema import Json
from koguma.model.violation import Violation

APPLY: Final = "Apply"
UPDATE: Final = "Update"
ANCIENT: Final = "ancient-changes"
N_UPDATERS_MAX: Final = 10
N_MANAGER_MAX: Final = 128  # characters
_AT: Final = "metadata.managedFields"
_FIELDS_TYPE: Final = "FieldsV1"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_STRINGS: Final = ("manager", "apiVersion", "subresource")

Identity = tuple[str, str, str, str]


class ManagedFieldsEntry(msgspec.Struct, frozen=True):
    """What one manager has set, by one operation. `raw` is the JSON that it was read from, if unchanged."""

    manager: str
    operation: str
    api_version: str
    time: str
    fields: FieldSet
    subresource: str = ""
    raw: Json = None

    @property
    def identity(self) -> Identity:
        """What makes an entry unique; an applier sends all its fields each time, whatever its version."""
        version = "" if self.operation == APPLY else self.api_version
        return self.manager, self.operation, version, self.subresource

    def holding(self, left: FieldSet) -> "ManagedFieldsEntry":
        """The same entry with other fields."""
        return self if left is self.fields else msgspec.structs.replace(self, fields=left, raw=None)

    def json(self) -> Json:
        """As in managedFields."""
        if self.raw is not None:
            return self.raw
        entry: dict[str, Json] = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": _FIELDS_TYPE,
            "fieldsV1": self.fields.json(),
            "subresource": self.subresource,
        }
        return {name: value for name, value in entry.items() if value != ""}

    def __str__(self) -> str:
        """As kube-apiserver writes it in messages: `"kubectl-edit" using v1 at 2026-01-01T00:00:00Z`."""
        who = msgspec.json.encode(self.manager).decode()
        if self.subresource:
            who += f' with subresource "{self.subresource}"'
        if self.operation == UPDATE:
            who += f" using {self.api_version}" + (f" at {self.time}" if self.time else "")
        return who


def read(listed: Iterable[Json]) -> tuple[ManagedFieldsEntry, ...]:
    """The entries of a list that was checked before."""
    return tuple(
        ManagedFieldsEntry(
            manager=entry.get("manager") or "",
            operation=entry["operation"],
            api_version=entry.get("apiVersion") or "",
            time=entry.get("time") or "",
            fields=field_set.from_fields_v1(entry.get("fieldsV1") or {}),
            subresource=entry.get("subresource") or "",
            raw=entry,
        )
        for entry in listed
    )


def checked(listed: Json) -> tuple[ManagedFieldsEntry, ...]:
    """The entries of a list that a user wrote, one for each identity; Invalid where the list is wrong."""
    wrong = list(violations(listed))
    if wrong:
        raise Invalid(wrong)
    by_identity: dict[Identity, ManagedFieldsEntry] = {}
    for entry in read(listed):
        before = by_identity.get(entry.identity)
        fields = entry.fields if before is None else before.fields | entry.fields
        by_identity[entry.identity] = msgspec.structs.replace(entry, fields=fields, raw=None)
    return tuple(entry for entry in by_identity.values() if entry.fields)


def violations(listed: Json) -> Iterator[Violation]:
    """What is wrong with a list that a user wrote."""
    if not isinstance(listed, list):
        yield Violation(_AT, "must be a list", "type")
        return
    for index, entry in enumerate(listed):
        at = violation.item(_AT, index)
        if isinstance(entry, dict):
            yield from violation.under(at, _entry_violations(entry))
        else:
            yield Violation(at, "must be an object", "type")


def _entry_violations(entry: Json) -> Iterator[Violation]:
    wrong = [name for name in _STRINGS if not isinstance(entry.get(name) or "", str)]
    yield from (Violation(name, "must be a text", "type") for name in wrong)
    if "manager" not in wrong:
        yield from manager_violations(entry.get("manager") or "", "manager")
    if entry.get("operation") not in (APPLY, UPDATE):
        yield Violation("operation", "Invalid value: must be `Apply` or `Update`", "enum")
    if entry.get("fieldsType") != _FIELDS_TYPE:
        yield Violation("fieldsType", f"Invalid value: must be `{_FIELDS_TYPE}`", "enum")
    time = entry.get("time")
    if time is not None and not (isinstance(time, str) and _TIME.fullmatch(time)):
        yield Violation("time", "Invalid value: must be a time as RFC 3339 writes it", "format")
    try:
        field_set.from_fields_v1({} if entry.get("fieldsV1") is None else entry["fieldsV1"])
    except ValueError as error:
        yield Violation("fieldsV1", f"Invalid value: {error}", "format")


def manager_violations(name: str, path: str) -> Iterator[Violation]:
    """What is wrong with the name of a manager."""
    if len(name) > N_MANAGER_MAX:
        yield Violation(path, f"Too long: may not be more than {N_MANAGER_MAX} bytes", "length")
    if not name.isprintable():
        yield Violation(path, "Invalid value: should only contain printable characters", "format")


def encoded(entries: Iterable[ManagedFieldsEntry]) -> list[Json]:
    """The list for a document: no empty entries, not too many of them, in order."""
    kept = sorted((entry for entry in entries if entry.fields), key=_sort_key)
    return [entry.json() for entry in _capped(kept)]


def _sort_key(entry: ManagedFieldsEntry) -> tuple[str, str, str, str, str]:
    return entry.operation, entry.time, entry.manager, entry.api_version, entry.subresource


def _capped(entries: Sequence[ManagedFieldsEntry]) -> Sequence[ManagedFieldsEntry]:
    """At most ten updaters: the oldest are merged into one for each version and subresource."""
    updaters = [entry for entry in entries if entry.operation == UPDATE]
    n_over = len(updaters) - N_UPDATERS_MAX
    if n_over <= 0:
        return entries
    ancient = {entry.identity: entry for entry in updaters if entry.manager == ANCIENT}
    named = [entry for entry in updaters if entry.manager != ANCIENT]
    while n_over > 0 and named:
        oldest = msgspec.structs.replace(named.pop(0), manager=ANCIENT, raw=None)
        known = ancient.get(oldest.identity)
        if known is not None:
            both, time = known.fields | oldest.fields, max(known.time, oldest.time)
            oldest = msgspec.structs.replace(oldest, fields=both, time=time)
            n_over -= 1
        ancient[oldest.identity] = oldest
    appliers = [entry for entry in entries if entry.operation == APPLY]
    return sorted((*appliers, *ancient.values(), *named), key=_sort_key)
