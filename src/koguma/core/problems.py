"""Problems: the lint problems of a mesh, as values beside its configuration.

Nothing is refused and nothing raises: a mesh with problems works, and each problem says where it may not do
what was intended. `koguma lint` shows all of them, the answer to a write shows those of the written object,
and the Inspect API those of the inspected one.

    of_policy(db, key)      the problems of a policy, also where another object is the cause
    of_object(db, key)      the same for any object
    of_mesh(db, mesh)       all problems of a mesh, sorted
    of_proxies(db)          those of Dataplanes alone, of all meshes
    of_gateways(db, now)    those of gateways' certificates alone, of all meshes

Every problem has a code with a section in docs/lint.md. These functions are no questions: what they ask is
memoised, but a change does not run them again for whoever asked once.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from koguma.core import derivation, match, world
from koguma.core.incremental import Db
from koguma.core.lint import (
    contenders,
    cross_mesh,
    effects,
    egresses,
    external_addresses,
    external_plugins,
    gateway_certificates,
    gateways,
    overlaps,
    permissions,
    ports,
    proxies,
    references,
    selection,
    shared_hostnames,
    ties,
)
from koguma.core.lint.effects import warning
from koguma.core.lint.problem import (
    ADVICE,
    CODES,
    DEPRECATED_ROUTE,
    INVALID,
    NO_OBJECT,
    NO_PERMISSION,
    OUTBOUND_TO_NOWHERE,
    Problem,
)
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key

__all__ = [
    "ADVICE",
    "CODES",
    "DEPRECATED_ROUTE",
    "INVALID",
    "NO_OBJECT",
    "NO_PERMISSION",
    "OUTBOUND_TO_NOWHERE",
    "Problem",
    "keep",
    "of_gateways",
    "of_mesh",
    "of_object",
    "of_policy",
    "of_proxies",
    "warning",
]

_OF_POLICIES: Final[tuple[Callable[[Db, Key], Iterator[Problem]], ...]] = (
    selection.disjoint,
    selection.no_proxy_selected,
    references.unresolved,
    effects.advice,
    effects.not_built,
    effects.wrong_protocol,
    effects.never_matched,
    ties.broken_rules,
    ties.ties,
    permissions.of_policy,
    overlaps.of_policy,
    gateways.of_policy,
)


def are_kept(db: Db, policies: Iterable[Key]) -> bool:
    """Whether `keep` has been called for the kinds and meshes of these policies; the first call is slow."""
    return all(contenders.is_kept(db, policy.kind, policy.mesh) for policy in policies)


def keep(db: Db, policies: Iterable[Key]) -> None:
    """Keep by what policies of these kinds are compared up to date, so that the next one is checked quickly.

    Its answers change with policies and destinations only, never with proxies.
    """
    written = list(policies)
    for mesh in dict.fromkeys(policy.mesh for policy in written):
        selection.settle(db, mesh)
    for kind, mesh in dict.fromkeys((policy.kind, policy.mesh) for policy in written):
        contenders.keep(db, kind, mesh)


def of_policy(db: Db, policy: Key) -> tuple[Problem, ...]:
    """The problems of a policy, sorted."""
    if world.RESOURCES.get(db, policy) is None:
        return _unreadable(db, policy)
    return _sorted(db, (problem for ask in _OF_POLICIES for problem in ask(db, policy)))


def of_object(db: Db, key: Key, now: datetime | None = None) -> tuple[Problem, ...]:
    """The problems of an object of any kind, sorted; without the time, certificates may have expired."""
    if key.kind in match.policy_kinds(db):
        return of_policy(db, key)
    if world.RESOURCES.get(db, key) is None:
        return _unreadable(db, key)
    if key.kind == "Dataplane":
        return _sorted(db, (*effects.advice(db, key), *_of_proxy(db, key)))
    if key.kind == "HostnameGenerator":
        return _sorted(db, (*effects.advice(db, key), *shared_hostnames.of_generator(db, key)))
    if key.kind == "MeshGateway":
        return _sorted(db, (*effects.advice(db, key), *_of_gateway(db, key, now)))
    if key.kind == "Secret":
        return _sorted(db, gateway_certificates.of_secret(db, key, now))
    conflicts = _of_destination(db, key) if key.kind in world.DESTINATION_KINDS else ()
    external = _of_external_service(db, key) if key.kind == "MeshExternalService" else ()
    of_mesh = _of_mesh_itself(db, key.name) if key.kind == "Mesh" else ()
    return _sorted(db, (*effects.advice(db, key), *conflicts, *external, *of_mesh))


def _of_gateway(db: Db, key: Key, now: datetime | None) -> Iterator[Problem]:
    yield from gateways.of_gateway(db, key)
    yield from gateway_certificates.of_gateway(db, key, now)
    yield from cross_mesh.of_gateway(db, key)


def _of_mesh_itself(db: Db, mesh: str) -> Iterator[Problem]:
    yield from permissions.none_allows(db, mesh)
    yield from egresses.of_mesh(db, mesh)


def _of_external_service(db: Db, key: Key) -> Iterator[Problem]:
    yield from external_addresses.shared(db, key)
    yield from external_plugins.missing(db, key)
    yield from egresses.of_service(db, key)


def _of_destination(db: Db, key: Key) -> Iterator[Problem]:
    yield from ports.conflicts(db, key)
    yield from shared_hostnames.of_destination(db, key)


def _unreadable(db: Db, key: Key) -> tuple[Problem, ...]:
    """What is wrong with an object that is stored, and that its kind cannot read."""
    reason = world.UNREADABLE.get(db, key)
    if reason is None:
        return ()
    message = (
        f"{key} cannot be read as it is stored, and acts nowhere: {reason}; write it again, or delete it"
    )
    return (Problem(INVALID, message, (key,), "error"),)


def of_proxies(db: Db) -> tuple[Problem, ...]:
    """The problems of Dataplanes of all meshes that follow from other objects, sorted."""
    keys = world.BY_KIND_EVERYWHERE.keys(db, "Dataplane")
    return _sorted(db, (problem for key in keys for problem in _of_proxy(db, key)))


def _of_proxy(db: Db, proxy: Key) -> Iterator[Problem]:
    yield from proxies.same_address(db, proxy)
    yield from proxies.stored_dangling_outbounds(db, proxy)
    yield from gateways.of_proxy(db, proxy)


def of_gateways(db: Db, now: datetime) -> tuple[Problem, ...]:
    """The problems of all gateways' certificates at a time, also of those that expire soon, sorted."""
    keys = world.BY_KIND_EVERYWHERE.keys(db, "MeshGateway")
    checks = gateway_certificates.of_gateway, gateway_certificates.ending
    return _sorted(db, (problem for key in keys for check in checks for problem in check(db, key, now)))


