"""Gateway hosts: the virtual hosts of a gateway's HTTP listeners, each with its routes.

A virtual host is built by a question of its own, so that a change of one route builds one of them again; they
are joined to a route configuration last (`gateway_routes`).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import gateways, items, world
from koguma.core import routes as route_rules
from koguma.core.build import gateway_filters, gateway_overlays, outbound_routes
from koguma.core.build.backends import BackendPort, OriginalDestination
from koguma.core.build.clusters import ClientContext
from koguma.core.build.gateway_overlays import RouteTarget
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.gateways import Listener
from koguma.core.incremental import Db, question
from koguma.core.items import Entries, ItemId
from koguma.core.policy_set import Policies
from koguma.core.routes import Candidate
from koguma.envoy import names
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure
from koguma.model import hostname
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key
from koguma.model.schema import Json

# How long an answer may take is for a MeshTimeout to say: an edge serves downloads and event streams too.
_DEFAULT_ACTION: Final[Data] = {"timeout": "0s"}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class HostRoutes(msgspec.Struct, frozen=True):
    """A host name that a listener serves, and the entries of routes for it, by the routes' own host names."""

    hostname: str
    routes: tuple[tuple[str, Entries], ...]  # most exact host name first; entries in ascending precedence


@question
def served(db: Db, listener: Listener, routes: Policies, port: tuple[str, ...]) -> tuple[HostRoutes, ...]:
    """The host names that a listener serves, most exact first; `port` are those of all of its port."""
    attached = gateways.attached(db, routes).members
    found = hostname.virtual_hosts(listener.hostname, [each.hostnames for each in attached], port)
    return tuple(HostRoutes(host.hostname, tuple(_by_hostname(host, attached))) for host in found)


def _by_hostname(
    host: hostname.VirtualHost, attached: tuple[gateways.AttachedRoute, ...]
) -> Iterator[tuple[str, Entries]]:
    by_hostname: dict[str, list[ItemId]] = {}
    for route in host.routes:
        by_hostname.setdefault(route.hostname, []).append(attached[route.index].entry)
    for name, entries in by_hostname.items():
        yield name, tuple(reversed(entries))


class HostSpec(msgspec.Struct, frozen=True, cache_hash=True):
    """All that decides a virtual host of a gateway; equal for all proxies that share it."""

    gateway: Key
    port_name: str  # of the listener in Envoy
    listener: Listener
    host: HostRoutes
    policies: gateway_overlays.ListenerPolicies
    client: ClientContext


class BuiltHost(msgspec.Struct, frozen=True):
    """A virtual host, the backends that its routes need, and what of it could not be built."""

    data: Data
    backends: tuple[BackendPort, ...] = ()
    failures: tuple[Failure, ...] = ()


@question
def virtual_host(db: Db, spec: HostSpec) -> BuiltHost:
    """The virtual host of a host name; requests that no route takes are answered with 404."""
    original = OriginalDestination(
        Key(spec.gateway.kind, spec.gateway.mesh, spec.client.zone, "", spec.gateway.name), ""
    )
    of_listener = gateway_overlays.of(db, spec.policies, _where(spec))
    built: list[Data] = []
    needed: dict[BackendPort, None] = {}
    failures: dict[Failure, None] = {}
    for candidate in _candidates(db, spec):
        backends: dict[BackendPort, None] = {}
        of_candidate = outbound_routes.of_candidate(db, candidate, original, backends)
        needed |= backends
        policy_overlays = _of_route(db, spec, candidate, tuple(backends))
        failures |= dict.fromkeys(policy_overlays.failures)
        conf = candidate.rule.conf or {}
        for route in of_candidate:
            with_policies = outbound_routes.with_overlays(route, policy_overlays, conf, _DEFAULT_ACTION)
            built.append(gateway_filters.on_route(with_policies, policy_overlays, of_listener))
    refused: tuple[Failure, ...] = ()
    if not spec.client.machine.reads_data:
        built, refused = outbound_routes.without_machine_data(built)
    name = spec.host.hostname
    data = envoy_routes.virtual_host(name, built or [NOT_FOUND], (name,))
    return BuiltHost(gateway_filters.on_host(data, of_listener), tuple(needed), (*failures, *refused))


