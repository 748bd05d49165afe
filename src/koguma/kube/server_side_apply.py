"""Apply: what a declaration of some fields of a document does to the document.

An applier sends all the fields it has an opinion about. They are merged over what is stored; what the same
applier sent before and leaves out now goes, unless somebody else owns it; a field that somebody else owns and
that would change is a conflict, unless the applier insists.
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


def applied(live: Json | None, config: Json, writer: FieldManager, shape: MergeSchema, force: bool) -> Json:  # noqa: FBT001 - the query's own word
    """The document after an apply, with its managedFields; `live` itself where nothing changes.

    What the server keeps about the object comes from `live`; whoever calls judges preconditions in `config`.
    """
    _check(config, writer, shape)
    old, wanted = field_managers.tracked(live or {}, writer.subresource), _wanted(config, writer)
    mine = writer.entry(APPLY, typed.field_set_of(wanted, shape))
    owners = field_managers.in_version(_owners(live, old, writer, shape), live, writer, shape)
    others = [entry for entry in owners if entry.identity != mine.identity]
    before = next((entry for entry in owners if entry.identity == mine.identity), None)
    new = typed.merged(old, wanted, shape)
    if before is not None:
        kept = reduce(or_, (entry.fields for entry in others), mine.fields)
        new = typed.pruned(new, before.fields, kept, shape)
    if live is not None and _is_settled(before, mine) and typed.same(old, new):
        return live
    changes = typed.comparison(old, new, shape)
    if not force:
        _refuse_conflicts(others, changes)
    base = {name: value for name, value in config.items() if name != STATUS} if live is None else live
    return field_managers.document(
        base, new, [mine, *field_managers.without(others, changes)], writer.subresource
    )


def _check(config: Json, writer: FieldManager, shape: MergeSchema) -> None:
    check_manager(writer.manager, is_required=True)
    if field_managers.listed(config) is not None:
        raise BadRequest("metadata.managedFields must be nil")
    found = list(typed.violations(config, shape))
    if found:
        raise Invalid(found)


def _wanted(config: Json, writer: FieldManager) -> Json:
    """What the applier has an opinion about; metadata that only says a name is none."""
    part = field_managers.tracked(config, writer.subresource)
    return part if part.get("metadata", True) else {n: v for n, v in part.items() if n != "metadata"}


def _owners(
    live: Json | None, old: Json, writer: FieldManager, shape: MergeSchema
) -> Sequence[ManagedFieldsEntry]:
    """Who owns fields of what is stored; if nobody is known, somebody of whom only that is known."""
    known = managed_fields.read(field_managers.listed(live) or ())
    if known or live is None:
        return known
    found = typed.comparison(field_managers.tracked({}, writer.subresource), old, shape).added
    return [msgspec.structs.replace(writer.entry(UPDATE, found), manager=BEFORE_APPLY)] if found else []


def _is_settled(before: ManagedFieldsEntry | None, mine: ManagedFieldsEntry) -> bool:
    """Whether the applier owned just this already; owning nothing leaves no trace."""
    if before is None:
        return not mine.fields
    return before.fields == mine.fields and before.api_version == mine.api_version


def _refuse_conflicts(others: Iterable[ManagedFieldsEntry], changes: Comparison) -> None:
    found = [
        FieldConflict(field_set.path_text(path), entry.manager, f"conflict with {entry}")
        for entry in sorted(others, key=str)
        for path in (entry.fields & changes.written).leaves.paths()
    ]
    if found:
        raise FieldConflicts(found)
