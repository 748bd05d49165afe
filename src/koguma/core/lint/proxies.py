"""Proxies: Dataplanes that are called at the same address as another one, and dangling outbounds.

Two Dataplanes conflict where one zone calls both at one address and port, in any mesh; at a loopback address,
within one mesh. The addresses that they listen on are not compared: behind an `advertisedAddress` each may
have a network of its own, and so may each zone. An inbound that is not ready is not called, so it conflicts
with none.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koguma.core import match, services, world
from koguma.core.build import endpoints, external, network
from koguma.core.build.network import InboundAddress, InboundNetworking
from koguma.core.incremental import Db
from koguma.core.lint.problem import OUTBOUND_TO_NOWHERE, SAME_ADDRESS, Problem
from koguma.core.world import DestinationRef, Pairs, pairs
from koguma.model import tags
from koguma.model.resource import Key, Resource
from koguma.model.violation import item

_NAMED_MAX: Final = 3
_PAIR: Final = 2


def same_address(db: Db, proxy: Key) -> Iterator[Problem]:
    """Ready inbounds of a Dataplane that are called at the address and port of another Dataplane."""
    net = network.networking(db, proxy)
    addresses = (
        [network.inbound_address(proxy, each) for each in net.inbounds if each.is_ready] if net else []
    )
    for address in dict.fromkeys(addresses):
        dataplanes = network.BY_INBOUND_ADDRESS.keys(db, address)
        if len(dataplanes) > 1:
            yield _same_address(
                db, address, [key for key in dataplanes if key.mesh == proxy.mesh], len(dataplanes)
            )


def _same_address(db: Db, address: InboundAddress, dataplanes: list[Key], n_all: int) -> Problem:
    """The problem for the Dataplanes of one mesh; those of other meshes are counted and not named."""
    named = [str(key) for key in dataplanes[:_NAMED_MAX]]
    n_more = len(dataplanes) - len(named)
    named += [f"{n_more} more of this mesh"] if n_more else []
    n_elsewhere = n_all - len(dataplanes)
    if n_elsewhere:
        named.append("a Dataplane of another mesh" if n_elsewhere == 1 else f"{n_elsewhere} of other meshes")
    host = f"[{address.address}]" if ":" in address.address else address.address
    message = (
        f"{', '.join(named[:-1])} and {named[-1]} are {'all' if n_all > _PAIR else 'both'} reached at"
        f" {host}:{address.port}, so that calls to one of them can"
        " be answered by another; give each a port or an address of its own"
    )
    return Problem(
        SAME_ADDRESS, message, tuple(dataplanes), "error", _inbound_path(db, dataplanes[0], address)
    )


def _inbound_path(db: Db, proxy: Key, address: InboundAddress) -> str:
    """The path of an inbound in its Dataplane; ignored inbounds count in its index."""
    resource = world.RESOURCES.get(db, proxy)
    inbounds = ((resource.spec.get("networking") or {}).get("inbound") or ()) if resource else ()
    ports = [inbound.get("port") for inbound in inbounds]
    return (
        item("networking.inbound", ports.index(address.port))
        if address.port in ports
        else "networking.inbound"
    )


def stored_dangling_outbounds(db: Db, proxy: Key) -> Iterator[Problem]:
    """Dangling outbounds of a stored Dataplane."""
    resource = world.RESOURCES.get(db, proxy)
    if resource is not None:
        yield from dangling_outbounds(db, resource)


def dangling_outbounds(db: Db, proxy: Resource) -> Iterator[Problem]:
    """Dangling outbounds of a Dataplane, stored or not: calls through them fail."""
    networking = proxy.spec.get("networking") or {}
    for index, outbound in enumerate(networking.get("outbound") or ()):
        ref = world.outbound_ref(outbound)
        if ref is None:
            continue
        reason = _reason(db, proxy.key, ref, outbound.get("tags") or {}) or _loop(db, proxy, ref)
        if reason:
            message = f"the outbound on port {outbound.get('port')} of {proxy.key} leads nowhere: {reason}"
            yield Problem(OUTBOUND_TO_NOWHERE, message, (proxy.key,), path=item("networking.outbound", index))


def unselected_gateway(db: Db, proxy: Resource) -> str:
    """Why a built-in gateway, stored or not, listens nowhere; empty where a MeshGateway selects it."""
    gateway = (proxy.spec.get("networking") or {}).get("gateway") or {}
    own = pairs(gateway.get("tags"))
    if gateway.get("type") != "BUILTIN" or match.gateway_of(db, proxy.mesh, proxy.key.zone, own) is not None:
        return ""
    listed = ", ".join(f"{name}={value}" for name, value in own)
    return f"no MeshGateway selects the tags {listed} of {proxy.key}: it listens on no port until one does"


def _reason(db: Db, proxy: Key, ref: DestinationRef, outbound_tags: Mapping[str, str]) -> str:
    """Why an outbound is dangling; empty where it resolves."""
    namespace = ref.namespace or proxy.namespace
    destinations = world.referenced(db, proxy.mesh, ref.kind, ref.name, namespace, proxy.zone, ref.labels)
    subset = pairs({name: value for name, value in outbound_tags.items() if name != tags.SERVICE})
    if destinations:
        return _no_port(db, destinations[0], ref.port) or _no_tags(
            ref.name, subset, _tagged(db, destinations[0])
        )
    if ref.labels:
        listed = ", ".join(f"{name}={value}" for name, value in ref.labels)
        return f"no {ref.kind} has the labels {listed}; correct them, or create such a service"
    if ref.kind == "MeshService" and (namespace, ref.name) in _generated_services(db, proxy.mesh):
        return _no_tags(ref.name, subset, _serving(db, proxy.mesh, ref.name))
    return f'there is no {ref.kind} "{ref.name}"; {_advice(db, proxy.mesh, ref)}'


def _generated_services(db: Db, mesh: str) -> Mapping[tuple[str, str], object]:
    """The MeshServices that the control plane generates, by namespace and name."""
    return dict(services.desired(db, mesh).services)


def _advice(db: Db, mesh: str, ref: DestinationRef) -> str:
    names = {key.name for key in world.BY_KIND.keys(db, (ref.kind, mesh))}
    if ref.name in names:
        return "there is one in another namespace or zone: write a backendRef with its namespace or labels"
    if ref.kind != "MeshService":
        near = difflib.get_close_matches(ref.name, sorted(names), n=1)
        return f'did you mean "{near[0]}"?' if near else "create it, or correct the name"
    if _serving(db, mesh, ref.name):
        return "proxies serve it, but no MeshService is made of them: write one with this name"
    known = names | {name for _, name in _generated_services(db, mesh)}
    near = difflib.get_close_matches(ref.name, sorted(known), n=1)
    return f'did you mean "{near[0]}"?' if near else "start a proxy that serves it, or correct the name"


def _loop(db: Db, proxy: Resource, ref: DestinationRef) -> str:
    """Why a service that sends calls on to where they were addressed cannot be called on an own port.

    With a transparent proxy an outbound only says what may be called.
    """
    proxying = (proxy.spec.get("networking") or {}).get("transparentProxying") or {}
    namespace = ref.namespace or proxy.key.namespace
    found = world.referenced(db, proxy.key.mesh, ref.kind, ref.name, namespace, proxy.key.zone, ref.labels)
    if proxying.get("redirectPortOutbound") or not any(external.is_passthrough(db, key) for key in found[:1]):
        return ""
    return f"{found[0]}: {external.LOOP}"


def _no_port(db: Db, service: Key, number: int) -> str:
    target = world.destination(db, service)
    ports = target.ports if target else ()
    if any(number in (0, port.number) for port in ports):
        return ""
    if not ports:
        return f"{service} has no ports"
    listed = ", ".join(str(port.number) for port in ports)
    return f"{service} has no port {number}, only {listed}"


def _no_tags(service: str, subset: Pairs, tag_sets: Iterable[Pairs]) -> str:
    """Why no endpoint has the tags; empty for a service without proxies, which may come later."""
    known = sorted(set(tag_sets))
    if not subset or not known or any(set(subset) <= set(own) for own in known):
        return ""
    subset_keys = {name for name, _ in subset}
    values = sorted({f"{name}={value}" for own in known for name, value in own if name in subset_keys})
    listed = ", ".join(f"{name}={value}" for name, value in subset)
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