def of_mesh(db: Db, mesh: str, now: datetime | None = None) -> tuple[Problem, ...]:
    """All problems of a mesh, each once, sorted; without the time, certificates may have expired."""
    kinds = [kind.name for _, kind in world.KINDS.items(db) if kind.is_mesh_scoped]
    keys = [key for name in kinds for key in world.BY_KIND.keys(db, (name, mesh))]
    keys.append(Key("Mesh", "", "", "", mesh))
    keys += [key for key in world.UNREADABLE.keys(db) if key.mesh == mesh]
    return _sorted(
        db,
        (*(problem for key in keys for problem in of_object(db, key, now)), *ports.disagreements(db, mesh)),
    )


def _sorted(db: Db, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted({_of_source(db, problem) for problem in problems}, key=_sort_key))


def _of_source(db: Db, problem: Problem) -> Problem:
    """A problem of a derived resource as one of the object that a user has written."""
    if not any(isinstance(world.RESOURCES.get(db, key), DerivedResource) for key in problem.objects):
        return problem
    places = [derivation.stored_place(db, key, problem.path) for key in problem.objects]
    resource = world.RESOURCES.get(db, problem.objects[0])
    message = (
        resource.source_text(problem.message) if isinstance(resource, DerivedResource) else problem.message
    )
    return msgspec.structs.replace(
        problem, message=message, objects=tuple(key for key, _ in places), path=places[0][1]
    )


def _sort_key(problem: Problem) -> tuple[str, tuple[Key, ...], str, str]:
    return problem.code, problem.objects, problem.path, problem.message
