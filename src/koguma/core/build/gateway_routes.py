"""Gateway routes: the route configurations of a gateway's HTTP listeners, joined from virtual hosts.

Listeners of a port that speak HTTP share one configuration, since only the request says which of them it is
for. With HTTPS each has its own, chosen by server name: a request on it for a host of another one is
misdirected (421), so that its client opens a connection of its own for that.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.core.build import encoding, gateway_hosts, gateway_overlays, outbound_listeners
from koguma.core.build.backends import BackendPort
from koguma.core.build.clusters import ClientContext
from koguma.core.build.gateway_hosts import BuiltHost, HostSpec
from koguma.core.build.gateway_spec import GatewayPort, ServedListener
from koguma.core.gateways import HTTP_ROUTES
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy import names, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, XdsResource
from koguma.model import hostname
from koguma.model.schema import Json

_ERROR: Final[Data] = {"status": 500}


class RoutesSpec(msgspec.Struct, frozen=True, cache_hash=True):
    """All that decides a route configuration of a gateway."""

    name: str
    hosts: Group[HostSpec]
    misdirected: tuple[
        str, ...
    ] = ()  # host names of other listeners, which are not served on its connections


class BuiltRoutes(msgspec.Struct, frozen=True):
    """A route configuration, and the backends that it needs."""

    resources: tuple[XdsResource | Failure, ...]
    backends: tuple[BackendPort, ...]


def specs(db: Db, port: GatewayPort, client: ClientContext) -> Iterator[RoutesSpec]:
    """The route configurations of a port; none where it does not speak HTTP."""
    name = encoding.kri(db, port.gateway, str(port.number))
    if not name or not port.listeners[0].listener.is_http:
        return
    if port.protocol == "HTTP":
        every = (host for served in port.listeners for host in host_specs(db, port, served, client))
        yield RoutesSpec(name, Group(every))
        return
    for served in port.listeners:
        own = served.listener.hostname
        hosts = host_specs(db, port, served, client)
        elsewhere = hostname.misdirected(own, port.hostnames)
        yield RoutesSpec(names.on_host(name, own), Group(hosts), elsewhere)


def host_specs(
    db: Db, port: GatewayPort, served: ServedListener, client: ClientContext
) -> Iterator[HostSpec]:
    """The virtual hosts of a listener."""
    name = encoding.kri(db, port.gateway, str(port.number))
    of_listener = gateway_overlays.of(db, served, client.where("http", name))
    listener, routes = served.listener, served.of(*HTTP_ROUTES)
    for host in gateway_hosts.served(db, listener, routes, port.hostnames):
        yield HostSpec(
            port.gateway,
            client.zone,
            listener,
            host,
            of_listener.listener,
            of_listener.routes,
            client.machine.reads_data,
        )


@question
def configuration(db: Db, spec: RoutesSpec) -> BuiltRoutes:
    """A route configuration; one value for all proxies that share it."""
    hosts = [gateway_hosts.virtual_host(db, host) for host in spec.hosts]
    backends = tuple(dict.fromkeys(port for host in hosts for port in host.backends))
    needs = outbound_listeners.cluster_ids(db, backends)
    gateway = next(iter(spec.hosts)).gateway
    data = _data(spec, [host.data for host in hosts])
    resource = encoding.encoded(db, snapshot.ROUTES, spec.name, data, needs, str(gateway))
    failures = tuple(failure for host in hosts for failure in host.failures)
    if isinstance(resource, Failure):
        working, broken = _without_broken(db, spec, hosts)
        data = _data(spec, working)
        failures = (*failures, *broken)
        resource = encoding.encoded(db, snapshot.ROUTES, spec.name, data, needs, str(gateway))
    return BuiltRoutes((resource, *failures), backends)


def _data(spec: RoutesSpec, hosts: list[Data]) -> Data:
    every = {domain for host in hosts for domain in host["domains"]}
    elsewhere = tuple(name for name in spec.misdirected if name not in every)
    if elsewhere:
        hosts = [*hosts, gateway_hosts.misdirected(elsewhere)]
    if hostname.ANY not in {*every, *elsewhere}:
        hosts = [*hosts, gateway_hosts.NO_HOST]
    config = envoy_routes.route_configuration(spec.name, hosts)
    return {**config, "ignore_port_in_host_matching": True}


def _without_broken(
    db: Db, spec: RoutesSpec, hosts: list[BuiltHost]
) -> tuple[list[Data], tuple[Failure, ...]]:
    """Virtual hosts whose routes can be encoded, each with an error in place of a route that cannot."""
    working: list[Data] = []
    failures: list[Failure] = []
    for host in hosts:
        routes = []
        for route in host.data["routes"]:
            failure = _failure(db, spec, route)
            if failure is None:
                routes.append(route)
                continue
            failures.append(failure)
            answer = {"match": route.get("match"), "name": str(route.get("name")), "direct_response": _ERROR}
            if _failure(db, spec, answer) is None:
                routes.append(answer)
        working.append({**host.data, "routes": routes})
    return working, tuple(failures)


def _failure(db: Db, spec: RoutesSpec, route: Json) -> Failure | None:
    """Why a route cannot be encoded."""
    config = envoy_routes.route_configuration(spec.name, [envoy_routes.virtual_host("one", [route])])
    resource = encoding.encoded(db, snapshot.ROUTES, spec.name, config)
    if not isinstance(resource, Failure):
        return None
    return Failure("route", str(route.get("name")), resource.text, str(route.get("name")))
