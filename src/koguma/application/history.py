"""History: the changes of stored objects that a user may see, and what differs between two revisions.

Who may read an object in the plain form may see its changes: by the rules of today, as the object was then,
and as it is now where it is still there. Kubernetes' own objects and custom ones need the right of their
endpoint; what control planes keep for each other nobody sees.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from koguma.access.authorizer import Attempt, namespace_of
from koguma.access.user import SYSTEM, User
from koguma.application.context import Context
from koguma.kube import namespaced_names
from koguma.model.errors import BadRequest
from koguma.model.internal_kinds import INTERNAL_KINDS
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.past_queries import ChangeFilter

_NUL: Final = "\0"
SCANNED_AT_ONCE: Final = 2_000  # revisions
SCANNED_MAX: Final = 40_000  # for one answer; the next one goes on there
COMPARED_MAX: Final = 2_000  # objects


class HistoryPage(NamedTuple):
    """Changes, newest first; `next_before` says where the next page begins, 0 where there is none."""

    changes: Sequence[Change]
    next_before: int


class ObjectDifference(NamedTuple):
    """An object before and after; None where it was not there."""

    key: Key
    before: Resource | None
    after: Resource | None


def shown(transaction: Sequence[Change]) -> list[Change]:
    """A transaction without what control planes keep for each other, unless it wrote nothing else.

    A zone notes at which revision Global was, beside the objects that it stores of it.
    """
    return [change for change in transaction if change.resource.kind not in INTERNAL_KINDS] or list(
        transaction
    )


def may_read(context: Context, user: User, resource: Resource) -> bool:
    """Whether a user may read an object as it was, and as it is now where it is still there."""
    current = context.store.state.get(resource.key)
    return _may_get(context, user, resource) and (current is None or _may_get(context, user, current))


def _may_get(context: Context, user: User, resource: Resource) -> bool:
    if resource.kind in INTERNAL_KINDS:
        return False
    kind = context.kinds.by_name.get(resource.kind)
    if kind is not None:
        namespace = namespace_of(kind, context.control_plane, resource.mesh, resource)
        return context.access.allows_on(
            user, "get", kind.plural, resource.core_name, resource.mesh, namespace
        )
    if context.catalog.kind(resource.kind) is None:  # a custom resource that nobody serves any more
        return False
    endpoint = context.catalog.stored(resource.kind)
    shown = namespaced_names.namespaced_name(resource, endpoint.kind, context.control_plane)
    attempt = Attempt("get", endpoint.plural, shown.name, group=endpoint.group, namespace=shown.namespace)
    return context.access.allows(user, attempt)


def author_named(text: str) -> str:
    """The author that a word means: `system` is the control plane itself."""
    return SYSTEM if text == "system" else text


async def page(
    context: Context, user: User, chosen: ChangeFilter, before: int, since: datetime | None, size: int
) -> HistoryPage:
    """The changes before a revision that a user may see, up to a number of them.

    A part of the log is read at a time, so that a search for what is rare keeps nobody else waiting.
    """
    if _NUL in "".join(_words(chosen)):
        return HistoryPage((), 0)  # nothing has such a name, and PostgreSQL takes no such text
    after = 0
    if since is not None:
        after = await context.store.revision_at(since)
    before = min(before, context.store.state.revision + 1)
    is_of_one = bool(chosen.core_name)
    seen: list[Change] = []
    scanned = 0
    while before > after + 1 and scanned < SCANNED_MAX:
        low = after if is_of_one else max(after, before - 1 - SCANNED_AT_ONCE)
        limit = size + 1 if is_of_one else SCANNED_AT_ONCE
        changes = await context.store.changes(chosen, low, before, limit)
        for change in changes:
            if len(seen) == size:
                return HistoryPage(seen, seen[-1].revision)
            if may_read(context, user, change.resource):
                seen.append(change)
        is_complete = len(changes) < limit
        before = low + 1 if is_complete else changes[-1].revision
        scanned += SCANNED_AT_ONCE
    return HistoryPage(seen, before if before > after + 1 else 0)


def _words(chosen: ChangeFilter) -> Iterator[str]:
    """The texts of a filter."""
    yield from (word for word in msgspec.structs.astuple(chosen) if isinstance(word, str))


async def transaction_of(context: Context, change: Change) -> list[Change]:
    """All kept changes of the transaction of a change, oldest first; they stand side by side in the log."""
    chosen = ChangeFilter(transaction=change.transaction)
    changes = [change]
    for step in (-1, 1):
        edge = change.revision
        while True:
            low, high = (edge - SCANNED_AT_ONCE - 1, edge) if step < 0 else (edge, edge + SCANNED_AT_ONCE + 1)
            found = await context.store.changes(chosen, max(0, low), high, SCANNED_AT_ONCE)
            changes += found
            if not found:
                break
            edge = found[-1].revision if step < 0 else found[0].revision
    return sorted(changes, key=lambda each: each.revision)


async def differences(context: Context, user: User, low: int, high: int) -> list[ObjectDifference]:
    """What differs between two revisions in the objects that a user may read."""
    await context.store.check_kept(low)
    limit = COMPARED_MAX + 1
    before = await context.store.changed_between(low, low, high, limit)
    if len(before) > COMPARED_MAX:
        raise BadRequest(
            f"more than {COMPARED_MAX} objects changed between revisions {low} and {high}; name revisions"
            " that are closer to each other"
        )
    after = await context.store.changed_between(high, low, high, limit)
    pairs = (
        ObjectDifference(key, resource_of(change), resource_of(after.get(key)))
        for key, change in before.items()
    )
    return [
        pair
        for pair in pairs
        if not is_same_content(pair.before, pair.after)
        and all(may_read(context, user, each) for each in (pair.before, pair.after) if each is not None)
    ]


def resource_of(change: Change | None) -> Resource | None:
    """The object that a change left behind; None where it deleted it or cannot be read."""
    return None if change is None or change.op is Op.DELETE or change.error else change.resource


def is_same_content(one: Resource | None, other: Resource | None) -> bool:
    """Whether two versions of an object differ in nothing but revision, times, status and managed fields."""
    if one is None or other is None:
        return one is other
    return _content(one) == _content(other)


def _content(resource: Resource) -> bytes:
    parts = (resource.core_name, resource.labels, resource.annotations, resource.spec)
    return msgspec.json.encode(parts, order="sorted")
