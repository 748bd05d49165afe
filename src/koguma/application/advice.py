"""Advice: what a writer hears beside success: what admission warns about, and what is odd in the mesh then.

A dry run hears the same, in the same order: it asks an engine that holds the objects as they would be.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from koguma.application import secret_access
from koguma.application.context import Context
from koguma.core import problems, world
from koguma.core.admission import Admitted
from koguma.core.incremental import Db
from koguma.core.lint import permissions, referrers
from koguma.core.lint.problem import ADVICE, DEPRECATED_ROUTE, NO_OBJECT
from koguma.core.lint.referrers import Referrer
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change

_NAMED_MAX: Final = 5  # objects that a warning names

T = TypeVar("T")
Tried = Sequence[Change] | None  # what a write would have changed; None where it was written


async def told(context: Context, made: Sequence[Admitted], tried: Tried = None) -> list[tuple[str, ...]]:
    """The warnings for each object that was written; what is odd about several of them is told once."""
    made = [_with_lapsed(context, one) for one in made]
    written = [one.resource.key for one in made]
    if not any(_is_asked(context, key) for key in written):
        return [one.warnings for one in made]
    policies = [key for key in written if context.kinds[key.kind].policy is not None]

    def all_odd(db: Db) -> list[tuple[str, ...]]:
        problems.keep(db, policies)
        return [(*one.warnings, *_odd(db, one.resource.key, set(written))) for one in made]

    return await _answered(context, tried, all_odd)


def _with_lapsed(context: Context, one: Admitted) -> Admitted:
    """The same with the references to Secrets that nobody answers for any more."""
    kind = context.kinds[one.resource.kind]
    found = [
        f"{each}; {secret_access.LAPSED_HINT}"
        for each in secret_access.lapsed_of(context, kind, one.resource)
    ]
    return msgspec.structs.replace(one, warnings=(*one.warnings, *found)) if found else one


async def _answered(context: Context, tried: Tried, ask: Callable[[Db], T]) -> T:
    """What the engine says after a write, or one of its own where the write was only tried."""
    live = await context.database()
    if tried is None:
        return ask(live)
    return await context.trials.ask(live, list(context.state.all()), tried, ask)


def _odd(db: Db, key: Key, written: Collection[Key]) -> Iterator[str]:
    for problem in problems.of_object(db, key):
        if problem.code in (ADVICE, DEPRECATED_ROUTE):
            continue  # admission has said so
        if key == next((each for each in problem.objects if each in written), key):
            yield problem.text if key == problem.objects[0] else f"{problem.message} ({problem.code})"


def _is_asked(context: Context, key: Key) -> bool:
    """Whether anything about it can be odd; Dataplanes that proxies bring do not come this way."""
    return context.kinds[key.kind].policy is not None or key.kind in (
        *world.DESTINATION_KINDS,
        "Dataplane",
        "Mesh",
    )


class DeletionContext(msgspec.Struct, frozen=True):
    """Objects that somebody is about to delete, and what leads to them as long as they are there."""

    resources: tuple[Resource, ...]
    mentioned: dict[Key, tuple[Referrer, ...]]
    allowed: frozenset[Key]  # permissions that let somebody in


async def departure(context: Context, resources: Sequence[Resource]) -> DeletionContext:
    """What has to be known before objects are deleted, to tell afterwards what their absence does."""
    asked = [each for each in resources if each.kind in referrers.KINDS or _is_permission(context, each.key)]
    if not asked:
        return DeletionContext(tuple(resources), {}, frozenset())
    db = await context.database()
    keys = {each.key for each in asked}
    found: dict[Key, list[Referrer]] = {}
    for kind, mesh in sorted({(key.kind, key.mesh) for key in keys if key.kind in referrers.KINDS}):
        for key, referrer in referrers.of(db, mesh, kind, keys):
            found.setdefault(key, []).append(referrer)
    meshes = {key.mesh for key in keys if _is_permission(context, key)}
    allowed = frozenset(key for mesh in meshes for key in permissions.allowing(db, mesh))
    return DeletionContext(tuple(resources), {key: tuple(each) for key, each in found.items()}, allowed)


def _is_permission(context: Context, key: Key) -> bool:
    kind = context.kinds.by_name.get(key.kind)  # None for Kubernetes' own kinds
    policy = kind.policy if kind is not None else None
    return policy is not None and policy.lets_in is not None


async def told_of(context: Context, left: DeletionContext, tried: Tried = None) -> list[tuple[str, ...]]:
    """The warnings for each deleted object: what then refers to nothing, and a mesh that then is closed."""
    keys = [each.key for each in left.resources]
    if not left.mentioned and left.allowed.isdisjoint(keys):
        return [() for _ in keys]

    def all_missed(db: Db) -> list[tuple[str, ...]]:
        return [tuple(_missed(db, key, left)) for key in keys]

    return await _answered(context, tried, all_missed)


def _missed(db: Db, key: Key, left: DeletionContext) -> Iterator[str]:
    there = left.mentioned.get(key, ())
    found = [each for each in there if referrers.is_dangling(db, each, key.kind)]
    if found:
        by = {referrer.by: referrer.path for referrer in sorted(found, reverse=True)}
        named = [f"{who} at {path}" for who, path in sorted(by.items())][:_NAMED_MAX]
        more = f" and {len(by) - len(named)} more" if len(by) > len(named) else ""
        many = "1 object then refers" if len(by) == 1 else f"{len(by)} objects then refer"
        # The names come last: kubectl is sent some hundred letters of a warning, and they may be long.
        yield f"{many} to nothing ({NO_OBJECT}): {', '.join(named)}{more}"
    if key in left.allowed:
        for problem in permissions.none_allows(db, key.mesh):
            yield f"{problem.message} ({problem.code})"
