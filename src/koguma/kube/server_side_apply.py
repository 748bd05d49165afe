"""Server-side apply: what an apply patch does to a document.

An applier sends all the fields that it wants to own. They are merged into what is stored. What the same
applier sent before and leaves out now is removed, unless another manager owns it. A field that another
manager owns and that would change is a conflict, unless the request says `force`.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Final

import msgspec

from koguma.kube import field_managers, field_set, managed_fields, typed
from koguma.kube.field_managers import STATUS, FieldManager, check_manager, updated
from koguma.kube.managed_fields import APPLY, UPDATE, ManagedFieldsEntry
from koguma.kube.merge_schema import MergeSchema
from koguma.kube.typed import Comparison
from koguma.model.errors import BadRequest, Conflict, Invalid
from koguma.model.schema import Json
from koguma.model.violation import Violation

__all__ = ["FieldConflict", "FieldConflicts", "FieldManager", "applied", "check_manager", "updated"]

BEFORE_APPLY: Final = "before-first-apply"
CONFLICT_REASON: Final = "FieldManagerConflict"


class FieldConflict(msgspec.Struct, frozen=True):
    """One field that somebody else owns; `message` names the owner, as Kubernetes does."""

    field: str
    manager: str
    message: str


class FieldConflicts(Conflict):
    """An apply would change what others own. The text is kube-apiserver's, which kubectl shows."""

    def __init__(self, conflicts: Sequence[FieldConflict]) -> None:
        causes = [Violation(each.field, each.message, CONFLICT_REASON) for each in conflicts]
        super().__init__(_text(conflicts), violations=causes)
        self.conflicts = tuple(conflicts)


def _text(conflicts: Sequence[FieldConflict]) -> str:
    if len(conflicts) == 1:
        return f"Apply failed with 1 conflict: {conflicts[0].message}: {conflicts[0].field}"
    lines = []
    for message, group in groupby(conflicts, lambda each: each.message):
        lines.append(f"{message.replace('conflict', 'conflicts', 1)}:")
        lines += [f"- {each.field}" for each in group]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def applied(live: Json | None, config: Json, manager: FieldManager, schema: MergeSchema, force: bool) -> Json:  # noqa: FBT001 - the query's own word
    """The document after an apply, with its managedFields; `live` itself where nothing changes.

    Metadata that the server sets comes from `live`; the caller checks preconditions in `config`.
    """
    _check(config, manager, schema)
    old, applied_part = (
        field_managers.tracked(live or {}, manager.subresource),
        _applied_part(config, manager),
    )
    own_entry = manager.entry(APPLY, typed.field_set_of(applied_part, schema))
    entries = field_managers.in_version(_entries(live, old, manager, schema), live, manager, schema)
    other_entries = [entry for entry in entries if entry.identity != own_entry.identity]
    previous_entry = next((entry for entry in entries if entry.identity == own_entry.identity), None)
    new = typed.merged(old, applied_part, schema)
    if previous_entry is not None:
        kept = reduce(or_, (entry.fields for entry in other_entries), own_entry.fields)
        new = typed.pruned(new, previous_entry.fields, kept, schema)
    if live is not None and _is_unchanged(previous_entry, own_entry) and typed.same(old, new):
        return live
    comparison = typed.comparison(old, new, schema)
    if not force:
        _refuse_conflicts(other_entries, comparison)
    base = {name: value for name, value in config.items() if name != STATUS} if live is None else live
    return field_managers.document(
        base, new, [own_entry, *field_managers.without(other_entries, comparison)], manager.subresource
    )


def _check(config: Json, manager: FieldManager, schema: MergeSchema) -> None:
    check_manager(manager.name, is_required=True)
    if field_managers.listed(config) is not None:
        raise BadRequest("metadata.managedFields must be nil")
    violations = list(typed.violations(config, schema))
    if violations:
        raise Invalid(violations)


def _applied_part(config: Json, manager: FieldManager) -> Json:
    """The fields that the applier sends; metadata with nothing but a name are none."""
    part = field_managers.tracked(config, manager.subresource)
    return part if part.get("metadata", True) else {n: v for n, v in part.items() if n != "metadata"}


def _entries(
    live: Json | None, old: Json, manager: FieldManager, schema: MergeSchema
) -> Sequence[ManagedFieldsEntry]:
    """The entries of what is stored; fields that nobody is known to own belong to `before-first-apply`."""
    entries = managed_fields.read(field_managers.listed(live) or ())
    if entries or live is None:
        return entries
    field_set = typed.comparison(field_managers.tracked({}, manager.subresource), old, schema).added
    return (
        [msgspec.structs.replace(manager.entry(UPDATE, field_set), manager=BEFORE_APPLY)] if field_set else []
    )


def _is_unchanged(previous: ManagedFieldsEntry | None, current: ManagedFieldsEntry) -> bool:
    """Whether the applier owned exactly these fields already; an applier without fields has no entry."""
    if previous is None:
        return not current.fields
    return previous.fields == current.fields and previous.api_version == current.api_version


def _refuse_conflicts(other_entries: Iterable[ManagedFieldsEntry], comparison: Comparison) -> None:
    conflicts = [
        FieldConflict(field_set.path_text(path), entry.manager, f"conflict with {entry}")
        for entry in sorted(other_entries, key=str)
        for path in (entry.fields & comparison.written).leaves.paths()
    ]
    if conflicts:
        raise FieldConflicts(conflicts)