def _where(spec: HostSpec, protocol: str = "http") -> OverlayContext:
    return spec.client.where(protocol, spec.port_name, is_gateway=True)


def _of_route(
    db: Db, spec: HostSpec, candidate: Candidate, backends: tuple[BackendPort, ...]
) -> PolicyOverlays:
    """What policies say about a rule's route: about its only backend, too, and in that one's protocol."""
    ports = {(each.destination, each.section) for each in backends}
    backend = next(iter(backends)) if len(ports) == 1 else None
    known = world.port(db, backend.destination, backend.section) if backend else None
    is_grpc = known is not None and known.protocol == "grpc"
    target = RouteTarget(candidate.rule.origin, backend)
    return gateway_overlays.of_route(db, spec.policies, _where(spec, "grpc" if is_grpc else "http"), target)


def _candidates(db: Db, spec: HostSpec) -> Iterator[Candidate]:
    """Every match of every rule in the order in which a request tries them."""
    for _, entries in spec.host.routes:
        merged = [route_rules.resolved(rule)[0] for rule in items.route_rules(db, entries)]
        for candidate in route_rules.ranked(merged):
            yield _with_redirects(candidate, spec)


def _with_redirects(candidate: Candidate, spec: HostSpec) -> Candidate:
    conf: Mapping[str, Json] = candidate.rule.conf or {}
    filters = conf.get("filters") or []
    if not any(each.get("type") == "RequestRedirect" for each in filters):
        return candidate
    rewritten = [_redirect(each, spec) for each in filters]
    rule = msgspec.structs.replace(candidate.rule, conf={**conf, "filters": rewritten})
    return msgspec.structs.replace(candidate, rule=rule)


def _redirect(filter_: Json, spec: HostSpec) -> Json:
    """A redirect as the Gateway API means it: to the scheme's port where it names one, else to this port.

    A port that is its scheme's own is not written. Envoy keeps the port that the client wrote, unless it is
    given another or a whole host.
    """
    written = filter_.get("requestRedirect")
    if filter_.get("type") != "RequestRedirect" or not written:
        return filter_
    own_scheme, own_port = "https" if spec.listener.protocol == "HTTPS" else "http", spec.listener.port
    scheme = written.get("scheme") or own_scheme
    port = written.get("port") or (_DEFAULT_PORTS.get(scheme) if written.get("scheme") else own_port)
    redirect = {**written, "port": port}
    if port == _DEFAULT_PORTS.get(scheme):
        is_host_known = bool(written.get("hostname")) or not hostname.is_wildcard(spec.host.hostname)
        if is_host_known:
            redirect["hostname"] = written.get("hostname") or spec.host.hostname
        if is_host_known or own_port == _DEFAULT_PORTS[own_scheme]:
            redirect["port"] = None
    return {**filter_, "requestRedirect": redirect}


def _answer(name: str, status: int) -> Data:
    return {
        "name": name,
        "stat_prefix": name,
        "match": {"prefix": "/"},
        "direct_response": {"status": status},
    }


NOT_FOUND: Final = _answer(names.NOT_FOUND, 404)
MISDIRECTED: Final = _answer(names.MISDIRECTED, 421)
NO_HOST: Final = envoy_routes.virtual_host(names.NOT_FOUND, [NOT_FOUND])


def misdirected(hostnames: tuple[str, ...]) -> Data:
    """The virtual host for hosts of other listeners of a port, which need a connection of their own."""
    return envoy_routes.virtual_host(names.MISDIRECTED, [MISDIRECTED], hostnames)
