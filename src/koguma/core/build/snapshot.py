"""Snapshot: everything that one Envoy gets but secrets. Start reading here.

A snapshot has five bundles. What the proxy needs to call others, where redirected calls to the outside go,
and the endpoints of what it calls are shared by all proxies with an equal `OutboundSpec`; its inbounds and
its internals are its own. For a built-in gateway the first of these are the routes of its listeners, shared
by all with an equal `GatewaySpec`, and the listeners are its own. Keys and certificates
are no part of the build: whoever serves the snapshot adds them. It is put together from two answers, one for
the proxy and one that it shares, so that a change of what thousands share runs no question of each of them
(`snapshot_watcher`).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from koguma.core import hostnames
from koguma.core.build import (
    clusters,
    egress,
    encoding,
    gateway,
    gateway_spec,
    inbound,
    ingress,
    internals,
    outbound_spec,
    passthrough,
    patches,
    zone_egress,
    zone_ingress,
)
from koguma.core.build.gateway_spec import GatewaySpec
from koguma.core.build.internals import Records
from koguma.core.build.outbound_listeners import OutboundPort
from koguma.core.build.outbound_spec import OutboundSpec
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy.snapshot import Bundle, Id, Snapshot
from koguma.model.resource import Key

_NOTHING: Final = encoding.bundled(())
_OF_ZONE: Final[Mapping[str, Callable[[Db, Key], tuple[Bundle, ...] | None]]] = {
    zone_egress.KIND: egress.bundles,
    zone_ingress.KIND: ingress.bundles,
}
SharedSpec = OutboundSpec | GatewaySpec


class OwnBundles(NamedTuple):
    """The bundles of a proxy's own, and the spec that decides what it shares; a zone proxy has none."""

    shared_spec: SharedSpec | None
    bundles: tuple[Bundle, ...]


class SharedBundles(NamedTuple):
    """The bundles of all proxies with an equal spec."""

    outbounds: Bundle
    redirected: Bundle  # for calls to domains and addresses outside the mesh
    endpoints: Bundle


def of(db: Db, proxy: Key) -> Snapshot | None:
    """Everything that a proxy's Envoy gets but secrets; None where it, or its mesh, cannot be read."""
    bundles = own(db, proxy)
    return None if bundles is None else whole(bundles, shared_of(db, bundles))


def shared_of(db: Db, own_bundles: OwnBundles) -> SharedBundles | None:
    """The other half of a snapshot; None for a zone proxy, which shares nothing with proxies of a mesh."""
    spec = own_bundles.shared_spec
    return None if spec is None else shared(db, spec)


def whole(own_bundles: OwnBundles, shared_bundles: SharedBundles | None) -> Snapshot:
    """A snapshot from its two halves."""
    if shared_bundles is None:
        return Snapshot(own_bundles.bundles)
    outbounds, redirected, endpoints = shared_bundles
    return Snapshot((outbounds, redirected, *own_bundles.bundles, endpoints))


@question
def shared(db: Db, spec: SharedSpec) -> SharedBundles:
    """What all proxies with this spec get: how they call others, and the endpoints of these."""
    first, redirected = patches.over(db, spec.proxy_class, _shared(db, spec))
    return SharedBundles(first, redirected, _endpoints(db, spec))


def _endpoints(db: Db, spec: SharedSpec) -> Bundle:
    if isinstance(spec, GatewaySpec):
        return gateway.shared(db, spec)[1]
    return clusters.assignments(
        db, spec.outbounds(db).load_assignments, spec.client.zone, spec.client.affinity
    )


def _shared(db: Db, spec: SharedSpec) -> tuple[tuple[str, Bundle], ...]:
    """What proxies share before patches, each bundle with what it is for."""
    if isinstance(spec, GatewaySpec):
        return (patches.GATEWAY_CALLS, gateway.shared(db, spec)[0]), (patches.INTERNAL, _NOTHING)
    outbounds, redirection = spec.outbounds(db), spec.redirection
    redirected = passthrough.outbound(db, redirection, outbounds.matched) if redirection else _NOTHING
    return (patches.OUTBOUND, outbounds.bundle), (patches.INTERNAL, redirected)


@question
def own(db: Db, proxy: Key) -> OwnBundles | None:
    """What a proxy gets that no other one does; None where it, or its mesh, cannot be read."""
    if proxy.kind in _OF_ZONE:
        bundles = _OF_ZONE[proxy.kind](db, proxy)
        return None if bundles is None else OwnBundles(None, bundles)
    spec = spec_of(db, proxy)
    return None if spec is None else OwnBundles(spec, patches.over(db, spec.proxy_class, _own(db, proxy)))


def spec_of(db: Db, proxy: Key) -> SharedSpec | None:
    """What of a proxy of a mesh decides what it shares with others; None where it cannot be read."""
    return gateway_spec.of(db, proxy) if gateway_spec.is_gateway(db, proxy) else outbound_spec.of(db, proxy)


def likely_spec(db: Db, proxy: Key) -> SharedSpec | None:
    """The spec that a proxy will most likely have once it connects."""
    is_gateway = gateway_spec.is_gateway(db, proxy)
    return gateway_spec.likely(db, proxy) if is_gateway else outbound_spec.likely(db, proxy)


def touching(db: Db, proxy: Key) -> Mapping[Id, tuple[str, ...]]:
    """The MeshProxyPatches (by KRI) that changed what a proxy gets, by resource."""
    spec = None if proxy.kind in _OF_ZONE else spec_of(db, proxy)
    if spec is None:
        return {}  # nobody patches zone proxies
    bundles = (*_shared(db, spec), *_own(db, proxy))  # nobody patches endpoints
    return patches.touching_any(db, spec.proxy_class, bundles)


def _own(db: Db, proxy: Key) -> tuple[tuple[str, Bundle], ...]:
    """What is a proxy's own before patches, each bundle with what it is for."""
    spec = spec_of(db, proxy)
    if spec is None:
        return ()
    if isinstance(spec, GatewaySpec):
        of_internals = internals.resources(db, proxy, Group(()))
        return (patches.GATEWAY, gateway.listeners(db, proxy, spec)), (patches.INTERNAL, of_internals)
    of_internals = internals.resources(db, proxy, records(db, spec.ports, outbound_spec.has_ipv6(db, proxy)))
    return (patches.INBOUND, inbound.resources(db, proxy)), (patches.INTERNAL, of_internals)


@question
def records(db: Db, ports: Group[OutboundPort], has_ipv6: bool) -> Records:  # noqa: FBT001 - positional
    """The DNS records by which these ports are reached."""
    destinations = tuple(sorted({port.destination for port in ports}))
    return Group(hostnames.records(db, destinations, has_ipv6))
