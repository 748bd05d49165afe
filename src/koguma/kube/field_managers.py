"""Managed: who owns which field of a document after a write.

A write takes the fields that it changes from all others; what it removes has no owner any more. Documents are
whole: all of metadata, `spec` and `status`. Names, versions and times are the server's and have no owner.
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
    """Who writes, in which version, when (RFC 3339), and through which part of the object."""

    manager: str
    api_version: str
    now: str
    subresource: str = ""

    def entry(self, operation: str, owned: FieldSet) -> ManagedFieldsEntry:
        """The writer's entry, written now."""
        return ManagedFieldsEntry(
            self.manager, operation, self.api_version, self.now, owned, self.subresource
        )


def check_manager(name: str, *, is_required: bool = False) -> None:
    """Refuse a `fieldManager` that cannot be one; an apply needs one."""
    found = list(managed_fields.manager_violations(name, "fieldManager"))
    if is_required and not name:
        found.append(Violation("fieldManager", "Required value: is required for apply patch", "required"))
    if found:
        raise Invalid(found)


def updated(live: Json | None, new: Json, writer: FieldManager, shape: MergeSchema) -> list[Json]:
    """The managedFields of `new` after any write that is no apply; `live` is None where it creates.

    A document that is not tracked stays so, and `[{}]` or `[]` in place of the list ends the tracking.
    Another list is taken as it is said, if it is one. A subresource cannot say one.
    """
    before, old = _before(live, new, writer), tracked(live or {}, writer.subresource)
    if not before and not _is_blank(old):
        return []
    changes = typed.comparison(old, tracked(new, writer.subresource), shape)
    if changes is NO_DIFFERENCE:
        return before
    owners = in_version(managed_fields.read(before), live, writer, shape)
    return managed_fields.encoded(_with_writer(owners, changes, writer))


def _is_blank(value: Json) -> bool:
    """Whether there is nothing to own, so that a list without owners says nothing about tracking."""
    if isinstance(value, dict):
        return all(_is_blank(below) for below in value.values())
    return isinstance(value, list) and not value


def _before(live: Json | None, new: Json, writer: FieldManager) -> list[Json]:
    """The list to which a write adds: the stored one, or what the writer says instead.

    An empty list says nothing, so that nobody who has never heard of owners takes them away; `[{}]` does.
    """
    said, stored = listed(new), listed(live) or []
    if live is None or writer.subresource or said in (None, [], stored):
        return list(stored)
    return [] if said == [{}] else managed_fields.encoded(managed_fields.checked(said))


def _with_writer(
    owners: Sequence[ManagedFieldsEntry], changes: Comparison, writer: FieldManager
) -> list[ManagedFieldsEntry]:
    left, mine = without(owners, changes), writer.entry(UPDATE, changes.written)
    if not mine.fields:
        return left
    before = [entry for entry in left if entry.identity == mine.identity]
    for entry in before:
        mine = mine.holding(entry.fields | mine.fields)
    return [*(entry for entry in left if entry not in before), mine]


def listed(document: Json | None) -> list[Json] | None:
    """The managedFields of a document, if it says any."""
    found: list[Json] | None = ((document or {}).get(_META) or {}).get(_LIST)
    return found


def without(owners: Iterable[ManagedFieldsEntry], changes: Comparison) -> list[ManagedFieldsEntry]:
    """The entries less what a write has set and removed."""
    taken = changes.written
    return [entry.holding(entry.fields - taken - changes.removed) for entry in owners]


def in_version(
    owners: Sequence[ManagedFieldsEntry], live: Json | None, writer: FieldManager, shape: MergeSchema
) -> Sequence[ManagedFieldsEntry]:
    """The entries as they can be read in the writer's version.

    Places of another version mean the same where the document has them; the others cannot be followed through
    a write in this version, and are given up.
    """
    if all(entry.api_version == writer.api_version for entry in owners):
        return owners
    present = typed.field_set_of(live, shape, containers=True) if live else EMPTY
    return [
        entry
        if entry.api_version == writer.api_version or (both := entry.fields & present) == entry.fields
        else entry.holding(both)
        for entry in owners
    ]


def tracked(document: Json, subresource: str = "") -> dict[str, Json]:
    """The part of a document whose fields have owners among the writers of this subresource."""
    if subresource == STATUS:
        return {STATUS: document[STATUS]} if document.get(STATUS) is not None else {}
    part = {name: value for name, value in document.items() if name not in _UNTRACKED}
    meta = document.get(_META) or {}
    part[_META] = {name: value for name, value in meta.items() if name not in _UNTRACKED_META}
    return part


def document(base: Json, part: Json, owners: Iterable[ManagedFieldsEntry], subresource: str = "") -> Json:
    """A document of what has no owner in `base`, the part that has, and the list of who owns what."""
    if subresource == STATUS:
        found = {name: value for name, value in base.items() if name != STATUS} | part
        meta = dict(base.get(_META) or {})
    else:
        found = {name: value for name, value in base.items() if name in _UNTRACKED} | part
        kept = {name: value for name, value in (base.get(_META) or {}).items() if name in _UNTRACKED_META}
        meta = kept | part.get(_META, {})
    meta[_LIST] = managed_fields.encoded(owners)
    if not meta[_LIST]:
        del meta[_LIST]
    found[_META] = meta
    return {name: found[name] for name in dict.fromkeys((*base, *found)) if name in found}
