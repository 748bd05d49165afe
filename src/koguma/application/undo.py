"""Undo: the writes that take a past transaction back, as a new one.

Each object gets its spec, labels and annotations of before the transaction: one that it created is deleted,
one that it deleted is created again, with a new uid. Where somebody has changed an object since, that would
be lost: the undo is refused and names these writes, unless the user says that they may go. What differs in
its status alone counts as unchanged, since the control plane keeps that up to date by itself.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from koguma.access.user import SYSTEM
from koguma.application import history
from koguma.application.context import Context
from koguma.kube import namespaced_names
from koguma.model import labels
from koguma.model.errors import Conflict, Gone, Invalid, NotFound
from koguma.model.forms import Draft, Form
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation
from koguma.store.contract import Change, Op
from koguma.store.past_queries import ChangeFilter

_LATER_MAX: Final = 20  # named in an error
_MESH: Final = "Mesh"
_ZONE: Final = "Zone"


class UndoStep(NamedTuple):
    """What happens to one object: what is stored now, and what is to be there; None: nothing."""

    kind: Kind
    current: Resource | None
    wanted: Resource | None


class UndoPlan(NamedTuple):
    """The steps that take a transaction back, what is lost by them, and what the user has to know."""

    undone: Sequence[Change]
    steps: Sequence[UndoStep]
    later: Sequence[Change]
    warnings: Sequence[str]


async def transaction_at(context: Context, revision: int) -> list[Change]:
    """The changes of the transaction that wrote a revision; an error says why there is none."""
    change = await context.store.change_at(revision)
    if change is None:
        newest, oldest = context.store.state.revision, (await context.store.history_bounds()).oldest
        if not 0 < revision <= newest:
            raise NotFound(f"there is no revision {revision}; the newest is {newest}")
        raise Gone(
            f"revision {revision} is no longer kept; the history is complete from revision {oldest} on, and"
            " superseded Secrets are kept for an hour only"
        )
    return await history.transaction_of(context, change)


async def planned(context: Context, undone: Sequence[Change]) -> UndoPlan:
    """What takes a transaction back, by what is stored now."""
    first, last = undone[0].revision, undone[-1].revision
    _refuse_own(undone)
    last_by_key = {change.resource.key: change for change in undone}
    await context.store.check_kept(first - 1)
    before = await context.store.changed_between(first - 1, first - 1, last)
    changed = {
        key: change for key, change in last_by_key.items() if _has_changed_content(before.get(key), change)
    }
    went_along = _went_along(context, changed.values())
    own = {key: change for key, change in changed.items() if key not in went_along}
    _refuse_foreign(context, own.values())
    steps: list[UndoStep] = []
    later: list[Change] = []
    for key, change in own.items():
        current, wanted = context.state.get(key), history.resource_of(before.get(key))
        _refuse_unreadable(before.get(key))
        if history.is_same_content(current, wanted):
            continue
        steps.append(UndoStep(context.kinds[key.kind], current, wanted))
        if not history.is_same_content(current, history.resource_of(change)):
            later += await _later(context, change)
    for step in steps:
        if step.kind.name == _MESH and step.wanted is None:
            later += await _written_in_mesh(context, step, frozenset(last_by_key), last)
    ordered = sorted(later, key=lambda change: change.revision, reverse=True)
    warnings = [*_warnings(undone), *_along_warnings(went_along)]
    return UndoPlan(undone, sorted(steps, key=_order), ordered, warnings)


def check_later(plan: UndoPlan) -> None:
    """Raise Conflict where later writes would be lost; it names them."""
    if not plan.later:
        return
    named = [
        Violation(
            str(change.resource.key), f"{_described(change)}; the undo would take that back too", "later"
        )
        for change in plan.later[:_LATER_MAX]
    ]
    count = len(plan.later)
    raise Conflict(
        f"{count} later write{'s' if count > 1 else ''} to the same objects would be lost; undo"
        f" {'these' if count > 1 else 'that'} first, or say that they may be discarded",
        violations=named,
    )


def draft_of(step: UndoStep) -> Draft:
    """The document that writes an object as it was."""
    wanted = step.wanted
    assert wanted is not None
    has_namespace = bool(wanted.namespace)
    return Draft(
        kind=step.kind,
        form=Form.KUBERNETES if has_namespace else Form.PLAIN,
        name=wanted.name,
        mesh=wanted.mesh if step.kind.is_mesh_scoped else None,
        namespace=wanted.namespace if has_namespace else None,
        labels=wanted.labels,
        annotations={
            name: text for name, text in wanted.annotations.items() if name != labels.SECRET_READERS
        },
        spec=wanted.spec,
        revision=step.current.revision if step.current is not None else None,
    )


def _order(step: UndoStep) -> tuple[bool, bool, Key]:
    """Puts before deletions; a Mesh before what is in it, and deleted after it."""
    resource = step.wanted or step.current
    assert resource is not None
    is_mesh = step.kind.name == _MESH
    return step.wanted is None, is_mesh if step.wanted is None else not is_mesh, resource.key


def _refuse_own(undone: Sequence[Change]) -> None:
    if undone[0].author == SYSTEM:
        change = undone[-1]
        text = f"{_described(change)}: the control plane wrote that by itself, and would do so again"
        raise Invalid([Violation("revision", text, "own")], "This revision cannot be undone")


def _has_changed_content(before: Change | None, change: Change) -> bool:
    """Whether a transaction wrote more of an object than its status, or what is in it cannot be read."""
    is_unreadable = change.error or (before is not None and before.error)
    return bool(is_unreadable) or not history.is_same_content(
        history.resource_of(before), history.resource_of(change)
    )


def _went_along(context: Context, undone: Iterable[Change]) -> frozenset[Key]:
    """The objects that others own, and that went with their Mesh or Zone: their owners write them again."""
    deleted = [change.resource for change in undone if change.op is Op.DELETE]
    meshes = {resource.name for resource in deleted if resource.kind == _MESH}
    zones = {resource.name for resource in deleted if resource.kind == _ZONE}
    return frozenset(
        resource.key
        for resource in deleted
        if (resource.mesh in meshes or resource.zone in zones) and _owner(context, resource)
    )


def _along_warnings(went_along: Collection[Key]) -> Iterator[str]:
    count = len(went_along)
    if count:
        yield (
            f"not taken back: {count} object{'s' if count > 1 else ''} that went along, generated or by"
            " sync from another control plane; whoever wrote that writes it again"
        )


def _refuse_foreign(context: Context, undone: Iterable[Change]) -> None:
    violations = list(_foreign(context, undone))
    if violations:
        raise Invalid(violations, "This revision cannot be undone")


def _foreign(context: Context, undone: Iterable[Change]) -> Iterator[Violation]:
    for change in undone:
        resource = change.resource
        if context.kinds.by_name.get(resource.kind) is None:
            text = "it has no plain form, which is the one that is undone here; write it with kubectl"
        else:
            text = _owner(context, resource)
        if text:
            yield Violation(str(resource.key), text, "foreign")


def _owner(context: Context, resource: Resource) -> str:
    """Who else owns an object and where to undo what was done to it; empty for one of the users here."""
    if resource.labels.get(labels.MANAGED_BY):
        return f"it is generated ({resource.labels[labels.MANAGED_BY]}); change what it is made from"
    if namespaced_names.is_foreign(resource, context.control_plane):
        return "it came by sync from another control plane; undo it there"
    return ""


def _refuse_unreadable(change: Change | None) -> None:
    if change is not None and change.error:
        raise Gone(f"{change.resource.key} cannot be taken back: {change.error}")


async def _later(context: Context, change: Change) -> list[Change]:
    """The changes of an object after the one that is undone, without those of its status alone."""
    resource = change.resource
    chosen = ChangeFilter(kind=resource.kind, mesh=resource.mesh, core_name=resource.core_name)
    newer = await context.store.changes(chosen, change.revision, context.state.revision + 1, 1_000)
    lost: list[Change] = []
    content = history.resource_of(change)
    for each in reversed(newer):
        if each.resource.key != resource.key:
            continue
        if not history.is_same_content(content, history.resource_of(each)):
            lost.append(each)
        content = history.resource_of(each)
    return lost


async def _written_in_mesh(
    context: Context, step: UndoStep, known: frozenset[Key], last: int
) -> list[Change]:
    """The newest changes of the objects that a mesh has got since it was created, which go with it."""
    assert step.current is not None
    later: list[Change] = []
    for key in sorted(context.state.stored_keys()):
        entry = context.state.entry(key)
        if key.mesh == step.current.name and key not in known and entry is not None and entry.revision > last:
            change = await context.store.change_at(entry.revision)
            if change is not None and change.author != SYSTEM:
                later.append(change)
    return later


def _warnings(undone: Sequence[Change]) -> Iterator[str]:
    n_missing = undone[-1].revision - undone[0].revision + 1 - len(undone)
    if n_missing:
        yield (
            f"{n_missing} change{'s' if n_missing > 1 else ''} of this transaction are no longer kept"
            " (superseded Secrets are kept for an hour only) and stay as they are"
        )


def _described(change: Change) -> str:
    return f"revision {change.revision} by {change.author} at {change.time} ({change.op.value})"
