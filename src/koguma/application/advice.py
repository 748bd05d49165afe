"""Advice: the warnings in the response to a write: those of admission, and problems of the mesh after it.

A dry run gets the same warnings in the same order: they are computed by a second engine, which holds the
objects as they would be.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from koguma.application import secret_access
from koguma.application.context import Context
from koguma.core import problems, world
from koguma.core.admission import Admitted
from koguma.core.incremental import Db
from koguma.core.lint import permissions, referrers, visibility
from koguma.core.lint.problem import ADVICE, DEPRECATED_ROUTE, NO_OBJECT
from koguma.core.lint.referrers import Referrer
from koguma.core.lint.visibility import EVERYTHING, Visibility
from koguma.model.resource import Key, Resource
from koguma.runtime.clock import now
from koguma.store.contract import Change

_LISTED_OBJECTS_MAX: Final = 5  # how many objects a warning lists by name

T = TypeVar("T")
DryRunChanges = Sequence[Change] | None  # what a dry run would change; None after a real write


async def write_warnings(
    context: Context,
    admitted: Sequence[Admitted],
    dry_run: DryRunChanges = None,
    visible: Visibility = EVERYTHING,
) -> list[tuple[str, ...]]:
    """The warnings for each written object; a problem of several of them is reported once.

    Those that would tell of an object that is not visible are left out.
    """
    admitted = [_with_lapsed_references(context, write) for write in admitted]
    written = [write.resource.key for write in admitted]
    if not any(_can_have_problems(context, key) for key in written):
        return [write.warnings for write in admitted]
    policies = [key for key in written if context.kinds[key.kind].policy is not None]

    def all_warnings(db: Db) -> list[tuple[str, ...]]:
        problems.keep(db, policies)
        return [
            (*write.warnings, *_problem_texts(db, write.resource.key, set(written), visible))
            for write in admitted
        ]

    if dry_run is None and not problems.are_kept(await context.database(), policies):
        # The first time all policies of the kind are read: seconds where there are thousands of them.
        await context.beside(lambda db: problems.keep(db, policies))
    return await _asked(context, dry_run, all_warnings)


def _with_lapsed_references(context: Context, write: Admitted) -> Admitted:
    """The same with warnings of references to Secrets whose writer may not read them any more."""
    kind = context.kinds[write.resource.kind]
    warnings = [
        f"{reference}; {secret_access.LAPSED_HINT}"
        for reference in secret_access.lapsed_of(context, kind, write.resource)
    ]
    return msgspec.structs.replace(write, warnings=(*write.warnings, *warnings)) if warnings else write


async def _asked(context: Context, dry_run: DryRunChanges, ask: Callable[[Db], T]) -> T:
    """Ask the engine after a write, or the trial engine for a dry run."""
    live = await context.database()
    if dry_run is None:
        return ask(live)
    return await context.trials.ask(live, context.store, dry_run, ask)


def _problem_texts(db: Db, key: Key, written: Collection[Key], visible: Visibility) -> Iterator[str]:
    for problem in problems.of_object(db, key, now()):
        if problem.code in (ADVICE, DEPRECATED_ROUTE):
            continue  # admission warns of it already
        if not visibility.may_tell(problem, visible):
            continue
        if key == next((other for other in problem.objects if other in written), key):
            yield problem.text if key == problem.objects[0] else f"{problem.message} ({problem.code})"


def _can_have_problems(context: Context, key: Key) -> bool:
    """Whether an object of this kind can have problems; proxies write their Dataplanes elsewhere."""
    return context.kinds[key.kind].policy is not None or key.kind in (
        *world.DESTINATION_KINDS,
        "Dataplane",
        "HostnameGenerator",
        "Mesh",
        "MeshGateway",
        "Secret",
    )


class BeforeDeletion(msgspec.Struct, frozen=True):
    """Objects that are about to be deleted, and which others refer to them."""

    resources: tuple[Resource, ...]
    referrers_by_key: dict[Key, tuple[Referrer, ...]]
    allowed: frozenset[Key]  # permissions that allow at least one caller


async def before_deletion(context: Context, resources: Sequence[Resource]) -> BeforeDeletion:
    """What must be read before objects are deleted, to warn afterwards about what their absence breaks."""
    relevant = [
        resource
        for resource in resources
        if resource.kind in referrers.KINDS or _is_permission(context, resource.key)
    ]
    if not relevant:
        return BeforeDeletion(tuple(resources), {}, frozenset())
    db = await context.database()
    keys = {resource.key for resource in relevant}
    referrers_by_key: dict[Key, list[Referrer]] = {}
    for kind, mesh in sorted({(key.kind, key.mesh) for key in keys if key.kind in referrers.KINDS}):
        for key, referrer in referrers.of(db, mesh, kind, keys):
            referrers_by_key.setdefault(key, []).append(referrer)
    meshes = {key.mesh for key in keys if _is_permission(context, key)}
    allowed = frozenset(key for mesh in meshes for key in permissions.allowing(db, mesh))
    return BeforeDeletion(tuple(resources), {key: tuple(by) for key, by in referrers_by_key.items()}, allowed)


def _is_permission(context: Context, key: Key) -> bool:
    kind = context.kinds.by_name.get(key.kind)  # None for Kubernetes' own kinds
    policy = kind.policy if kind is not None else None
    return policy is not None and policy.lets_in is not None


async def deletion_warnings(
    context: Context,
    before: BeforeDeletion,
    dry_run: DryRunChanges = None,
    visible: Visibility = EVERYTHING,
) -> list[tuple[str, ...]]:
    """The warnings for each deleted object: dangling references, and a mesh that then allows no traffic."""
    keys = [resource.key for resource in before.resources]
    if not before.referrers_by_key and before.allowed.isdisjoint(keys):
        return [() for _ in keys]

    def all_warnings(db: Db) -> list[tuple[str, ...]]:
        return [tuple(_dangling_texts(db, key, before, visible)) for key in keys]

    return await _asked(context, dry_run, all_warnings)


def _dangling_texts(db: Db, key: Key, before: BeforeDeletion, visible: Visibility) -> Iterator[str]:
    # A reference by labels may have other objects to refer to.
    referrers_before = before.referrers_by_key.get(key, ()) if visible.sees_all(key.kind, key.mesh) else ()
    dangling = [
        referrer
        for referrer in referrers_before
        if visible.may_see(referrer.by) and referrers.is_dangling(db, referrer, key.kind)
    ]
    if dangling:
        by = {referrer.by: referrer.path for referrer in sorted(dangling, reverse=True)}
        named = [f"{who} at {path}" for who, path in sorted(by.items())]
        named = named[:_LISTED_OBJECTS_MAX]
        more = f" and {len(by) - len(named)} more" if len(by) > len(named) else ""
        many = "1 object then refers" if len(by) == 1 else f"{len(by)} objects then refer"
        # The names come last: a Warning header is cut after 500 characters, and names may be long.
        yield f"{many} to nothing ({NO_OBJECT}): {', '.join(named)}{more}"
    if key in before.allowed:
        for problem in permissions.none_allows(db, key.mesh):
            if visibility.may_tell(problem, visible):
                yield f"{problem.message} ({problem.code})"
