"""Gateway overlays: what policies change for a listener of a gateway, and for single routes of it.

What holds for everything that a gateway sends on (`to` with kind Mesh) and for what arrives at it (`from`,
`rules`) is laid over the listener and its routes. A route that a policy names, or whose only backend one
names, has more on top. Clusters are the gateway's as a whole: its listeners share them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from koguma.core import gateways, inbound, items, order, rules
from koguma.core.build import hooks, overlays
from koguma.core.build.backends import BackendPort
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.policy_set import Policies
from koguma.core.rules import EntriesByTarget
from koguma.model.overlay import GATEWAY_PARTS, Overlay, OverlayContext
from koguma.model.resource import Key

_OF_CLUSTERS: Final = ("cluster", "http_options")
ListenerPolicies = tuple[tuple[str, Policies], ...]  # that select a listener, by kind; no routes


class RouteTarget(msgspec.Struct, frozen=True):
    """A route of a gateway, and its backend where it has only one: what policies may name."""

    route: Key | None = None
    backend: BackendPort | None = None


@question
def of(db: Db, policies: ListenerPolicies, where: OverlayContext) -> PolicyOverlays:
    """What policies change for a listener and all its routes."""
    return of_route(db, policies, where, RouteTarget())


@question
def of_route(
    db: Db, policies: ListenerPolicies, where: OverlayContext, target: RouteTarget
) -> PolicyOverlays:
    """What policies change for one route of a listener."""
    permissions = _permitting(db, policies, where) if where.admits_meshes else ()
    calls = (
        *permissions,
        *_arriving(db, policies, where),
        *_sent_on(db, sent_on(db, policies, target), where),
    )
    return overlays.interned(overlays.collected(iter(hooks.in_order(db, calls)), GATEWAY_PARTS))


@question
def named_routes(db: Db, policies: ListenerPolicies) -> tuple[Key, ...]:
    """The routes that some policy of a listener names."""
    targeted = (rules.entries_by_target(db, of_kind) for _, of_kind in policies)
    return tuple(sorted({key for each in targeted for key in each.by_route}))


@question
def sent_on(db: Db, policies: ListenerPolicies, target: RouteTarget) -> ByKind:
    """The entries for what a listener sends on through a route, by kind, and those of whole proxies."""
    by_kind = []
    for kind, of_kind in policies:
        entries = _relevant(db, rules.entries_by_target(db, of_kind), target)
        by_kind.append((kind, entries or rules.default_entries(db, of_kind)))
    return tuple((kind, entries) for kind, entries in by_kind if entries and acts_on_calls(db, kind))


def acts_on_calls(db: Db, kind: str) -> bool:
    """Whether `to` of a kind, or what it says of whole proxies, acts on what a gateway sends on."""
    of_kind = hooks.of(db, kind)
    return bool(of_kind.gateway or of_kind.outbound or of_kind.locality)


def _relevant(db: Db, targeted: EntriesByTarget, target: RouteTarget) -> Entries:
    backend = target.backend
    found = list(targeted.mesh_wide)
    if target.route is not None:
        destination = backend.destination if backend else None
        on_route = targeted.by_route.get(target.route, ())
        found += [entry for entry, only in on_route if only in (None, destination)]
    if backend is not None:
        on_backend = targeted.by_destination.get(backend.destination, ())
        found += [entry for entry, narrowed in on_backend if narrowed in ("", backend.section)]
    return tuple(sorted(found, key=lambda entry: order.key(items.rank(db, entry))))


_Call = tuple[str, Callable[[], Overlay]]


def _sent_on(db: Db, by_kind: ByKind, where: OverlayContext) -> Iterator[_Call]:
    for kind, entries in by_kind:
        of_kind = hooks.of(db, kind)
        hook = of_kind.gateway or of_kind.outbound
        conf = overlays.conf(db, kind, entries, where.mesh)
        if hook and conf and not (of_kind.at_gateways and entries[0].list == "default"):
            yield kind, partial(_of_listener, partial(hook, conf, where))


def arriving(db: Db, policies: ListenerPolicies) -> ByKind:
    """The entries for all that arrives at a listener: nobody's of the mesh, so none for some callers only."""
    by_kind = []
    for kind, of_kind in policies:
        if hooks.of(db, kind).at_gateways:
            found = [each.entry for each in inbound.entries(db, of_kind) if each.client == inbound.Client()]
            by_kind.append((kind, tuple(found) or rules.default_entries(db, of_kind)))
    return tuple((kind, entries) for kind, entries in by_kind if entries)


def _arriving(db: Db, policies: ListenerPolicies, where: OverlayContext) -> Iterator[_Call]:
    for kind, entries in arriving(db, policies):
        hook, conf = hooks.of(db, kind).inbound, overlays.conf(db, kind, entries, where.mesh)
        if hook and conf:
            yield kind, partial(_of_listener, partial(hook, conf, (), where), "arriving ")


def permitting(db: Db, policies: ListenerPolicies) -> tuple[tuple[str, Policies], ...]:
    """The policies that decide who may call a listener, by kind; only callers of meshes have an identity."""
    return tuple((kind, of_kind) for kind, of_kind in policies if hooks.of(db, kind).permits)


def _permitting(db: Db, policies: ListenerPolicies, where: OverlayContext) -> Iterator[_Call]:
    for kind, of_kind in permitting(db, policies):
        hook, rules_of_kind = hooks.of(db, kind).inbound, inbound.entries(db, of_kind)
        if hook and rules_of_kind:
            yield kind, partial(hook, *overlays.inbound_arguments(db, kind, rules_of_kind), where)


def _of_listener(hook: Callable[[], Overlay], prefix: str = "") -> Overlay:
    """What a hook says about a listener and its routes, and not about clusters.

    With a prefix, logs of what arrives have names of their own, beside those of what is sent on.
    """
    overlay = hook()
    logs = {f"{prefix}{name}": log for name, log in (overlay.get("access_logs") or {}).items()}
    parts = {name: part for name, part in overlay.items() if name not in _OF_CLUSTERS}
    return {**parts, "access_logs": logs} if logs else parts


def without_routes(policies: ListenerPolicies) -> ListenerPolicies:
    """The policies of a listener but routes, so that a new route changes nothing else."""
    return tuple(each for each in policies if each[0] not in gateways.ROUTE_KINDS)
