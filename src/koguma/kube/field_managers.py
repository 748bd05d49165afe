"""Field managers: who owns which field of a document after a write (metadata.managedFields).

A write takes the fields that it changes from all other managers; what it removes has no owner any more.
Documents are whole: all of metadata, `spec` and `status`. Names, versions and times are set by the server and
have no owner.
`status` has owners only among the writers of the subresource `status`, who own nothing else.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from koguma.kube import managed_fields, typed
from koguma.kube.field_set import EMPTY, FieldSet
from koguma.kube.managed_fields import UPDATE, ManagedFieldsEntry
from koguma.kube.merge_schema import MergeSchema
from koguma.kube.typed import NO_DIFFERENCE, Comparison
from koguma.model.errors import Invalid
from koguma.model.schema import Json
from koguma.model.violation import Violation

STATUS: Final = "status"
_META: Final = "metadata"
_LIST: Final = "managedFields"
_UNTRACKED: Final = frozenset({"apiVersion", "kind", "kri", STATUS})
_UNTRACKED_META: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generateName",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


class FieldManager(msgspec.Struct, frozen=True):
    """Who writes, in which version, when (RFC 3339), and through which subresource."""

    name: str
    api_version: str
    now: str
    subresource: str = ""

    def entry(self, operation: str, owned: FieldSet) -> ManagedFieldsEntry:
        """Its entry in managedFields, written now."""
        return ManagedFieldsEntry(self.name, operation, self.api_version, self.now, owned, self.subresource)


def check_manager(name: str, *, is_required: bool = False) -> None:
    """Refuse a `fieldManager` that cannot be one; an apply needs one."""
    violations = list(managed_fields.manager_violations(name, "fieldManager"))
    if is_required and not name:
        violations.append(
            Violation("fieldManager", "Required value: is required for apply patch", "required")
        )
    if violations:
        raise Invalid(violations)


def updated(live: Json | None, new: Json, manager: FieldManager, schema: MergeSchema) -> list[Json]:
    """The managedFields of `new` after any write that is no apply; `live` is None where it creates.

    A document that is not tracked stays so, and `[{}]` or `[]` in place of the list ends the tracking.
    Another list that the writer sends is stored, if it is valid. Through a subresource none can be sent.
    """
    listed_before, old = _listed_before(live, new, manager), tracked(live or {}, manager.subresource)
    if not listed_before and not _is_blank(old):
        return []
    comparison = typed.comparison(old, tracked(new, manager.subresource), schema)
    if comparison is NO_DIFFERENCE:
        return listed_before
    entries = in_version(managed_fields.read(listed_before), live, manager, schema)
    return managed_fields.encoded(_with_manager(entries, comparison, manager))


def _is_blank(value: Json) -> bool:
    """Whether there is nothing to own: then a missing managedFields does not mean that tracking is off."""
    if isinstance(value, dict):
        return all(_is_blank(below) for below in value.values())
    return isinstance(value, list) and not value


def _listed_before(live: Json | None, new: Json, manager: FieldManager) -> list[Json]:
    """The list to which a write adds: the stored one, or what the writer sends instead.

    An empty list changes nothing, so that clients that do not know managedFields do not reset them; `[{}]`
    resets them, as in Kubernetes.
    """
    sent, stored = listed(new), listed(live) or []
    if live is None or manager.subresource or sent in (None, [], stored):
        return list(stored)
    return [] if sent == [{}] else managed_fields.encoded(managed_fields.checked(sent))


def _with_manager(
    entries: Sequence[ManagedFieldsEntry], comparison: Comparison, manager: FieldManager
) -> list[ManagedFieldsEntry]:
    others, own = without(entries, comparison), manager.entry(UPDATE, comparison.written)
    if not own.fields:
        return others
    previous = [entry for entry in others if entry.identity == own.identity]
    for entry in previous:
        own = own.holding(entry.fields | own.fields)
    return [*(entry for entry in others if entry not in previous), own]


def listed(document: Json | None) -> list[Json] | None:
    """The managedFields of a document, if it has any."""
    entries: list[Json] | None = ((document or {}).get(_META) or {}).get(_LIST)
    return entries


def without(entries: Iterable[ManagedFieldsEntry], comparison: Comparison) -> list[ManagedFieldsEntry]:
    """The entries without the fields that a write has set or removed."""
    written = comparison.written
    return [entry.holding(entry.fields - written - comparison.removed) for entry in entries]


def in_version(
    entries: Sequence[ManagedFieldsEntry], live: Json | None, manager: FieldManager, schema: MergeSchema
) -> Sequence[ManagedFieldsEntry]:
    """The entries as they can be read in the version of the write.

    Fields of another version mean the same where the document has them in this version too; ownership of the
    others cannot be carried through a write in this version, and is dropped. Lists that were owned as a whole
    are owned item by item where the schema tells their items apart now.
    """
    if live is not None:
        with_items = typed.with_items([entry.fields for entry in entries], live, schema)
        entries = [entry.holding(fields) for entry, fields in zip(entries, with_items, strict=True)]
    if all(entry.api_version == manager.api_version for entry in entries):
        return entries
    present = typed.field_set_of(live, schema, containers=True) if live else EMPTY
    return [
        entry
        if entry.api_version == manager.api_version or (shared := entry.fields & present) == entry.fields
        else entry.holding(shared)
        for entry in entries
    ]


def tracked(document: Json, subresource: str = "") -> dict[str, Json]:
    """The part of a document whose fields have owners among the writers of this subresource."""
    if subresource == STATUS:
        return {STATUS: document[STATUS]} if document.get(STATUS) is not None else {}
    part = {name: value for name, value in document.items() if name not in _UNTRACKED}
    meta = document.get(_META) or {}
    part[_META] = {name: value for name, value in meta.items() if name not in _UNTRACKED_META}
    return part


def document(base: Json, part: Json, entries: Iterable[ManagedFieldsEntry], subresource: str = "") -> Json:
    """A document of the untracked fields of `base`, the tracked part, and the entries as managedFields."""
    if subresource == STATUS:
        whole = {name: value for name, value in base.items() if name != STATUS} | part
        meta = dict(base.get(_META) or {})
    else:
        whole = {name: value for name, value in base.items() if name in _UNTRACKED} | part
        kept = {name: value for name, value in (base.get(_META) or {}).items() if name in _UNTRACKED_META}
        meta = kept | part.get(_META, {})
    meta[_LIST] = managed_fields.encoded(entries)
    if not meta[_LIST]:
        del meta[_LIST]
    whole[_META] = meta
    return {name: whole[name] for name in dict.fromkeys((*base, *whole)) if name in whole}
