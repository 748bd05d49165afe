"""What people are shown is what Envoy gets: each value of a shown conf stands in the built configuration.

For random meshes, every field that `inspect` and `rules_view` show for a proxy's outbounds, routes, inbounds
or the proxy as a whole, and for which `shown_fields` knows the place, is looked up in the proxy's snapshot.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any

import building
import msgspec
import pytest
import random_meshes
from building import at
from shown_fields import INBOUND, OUTBOUND, WHOLE, Field

from koguma.core import inspect, rules, rules_view, world
from koguma.core.build import external, gateway_spec, network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.core.meta import kri
from koguma.core.rules import PortRules
from koguma.envoy import names
from koguma.model import documents
from koguma.model.errors import Invalid
from koguma.model.resource import Key, Resource

pytestmark = pytest.mark.slow

N_MESHES = 54
N_OBJECTS = 140
ROUTES = ("r1", "r2")
NODE = NodeMetadata(("feature-bind-outbounds",), "/w", 9901)
# What a conf needs before its other fields act, or are legal.
NEEDED: Mapping[str, Any] = {
    "MeshHealthCheck": {"http": {"path": "/"}, "grpc": {"authority": "x"}, "tcp": {"disabled": False}},
    "MeshTrace": {"backends": [{"type": "Zipkin", "zipkin": {"url": "http://zipkin:9411/api/v2/spans"}}]},
    "MeshRateLimit": {"local": {"tcp": {"connectionRate": {"num": 9, "interval": "9s"}}}},
}
Envoy = Mapping[str, Mapping[str, Any]]  # resources as plain data, by type and name
Shown = Iterable[tuple[str, Mapping[str, Any]]]  # by kind: the values of fields, by path


# Meshes.


def mesh(seed: int) -> Db:
    random = Random(seed)
    table_kinds = {row.kind for row in (*OUTBOUND, *INBOUND, *WHOLE)}
    resources: dict[Key, Resource] = {}
    for _ in range(N_OBJECTS):
        drawn = random_meshes.resource(random)
        if drawn is None or drawn.kind in table_kinds or random.random() < 0.5:
            drawn = policy(random)
        elif random.random() < 0.3:
            drawn = route(random)
        elif random.random() < 0.1:
            drawn = random_meshes.gateway_api_route(random)
        elif random.random() < 0.3:
            drawn = random_meshes.resource(random, "MeshExternalService")
        if drawn is not None and drawn.kind == "Mesh":  # with an egress, some of it is in the egress's Envoy
            drawn = msgspec.structs.replace(drawn, spec={**drawn.spec, "routing": {}})
        if drawn is not None and drawn.kind != "MeshProxyPatch":  # which changes what policies say
            resources[drawn.key] = drawn
    db = building.database(resources.values())
    for key in building.dataplanes(db):
        db.set(network.NODE_METADATA, key, NODE)
    return db


def route(random: Random) -> Resource:
    """A route with the same backends as the service, so that it has actions."""
    path = {"type": "PathPrefix", "value": random.choice(["/x", "/y"])}
    to = {"kind": "MeshService", "name": random.choice(random_meshes.SERVICES)}
    spec = {"to": [{"targetRef": to, "rules": [{"matches": [{"path": path}], "default": {}}]}]}
    name = random.choice(ROUTES)
    return building.stored({"type": "MeshHTTPRoute", "mesh": "default", "name": name, "spec": spec})


def policy(random: Random) -> Resource | None:
    """A policy that sets some fields of the tables."""
    rows = random.choice([OUTBOUND, OUTBOUND, INBOUND, WHOLE])
    kind = random.choice(sorted({row.kind for row in rows}))
    sidecars = {"kind": "Mesh", "proxyTypes": ["Sidecar"]}
    gateways = random.choice(
        [{"kind": "MeshGateway", "name": "edge"}, {"kind": "Mesh", "proxyTypes": ["Gateway"]}]
    )
    top = random.choice([sidecars, sidecars, {"kind": "Dataplane", "labels": {"team": "x"}}, gateways])
    drawn = conf(random, kind, [row for row in rows if row.kind == kind])
    spec: dict[str, Any] = {"targetRef": top}
    if rows is OUTBOUND:
        spec["to"] = [{"targetRef": target(random), "default": drawn}]
    elif rows is INBOUND:
        spec["rules"] = [{"default": drawn}]
    else:
        spec["default"] = drawn
    name = f"{kind.lower()}-{random.randint(1, 3)}"
    try:
        return building.stored({"type": kind, "mesh": "default", "name": name, "spec": spec})
    except Invalid:
        return None


def target(random: Random) -> dict[str, Any]:
    service = {"kind": "MeshService", "name": random.choice(random_meshes.SERVICES)}
    route = {"kind": "MeshHTTPRoute", "name": random.choice(ROUTES)}
    return random.choice([{"kind": "Mesh"}, service, {**service, "kind": "MeshExternalService"}, route])


def conf(random: Random, kind: str, rows: list[Field]) -> dict[str, Any]:
    drawn: dict[str, Any] = deepcopy(NEEDED.get(kind, {}))
    for row in random.sample(rows, random.randint(1, min(8, len(rows)))):
        put(drawn, row.path, random.choice(row.values))
        if row.when[0]:
            put(drawn, *row.when)
    return drawn


def put(conf: dict[str, Any], path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        conf = conf.setdefault(step, {})
    conf[last] = value


# What is shown.


def leaves(policies: Iterable[Any]) -> Shown:
    """The fields that acting policies set; who set a field says the same value as the conf."""
    for entry in policies:
        (shown,) = entry["conf"] if isinstance(entry["conf"], list) else (entry["conf"],)
        origins = entry["fieldOrigins"]
        for path, origin in origins.items():
            assert value_at(shown, path) == origin["value"], path
        by_policies = {path: each["value"] for path, each in origins.items() if "setByRules" not in each}
        yield entry["kind"], by_policies


def set_by_rules(policies: Iterable[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """The fields that rules of a route set instead of policies: kind, path, and all values that act."""
    for entry in policies:
        for path, origin in entry["fieldOrigins"].items():
            instead = origin.get("setByRules", ())
            if instead:
                own = [origin["value"]] if origin["acts"] else []
                yield entry["kind"], path, [*own, *(each["value"] for each in instead)]


def value_at(value: Any, path: str) -> Any:
    for step in documents.steps(path):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


# What is built.


def parts(envoy: Envoy, name: str) -> dict[str, Any]:
    """The parts of the listener of that name, and its cluster."""
    found: dict[str, Any] = {"cluster": envoy["cluster"].get(name)}
    for listener in envoy["listener"].values():  # addresses and server names of external services
        if names.is_redirected(listener["name"]):
            for chain in listener["filter_chains"]:
                config = chain["filters"][-1]["typed_config"]
                if config["stat_prefix"] == name:
                    found["tcp"] = config
    for chain in envoy["listener"].get(name, {}).get("filter_chains", ()):
        if "transport_socket" in chain:
            found["tls"] = chain["transport_socket"]["typed_config"]
        for each in chain["filters"]:
            if each["name"] == "envoy.filters.network.http_connection_manager":
                found["hcm"] = each["typed_config"]
            elif each["name"] == "envoy.filters.network.tcp_proxy":
                found.setdefault("tcp", each["typed_config"])
    return found


def actions(envoy: Envoy, name: str, route: str) -> Iterator[Any]:
    """The actions of routes with the name of a policy, or of those for what no rule is about."""
    hosts = list(envoy["routes"].get(name, {}).get("virtual_hosts", ()))
    for config in envoy["routes"].values():  # hosts of external services that share a port
        if names.is_redirected(config["name"]):
            hosts += [host for host in config["virtual_hosts"] if host["name"] == name]
    for host in hosts:
        for each in host["routes"]:
            if each.get("name") == route and "route" in each and "filter_state" not in each["match"]:
                yield each["route"]


class Compared:
    """Compares shown values with built ones, and counts by row."""

    def __init__(self) -> None:
        self.rows: Counter[Field] = Counter()
        self.wrong: list[str] = []

    def compare(self, rows: tuple[Field, ...], shown: Shown, built: Mapping[str, Any], protocol: str) -> None:
        for kind, values in shown:
            for row in rows:
                if row.kind != kind or protocol not in row.protocols or built.get(row.part) is None:
                    continue
                path, value = row.when
                if row.path in values and (not path or values.get(path) == value):
                    expected, actual = row.envoy(values[row.path]), at(built[row.part], row.at)
                    self.rows[row] += 1
                    if expected != actual:
                        self.wrong.append(f"{kind} {row.path}: shown {expected}, built {actual}")


def outbounds(db: Db, proxy: Key, envoy: Envoy, compared: Compared, on_routes: Compared) -> None:
    """Calls to each port, and through each route to it."""
    for destination in world.destinations(db, proxy.mesh):
        for port in destination.ports:
            called = inspect.outbound(db, proxy, destination.key, port.section)
            if called is not None:
                one_outbound(db, called, port.protocol, envoy, compared)
                through_routes(db, called, port.protocol, envoy, on_routes)


def one_outbound(db: Db, port: PortRules, protocol: str, envoy: Envoy, compared: Compared) -> None:
    name = kri(db, port.destination, port.section)
    built = parts(envoy, name)
    shown = list(leaves(inspect.outbound_policies(db, port, fields=True)["policies"]))
    if external.is_passthrough(db, port.destination):  # it has one endpoint, so there is nothing to balance
        shown = [each for each in shown if each[0] != "MeshLoadBalancingStrategy"]
    if (built["cluster"] or {}).get("type") == "ORIGINAL_DST":  # there is nothing to balance
        shown = [(kind, values) for kind, values in shown if kind != "MeshLoadBalancingStrategy"]
    compared.compare(OUTBOUND, shown, {"cluster": built["cluster"], "hcm": built.get("hcm")}, protocol)
    if rules.protocol(db, port) != "tcp":  # else connections are routed
        for action in actions(envoy, name, names.ROUTE_DEFAULT):
            compared.compare(OUTBOUND, shown, {"route": action}, protocol)
    if not inspect.outbound_routes(db, port)["routes"]:
        compared.compare(OUTBOUND, shown, {"tcp": built.get("tcp")}, "tcp")


def through_routes(db: Db, port: PortRules, protocol: str, envoy: Envoy, compared: Compared) -> None:
    name = kri(db, port.destination, port.section)
    for routes in inspect.outbound_routes(db, port)["routes"]:
        for key in dict.fromkeys(entry.policy for entry in (*port.http, *port.tcp)):
            shown = list(leaves(inspect.route_policies(db, port, key, fields=True)["policies"]))
            built = list(actions(envoy, name, kri(db, key)))
            for action in built:
                compared.compare(OUTBOUND, shown, {"route": action}, protocol)
            policies = inspect.route_policies(db, port, key, fields=True)["policies"]
            for kind, path, values in set_by_rules(policies) if built else ():
                if path.endswith("Timeout"):  # else a whole `retry` comes instead
                    compare_rules(protocol, kind, path, values, built)
            if routes["kind"] == "MeshTCPRoute" and key == port.tcp[-1].policy:
                compared.compare(OUTBOUND, shown, {"tcp": parts(envoy, name).get("tcp")}, "tcp")


def compare_rules(protocol: str, kind: str, path: str, values: list[Any], built: list[Any]) -> None:
    """Every value that is shown for some rule of a route acts on one, and no other does."""
    rows = [row for row in OUTBOUND if (row.kind, row.path, row.part) == (kind, path, "route")]
    for row in (row for row in rows if protocol in row.protocols):
        assert {at(action, row.at) for action in built} <= {*map(row.envoy, values)}, (kind, path)


def inbounds(db: Db, proxy: Key, envoy: Envoy, compared: Compared) -> None:
    """Calls that arrive, whoever calls: the merged rules without a match."""
    protocols = {each["port"]: each for each in inspect.layout(db, proxy)["inbounds"]}
    for by_kind in rules_view.of_proxy(db, proxy, fields=True)["rules"]:
        for at_inbound in by_kind["inboundRules"]:
            layout = protocols[at_inbound["inbound"]["port"]]
            name, protocol = layout["kri"], layout["protocol"]
            built = parts(envoy, name)
            section = names.connection_limit(name.rpartition("_")[2])
            built["extension"] = envoy["extension"].get(section)
            built["route"] = next(actions(envoy, name, names.ROUTE_DEFAULT), None)
            for rule in at_inbound["rules"]:
                if "match" not in rule:
                    values = {path: origin["value"] for path, origin in rule["origins"].items()}
                    compared.compare(INBOUND, [(by_kind["type"], values)], built, protocol)


def whole_proxy(db: Db, proxy: Key, envoy: Envoy, compared: Compared) -> None:
    """What is shown for the proxy as a whole acts on each of its HTTP listeners."""
    shown = list(leaves(inspect.whole_policies(db, proxy, fields=True)["policies"]))
    layout = inspect.layout(db, proxy)
    for port in (*layout["inbounds"], *layout["outbounds"]):
        compared.compare(WHOLE, shown, {"hcm": parts(envoy, port["kri"]).get("hcm")}, "http")


def gateway_hosts(db: Db, proxy: Key, envoy: Envoy) -> int:
    """The hosts of a gateway are those that are shown, with no other routes."""
    shown: dict[str, dict[str, set[str]]] = {}
    for listener in inspect.layout(db, proxy)["listeners"]:
        if listener["protocol"] in ("HTTP", "HTTPS"):
            is_shared = listener["protocol"] == "HTTP" and "crossMesh" not in listener
            config = listener["kri"] if is_shared else names.on_host(listener["kri"], listener["hostname"])
            if "crossMesh" in listener and config not in envoy["routes"]:
                continue  # the mesh has no mTLS
            for host in listener["hosts"]:
                shown.setdefault(config, {})[host["hostname"]] = {each["kri"] for each in host["routes"]}
    built = {config: dict(built_hosts(envoy["routes"][config])) for config in shown}
    assert {config: set(hosts) for config, hosts in built.items()} == {c: set(h) for c, h in shown.items()}
    for config, hosts in built.items():
        for hostname, found in hosts.items():
            assert found <= shown[config][hostname], (config, hostname)
    return sum(map(len, built.values()))


def built_hosts(config: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    for host in config.get("virtual_hosts", ()):
        if not host["name"].endswith((names.NOT_FOUND, names.MISDIRECTED)):
            yield host["domains"][0], {route["name"] for route in host["routes"]} - {names.NOT_FOUND}


@pytest.mark.property
def test_every_shown_value_stands_in_what_envoy_gets() -> None:
    outbound, through_route, inbound, whole = Compared(), Compared(), Compared(), Compared()
    n_hosts = 0
    for seed in range(N_MESHES):
        db = mesh(seed)
        for proxy in building.dataplanes(db):
            built = snapshot.of(db, proxy)
            assert built is not None
            envoy = building.plain(built)
            outbounds(db, proxy, envoy, outbound, through_route)
            inbounds(db, proxy, envoy, inbound)
            whole_proxy(db, proxy, envoy, whole)
            if gateway_spec.is_gateway(db, proxy):
                n_hosts += gateway_hosts(db, proxy, envoy)
    assert n_hosts
    on_routes = tuple(row for row in OUTBOUND if row.part == "route")
    expected = (outbound, OUTBOUND), (through_route, on_routes), (inbound, INBOUND), (whole, WHOLE)
    for compared, rows in expected:
        assert compared.wrong == []
        assert [row for row in rows if row not in compared.rows] == []  # every row was compared
