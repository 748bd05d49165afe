"""Gateway routes: the route configurations of a gateway's HTTP listeners, and the virtual hosts of each.

Listeners of a port that speak HTTP share one configuration, since only the request says which of them it is
for. With HTTPS each has its own, chosen by server name: a request on it for a host of another one is
misdirected (421), so that its client opens a connection of its own for that.

Each virtual host is a resource of its own (`envoy.virtual_hosts`) and is encoded by a question of its own, so
that a change of one route touches one of them, however many there are. A question about a shard of them keeps
short what has to be looked at again.
"""

from collections.abc import Iterable, Iterator
from typing import Final
from zlib import crc32

import msgspec

from koguma.core.build import encoding, gateway_hosts, outbound_listeners, outbound_shards
from koguma.core.build.backends import BackendPort
from koguma.core.build.clusters import ClientContext
from koguma.core.build.gateway_hosts import HostSpec
from koguma.core.build.gateway_spec import GatewayPort, ServedListener
from koguma.core.gateways import HTTP_ROUTES
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy import names, snapshot, virtual_hosts
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model import hostname
from koguma.model.resource import Key
from koguma.model.schema import Json

_ERROR: Final[Data] = {"status": 500}
_SHARDS: Final = 64  # of the virtual hosts of one route configuration


class RoutesSpec(msgspec.Struct, frozen=True, cache_hash=True):
    """All that decides a route configuration of a gateway."""

    name: str
    gateway: Key
    shards: tuple[Group[HostSpec], ...]
    misdirected: tuple[str, ...]  # host names of other listeners, which are not served on its connections
    serves_any: bool  # whether there is a virtual host for hosts that have none of their own


class BuiltHosts(msgspec.Struct, frozen=True):
    """Some virtual hosts, and the backends that they need."""

    bundle: Bundle
    backends: tuple[BackendPort, ...]


@question
def specs(db: Db, port: GatewayPort, client: ClientContext) -> tuple[RoutesSpec, ...]:
    """The route configurations of a port; none where it does not speak HTTP."""
    name = encoding.kri(db, port.gateway, str(port.number))
    if not name or not port.listeners[0].listener.is_http:
        return ()
    if not port.listeners[0].listener.has_tls:
        every = (host for served in port.listeners for host in _host_specs(db, port, served, client))
        return (_spec(name, port.gateway, every),)
    return tuple(
        _spec(
            names.on_host(name, served.listener.hostname),
            port.gateway,
            _host_specs(db, port, served, client),
            hostname.misdirected(served.listener.hostname, port.hostnames),
        )
        for served in port.listeners
    )


def _spec(name: str, gateway: Key, hosts: Iterable[HostSpec], elsewhere: Iterable[str] = ()) -> RoutesSpec:
    by_shard: dict[int, list[HostSpec]] = {}
    own: set[str] = set()
    for spec in hosts:
        own.add(spec.host.hostname)
        by_shard.setdefault(crc32(spec.host.hostname.encode()) % _SHARDS, []).append(spec)
    misdirected = tuple(each for each in elsewhere if each not in own)
    shards = tuple(Group(by_shard[number]) for number in sorted(by_shard))
    return RoutesSpec(name, gateway, shards, misdirected, hostname.ANY in {*own, *misdirected})


def _host_specs(
    db: Db, port: GatewayPort, served: ServedListener, client: ClientContext
) -> Iterator[HostSpec]:
    """The virtual hosts of a listener."""
    name = encoding.kri(db, port.gateway, str(port.number))
    listener, routes = served.listener, served.of(*HTTP_ROUTES)
    for host in gateway_hosts.served(db, listener, routes, port.hostnames):
        yield HostSpec(
            port.gateway,
            name,
            listener,
            host,
            served.acting,
            client,
        )


@question
def configuration(db: Db, spec: RoutesSpec) -> Bundle:
    """A route configuration with its virtual hosts; one value for all proxies that share it."""
    hosts = (_hosts(db, spec.name, shard).bundle for shard in spec.shards)
    return outbound_shards.joined((_frame(db, spec), *hosts))


@question
def backends(db: Db, spec: RoutesSpec) -> tuple[BackendPort, ...]:
    """The backends that the routes of a configuration need."""
    hosts = (_hosts(db, spec.name, shard) for shard in spec.shards)
    return tuple(dict.fromkeys(port for each in hosts for port in each.backends))


def _frame(db: Db, spec: RoutesSpec) -> Bundle:
    """The route configuration itself, and answers to requests for hosts that have no routes in it."""
    data = {**envoy_routes.route_configuration(spec.name, []), "ignore_port_in_host_matching": True}
    frame = encoding.encoded(db, snapshot.ROUTES, spec.name, data, (), str(spec.gateway))
    built = [frame if isinstance(frame, Failure) else virtual_hosts.discovering(frame)]
    if spec.misdirected:
        built.append(_encoded(db, spec.name, spec.gateway, gateway_hosts.misdirected(spec.misdirected)))
    if not spec.serves_any:
        built.append(_encoded(db, spec.name, spec.gateway, gateway_hosts.NO_HOST))
    return encoding.bundled(built)


@question
def _hosts(db: Db, routes: str, hosts: Group[HostSpec]) -> BuiltHosts:
    """Some virtual hosts of a route configuration."""
    bundles = [_host(db, routes, spec) for spec in hosts]
    needed = dict.fromkeys(port for spec in hosts for port in gateway_hosts.virtual_host(db, spec).backends)
    return BuiltHosts(encoding.bundled(each for built in bundles for each in built), tuple(needed))


@question
def _host(db: Db, routes: str, spec: HostSpec) -> tuple[XdsResource | Failure, ...]:
    """A virtual host as a resource, and what of it could not be built."""
    built = gateway_hosts.virtual_host(db, spec)
    resource = _encoded(db, routes, spec.gateway, built.data, built.backends)
    if not isinstance(resource, Failure):
        return resource, *built.failures
    data, broken = _without_broken(db, routes, built.data)
    return _encoded(db, routes, spec.gateway, data, built.backends), *built.failures, *broken


def _encoded(
    db: Db, routes: str, gateway: Key, data: Data, backend_ports: Iterable[BackendPort] = ()
) -> XdsResource | Failure:
    name = names.virtual_host(routes, data["name"])
    needs = outbound_listeners.cluster_ids(db, backend_ports)
    return encoding.encoded(db, snapshot.VIRTUAL_HOST, name, {**data, "name": name}, needs, str(gateway))


def _without_broken(db: Db, routes: str, host: Data) -> tuple[Data, tuple[Failure, ...]]:
    """A virtual host whose routes can be encoded, with an error in place of each that cannot."""
    working: list[Data] = []
    failures: list[Failure] = []
    for route in host["routes"]:
        failure = _failure(db, routes, route)
        if failure is None:
            working.append(route)
            continue
        failures.append(failure)
        answer = {"match": route.get("match"), "name": str(route.get("name")), "direct_response": _ERROR}
        if _failure(db, routes, answer) is None:
            working.append(answer)
    return {**host, "routes": working}, tuple(failures)


def _failure(db: Db, routes: str, route: Json) -> Failure | None:
    """Why a route cannot be encoded."""
    one = envoy_routes.virtual_host("one", [route])
    resource = encoding.encoded(db, snapshot.VIRTUAL_HOST, names.virtual_host(routes, "one"), one)
    if not isinstance(resource, Failure):
        return None
    return Failure("route", str(route.get("name")), resource.text, str(route.get("name")))
