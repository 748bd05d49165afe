"""Gateway spec: what of a built-in gateway decides what it serves; proxies with equal specs share nearly all.

Only the address on which a proxy listens is its own, and with it the listeners themselves.
"""

from typing import NamedTuple

import msgspec

from koguma.core import gateways, inbound, match, rules, world
from koguma.core.build import gateway_overlays, network, outbound_spec
from koguma.core.build.clusters import ClientContext
from koguma.core.build.network import NodeMetadata
from koguma.core.gateways import Listener
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.policy_set import Policies
from koguma.core.rules import ProxyClass
from koguma.core.world import Reach
from koguma.model.resource import Key


class ServedListener(msgspec.Struct, frozen=True, cache_hash=True):
    """A listener of a gateway, and the policies that select it, routes among them."""

    listener: Listener
    policies: tuple[tuple[str, Policies], ...]  # by kind; only kinds that have any

    @property
    def acting(self) -> gateway_overlays.ListenerPolicies:
        """The policies but routes."""
        return gateway_overlays.without_routes(self.policies)

    def of(self, *kinds: str) -> Policies:
        """The policies of some kinds."""
        chosen = [policies for kind, policies in self.policies if kind in kinds]
        return chosen[0] if len(chosen) == 1 else Policies(part for each in chosen for part in each.parts)


class GatewayPort(msgspec.Struct, frozen=True, cache_hash=True):
    """The listeners of one port, which are one listener of Envoy; they have one protocol."""

    gateway: Key
    number: int
    listeners: tuple[ServedListener, ...]  # as written

    @property
    def protocol(self) -> str:
        """What its clients speak."""
        return self.listeners[0].listener.protocol

    @property
    def is_cross_mesh(self) -> bool:
        """Whether proxies of other meshes call it; where only some listeners say so, none is served."""
        return any(each.listener.is_cross_mesh for each in self.listeners)

    @property
    def hostnames(self) -> tuple[str, ...]:
        """The host names of its listeners."""
        return tuple(each.listener.hostname for each in self.listeners)


class GatewaySpec(NamedTuple):
    """What of a built-in gateway decides what it serves and calls."""

    proxy_class: ProxyClass  # its policies but routes, which listeners have
    ports: Group[GatewayPort]
    client: ClientContext


def is_gateway(db: Db, proxy: Key) -> bool:
    """Whether a proxy is a built-in gateway."""
    known = world.proxy(db, proxy) if proxy.kind == "Dataplane" else None
    return known is not None and known.is_builtin


@question
def of(db: Db, proxy: Key) -> GatewaySpec | None:
    """The spec of a built-in gateway; None where it, its mesh or a gateway of the mesh cannot be read."""
    return _spec(db, proxy, network.node_metadata(db, proxy))


def likely(db: Db, proxy: Key) -> GatewaySpec | None:
    """The spec that a proxy will most likely have once it connects."""
    networking = network.networking(db, proxy)
    return _spec(db, proxy, network.likely_node_metadata(networking)) if networking else None


def _spec(db: Db, proxy: Key, node: NodeMetadata) -> GatewaySpec | None:
    traits = match.traits(db, proxy)
    if traits is None or _is_unreadable(db, proxy.mesh):
        return None  # it keeps its last configuration
    proxy_class = _class(db, traits)
    ports = _ports(db, traits) if traits.gateway is not None else Group(())
    return GatewaySpec(proxy_class, ports, outbound_spec.client(db, proxy, proxy_class, node))


def _is_unreadable(db: Db, mesh: str) -> bool:
    """Whether it is unknown which MeshGateway a proxy of a mesh serves, or whether the mesh has mTLS."""
    if world.UNREADABLE.get(db, Key("Mesh", "", "", "", mesh)) is not None:
        return True
    return any(key.kind == gateways.GATEWAY and key.mesh == mesh for key in world.UNREADABLE.keys(db))


def _class(db: Db, traits: match.Traits) -> ProxyClass:
    policies = tuple(each for each in rules.policies_of(db, traits) if each[0] not in gateways.ROUTE_KINDS)
    return ProxyClass(traits.mesh, traits.zone, traits.namespace, policies, Reach())


@question
def _ports(db: Db, traits: match.Traits) -> Group[GatewayPort]:
    """The ports of the gateway that proxies with these traits serve, in order."""
    assert traits.gateway is not None
    by_number: dict[int, list[ServedListener]] = {}
    for listener in gateways.listeners(db, traits.gateway):
        served = ServedListener(listener, inbound.policies_of(db, traits, listener.section))
        by_number.setdefault(listener.port, []).append(served)
    return Group(
        GatewayPort(traits.gateway, number, tuple(listeners))
        for number, listeners in sorted(by_number.items())
    )
