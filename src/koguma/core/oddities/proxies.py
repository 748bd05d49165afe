"""Proxies: Dataplanes that are reached where another one is reached too, and outbounds that lead nowhere.

Two proxies are in each other's way where the same zone calls both by one address and port, in any mesh; by a
loopback address, where the same mesh does. What they listen on is not compared: behind an `advertisedAddress`
each has a network of its own, and so has each zone. An inbound that is not ready is called by nobody, and
cannot be mistaken for another one.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koguma.core import services, world
from koguma.core.build import endpoints, network
from koguma.core.build.network import InboundAddress, InboundNetworking
from koguma.core.incremental import Db
from koguma.core.oddities.problem import OUTBOUND_TO_NOWHERE, SAME_ADDRESS, Problem
from koguma.core.world import DestinationRef, Pairs, pairs
from koguma.model import tags
from koguma.model.resource import Key, Resource
from koguma.model.violation import item

_NAMED_MAX: Final = 3
_PAIR: Final = 2


def same_address(db: Db, proxy: Key) -> Iterator[Problem]:
    """Ready inbounds of a Dataplane that are called by an address and port of another Dataplane too."""
    net = network.networking(db, proxy)
    places = [network.inbound_address(proxy, each) for each in net.inbounds if each.is_ready] if net else []
    for place in dict.fromkeys(places):
        there = network.BY_INBOUND_ADDRESS.keys(db, place)
        if len(there) > 1:
            yield _same_address(db, place, [key for key in there if key.mesh == proxy.mesh], len(there))


def _same_address(db: Db, place: InboundAddress, own: list[Key], n_all: int) -> Problem:
    """The problem as the Dataplanes of one mesh see it; who is in other meshes is not told to everybody."""
    named = [str(key) for key in own[:_NAMED_MAX]]
    left = len(own) - len(named)
    named += [f"{left} more of this mesh"] if left else []
    elsewhere = n_all - len(own)
    if elsewhere:
        named.append("a Dataplane of another mesh" if elsewhere == 1 else f"{elsewhere} of other meshes")
    host = f"[{place.address}]" if ":" in place.address else place.address
    message = (
        f"{', '.join(named[:-1])} and {named[-1]} are {'all' if n_all > _PAIR else 'both'} reached at"
        f" {host}:{place.port}, so that calls to one of them can"
        " be answered by another; give each a port or an address of its own"
    )
    return Problem(SAME_ADDRESS, message, tuple(own), "error", _inbound_path(db, own[0], place))


def _inbound_path(db: Db, proxy: Key, place: InboundAddress) -> str:
    """Where the inbound stands in its Dataplane; those that are ignored count too."""
    resource = world.RESOURCES.get(db, proxy)
    written = ((resource.spec.get("networking") or {}).get("inbound") or ()) if resource else ()
    ports = [inbound.get("port") for inbound in written]
    return (
        item("networking.inbound", ports.index(place.port)) if place.port in ports else "networking.inbound"
    )


def outbounds_to_nowhere(db: Db, proxy: Key) -> Iterator[Problem]:
    """Outbounds of a stored Dataplane that lead nowhere."""
    resource = world.RESOURCES.get(db, proxy)
    if resource is not None:
        yield from leading_nowhere(db, resource)


def leading_nowhere(db: Db, proxy: Resource) -> Iterator[Problem]:
    """Outbounds of a Dataplane, stored or not, that lead nowhere: calls through them fail."""
    networking = proxy.spec.get("networking") or {}
    for index, outbound in enumerate(networking.get("outbound") or ()):
        wanted = world.outbound_ref(outbound)
        reason = _reason(db, proxy.key, wanted, outbound.get("tags") or {}) if wanted else ""
        if reason:
            message = f"the outbound on port {outbound.get('port')} of {proxy.key} leads nowhere: {reason}"
            yield Problem(OUTBOUND_TO_NOWHERE, message, (proxy.key,), path=item("networking.outbound", index))


def _reason(db: Db, proxy: Key, wanted: DestinationRef, said: Mapping[str, str]) -> str:
    """Why a reference leads nowhere; empty where it leads somewhere."""
    namespace = wanted.namespace or proxy.namespace
    found = world.referenced(db, proxy.mesh, wanted.kind, wanted.name, namespace, proxy.zone, wanted.labels)
    more = pairs({name: value for name, value in said.items() if name != tags.SERVICE})
    if found:
        return _no_port(db, found[0], wanted.port) or _no_tags(wanted.name, more, _tagged(db, found[0]))
    if wanted.labels:
        listed = ", ".join(f"{name}={value}" for name, value in wanted.labels)
        return f"no {wanted.kind} has the labels {listed}; correct them, or create such a service"
    if wanted.kind == "MeshService" and (namespace, wanted.name) in _to_be_made(db, proxy.mesh):
        return _no_tags(wanted.name, more, _serving(db, proxy.mesh, wanted.name))
    return f'there is no {wanted.kind} "{wanted.name}"; {_advice(db, proxy.mesh, wanted)}'


def _to_be_made(db: Db, mesh: str) -> Mapping[tuple[str, str], object]:
    """The MeshServices that the control plane makes of proxies, by namespace and name."""
    return dict(services.desired(db, mesh).services)


def _advice(db: Db, mesh: str, wanted: DestinationRef) -> str:
    of_kind = {key.name for key in world.BY_KIND.keys(db, (wanted.kind, mesh))}
    if wanted.name in of_kind:
        return "there is one in another namespace or zone: write a backendRef with its namespace or labels"
    if wanted.kind != "MeshService":
        near = difflib.get_close_matches(wanted.name, sorted(of_kind), n=1)
        return f'did you mean "{near[0]}"?' if near else "create it, or correct the name"
    if _serving(db, mesh, wanted.name):
        return "proxies serve it, but no MeshService is made of them: write one with this name"
    known = of_kind | {name for _, name in _to_be_made(db, mesh)}
    near = difflib.get_close_matches(wanted.name, sorted(known), n=1)
    return f'did you mean "{near[0]}"?' if near else "start a proxy that serves it, or correct the name"


def _no_port(db: Db, service: Key, number: int) -> str:
    target = world.destination(db, service)
    ports = target.ports if target else ()
    if any(number in (0, port.number) for port in ports):
        return ""
    if not ports:
        return f"{service} has no ports"
    listed = ", ".join(str(port.number) for port in ports)
    return f"{service} has no port {number}, only {listed}"


def _no_tags(service: str, more: Pairs, there: Iterable[Pairs]) -> str:
    """Why no endpoint fits; a service without any proxy just waits for one."""
    known = sorted(set(there))
    if not more or not known or any(set(more) <= set(own) for own in known):
        return ""
    asked = {name for name, _ in more}
    values = sorted({f"{name}={value}" for own in known for name, value in own if name in asked})
    listed = ", ".join(f"{name}={value}" for name, value in more)
    has = f"there is only {', '.join(values)}" if values else "they have no such tags"
    return f'no proxy of "{service}" has the tags {listed}; {has}: correct the tags, or start such a proxy'


def _tagged(db: Db, service: Key) -> Iterator[Pairs]:
    """The tags of a stored MeshService's endpoints, ready or not."""
    for key, sections in endpoints.selected(db, service) if service.kind == "MeshService" else ():
        yield from (_tags_of(key, inbound) for inbound in _inbounds(db, key) if inbound.section in sections)


def _serving(db: Db, mesh: str, service: str) -> list[Pairs]:
    """The tags of all inbounds that serve a service."""
    return [
        _tags_of(key, inbound)
        for key in network.BY_TAG.keys(db, (mesh, tags.SERVICE, service))
        for inbound in _inbounds(db, key)
        if dict(inbound.tags).get(tags.SERVICE) == service
    ]


def _inbounds(db: Db, proxy: Key) -> tuple[InboundNetworking, ...]:
    net = network.networking(db, proxy)
    return net.inbounds if net else ()


def _tags_of(proxy: Key, inbound: InboundNetworking) -> Pairs:
    """An endpoint's tags, by which outbounds choose: the inbound's own, and its zone."""
    return pairs({**dict(inbound.tags), **({tags.ZONE: proxy.zone} if proxy.zone else {})})
