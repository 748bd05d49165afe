"""Internals: what a proxy has for itself: readiness, names of the mesh, and traffic that nobody described."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import rules, world
from koguma.core.build import (
    added_resources,
    encoding,
    endpoints,
    lay,
    network,
    overlays,
    passthrough,
    resource_template,
    skeletons,
    tls,
)
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.rules import ProxyClass
from koguma.envoy import names, proto_json, snapshot
from koguma.envoy.bootstrap import ADMIN_SOCKET
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.overlay import KumaDp, Where
from koguma.model.resource import Key
from koguma.model.schema import Json

Records = Group[tuple[str, tuple[str, ...]]]

TTL_SECONDS: Final = 30
READINESS_SOCKET: Final = "kuma-readiness-reporter.sock"
CONFIG_SOCKET: Final = "kuma-mesh-metric-config.sock"
# What of Envoy's admin can be read on the machine itself, beside parts of its configuration.
ADMIN_PATHS: Final = (
    "/certs",
    "/clusters",
    "/listeners",
    "/server_info",
    "/stats",
    "/stats/prometheus",
)
_READY: Final = {"match": {"path": "/ready"}, "route": {"cluster": names.READINESS}}
_HERE: Final = ("127.0.0.1", "localhost")
_REFUSED: Final = (
    f"this port answers GET of /ready, {', '.join(ADMIN_PATHS)} and"
    " /config_dump?resource=dynamic_listeners (or another part whose name begins with dynamic_);"
    " for all else ask Envoy's admin on its unix socket\n"
)
_DNS_TYPE: Final = "envoy.extensions.filters.udp.dns_filter.v3.DnsFilterConfig"


class _Side(msgspec.Struct, frozen=True):
    """What of a proxy decides what Envoy has for whoever is beside it."""

    workdir: str
    address: str
    port: int  # where it is asked whether it is ready; 0: nowhere
    is_told: bool  # whether there is anything to tell to the agent
    is_on_loopback: bool = False  # apart from the address, which a cast has a mark for
    has_admin_port: bool = False  # whether Envoy's own admin is on that port of the loopback address
    readiness_port: int = 0  # where the agent says whether it is ready; 0: on a socket


@question
def resources(db: Db, proxy: Key, records: Records) -> Bundle:
    """What a proxy has for itself."""
    net, node, mine = (
        network.networking(db, proxy),
        network.node_metadata(db, proxy),
        rules.class_of(db, proxy),
    )
    if net is None or mine is None:
        return encoding.bundled(())
    net = net.with_redirection_of(node)
    said = (
        overlays.whole(db, mine, _told(db, proxy, net, node))
        if _is_ruled(db, mine)
        else overlays.PolicyOverlays()
    )
    parts, origin = lay.over_parts({}, said.overlays), str(proxy)
    return encoding.bundled(
        (
            *_beside(db, net, node, records, parts.get("settings") or {}),
            *passthrough.resources(db, proxy, net, node),
            *added_resources.clusters(db, parts, origin),
            *added_resources.listeners(db, parts, origin),
            *said.failures,
        )
    )


@question
def _is_ruled(db: Db, mine: ProxyClass) -> bool:
    """Whether policies say anything about proxies of a class themselves; one thing to read for each."""
    return bool(rules.whole_proxy(db, mine))


def _told(db: Db, proxy: Key, net: Networking, node: NodeMetadata) -> Where:
    """What is told to policies about the proxy itself."""
    return Where(
        "",
        proxy.mesh,
        proxy.zone,
        encoding.kri(db, proxy, ""),
        service=network.own_service(db, proxy),
        address=net.address,
        workdir=node.workdir,
        has_mtls=tls.mtls(db, proxy.mesh) is not None,
        kuma_dp=_kuma_dp(db, proxy, node),
    )


def _kuma_dp(db: Db, proxy: Key, node: NodeMetadata) -> KumaDp | None:
    known = world.proxy(db, proxy)
    if known is None or node.is_own_agent:
        return None
    socket = node.kuma_metrics_socket(proxy.mesh, known.core_name)
    return KumaDp(socket, node.metrics_certificate, node.metrics_key)


def _beside(
    db: Db, net: Networking, node: NodeMetadata, records: Records, settings: Mapping[str, Json]
) -> Iterator[XdsResource | Failure]:
    """What there is for whoever is beside Envoy: whether it is ready, names of the mesh, and settings."""
    port = (net.admin_port or node.admin_port) if node.workdir else 0
    if port and not endpoints.is_ip(net.address):
        text = f'it is asked on "{net.address}", which is no IP; write an IP as networking.address'
        yield Failure(snapshot.LISTENER, names.ADMIN, text)
        port = 0
    is_told = bool(node.workdir) and (node.has_own_dns or bool(settings))
    of = _Side(
        node.workdir,
        net.address,
        port,
        is_told,
        is_on_loopback=bool(port) and net.address == network.LOOPBACK,
        has_admin_port=bool(port) and not node.is_own_agent,
        readiness_port=0 if not port or node.has_readiness_socket else node.readiness_port,
    )
    made: tuple[XdsResource | Failure, ...] = _from_template(db, of) or tuple(_built(db, of))
    yield from made[:-1] if is_told else made
    uses_names = bool(net.redirect_outbound) or node.binds_outbounds
    if node.dns_port and uses_names and not (node.has_own_dns and node.workdir):
        # Names of the mesh, answered by Envoy itself where the agent beside it does not. They lead to virtual
        # addresses, so without these nobody asks. kuma-dp names a port for DNS even where DNS is off.
        yield encoding.encoded(db, snapshot.LISTENER, names.DNS, _dns(node, records))
    if is_told:
        yield made[-1]
        yield _told_of_names(db, records) if not settings else _told_all(db, node, records, settings)


def _from_template(db: Db, of: _Side) -> tuple[XdsResource, ...] | None:
    """The pieces of a proxy out of a cast; None where there is none."""
    texts = of.workdir, of.address
    marked = resource_template.placeholders(texts)
    found = (
        _templates(db, msgspec.structs.replace(of, workdir=marked[0], address=marked[1])) if marked else None
    )
    return found.filled(texts) if found else None


@question
def _templates(db: Db, of: _Side) -> resource_template.ResourceTemplates | None:
    """What proxies have that differ in their addresses only."""

    def make(texts: resource_template.Texts) -> Iterator[XdsResource | Failure]:
        workdir, address = texts
        return _built(db, msgspec.structs.replace(of, workdir=workdir, address=address))

    return resource_template.checked(encoding.encoder(db), make, 2)


def _built(db: Db, of: _Side) -> Iterator[XdsResource | Failure]:
    if of.port:
        yield from _admin(db, of)
    if of.is_told:
        # Apart from its listener, what is told is the same for many proxies, and a new name drains nothing.
        needs = ((snapshot.ROUTES, names.DYNAMIC_CONFIG),)
        yield encoding.own(db, snapshot.LISTENER, names.DYNAMIC_CONFIG, _dynamic_config(of), needs)


def _admin(db: Db, of: _Side) -> Iterator[XdsResource | Failure]:
    """The admin port: whether the proxy is ready, to whoever asks; on the machine itself, a little more."""
    at = proto_json.address(network.LOOPBACK, of.readiness_port)
    at = at if of.readiness_port else proto_json.pipe(f"{of.workdir}/{READINESS_SOCKET}")
    yield encoding.own(db, snapshot.CLUSTER, names.READINESS, _cluster_at(names.READINESS, at))
    needs = ((snapshot.CLUSTER, names.READINESS),)
    if not of.is_on_loopback:  # where Envoy listens itself, or the listener below does
        config = _route_configuration(names.ADMIN, [_READY])
        listener = _admin_listener(names.ADMIN, of.address, of.port, config)
        yield encoding.own(db, snapshot.LISTENER, names.ADMIN, listener, needs)
    if not of.has_admin_port:
        admin = proto_json.pipe(f"{of.workdir}/{ADMIN_SOCKET}")
        yield encoding.own(db, snapshot.CLUSTER, names.ADMIN, _cluster_at(names.ADMIN, admin))
        name = names.ADMIN_LOOPBACK
        listener = _admin_listener(name, network.LOOPBACK, of.port, _admin_routes(name))
        yield encoding.own(db, snapshot.LISTENER, name, listener, (*needs, (snapshot.CLUSTER, names.ADMIN)))


def _admin_listener(name: str, address: str, port: int, config: Data) -> Data:
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.address(address, port),
        **skeletons.EXCLUSIVE,
        "filter_chains": [{"filters": _answering(name, route_config=config)}],
    }


def _admin_routes(name: str) -> Data:
    """What of Envoy's admin can be read on the machine itself.

    Nothing can be changed. Hosts are named, so that no web page reads them by a name of its own; and of the
    configuration only what came from the control plane is shown, since the bootstrap holds the token.
    """
    read = {"name": ":method", "string_match": {"exact": "GET"}}
    matches: list[Data] = [{"path": path, "headers": [read]} for path in ADMIN_PATHS]
    parts = {"name": "resource", "string_match": {"prefix": "dynamic_"}}
    matches.append({"path": "/config_dump", "headers": [read], "query_parameters": [parts]})
    refused = {"status": 403, "body": {"inline_string": _REFUSED}}
    routes = [
        _READY,
        *({"match": match, "route": {"cluster": names.ADMIN}} for match in matches),
        {"match": {"prefix": "/"}, "direct_response": refused},
    ]
    here = {"name": f"{name}_here", "domains": list(_HERE), "routes": routes}
    config = _route_configuration(name, [_READY])
    return {
        **config,
        "virtual_hosts": [here, *config["virtual_hosts"]],
        "ignore_port_in_host_matching": True,
    }


def _cluster_at(name: str, address: Data) -> Data:
    endpoint = {"endpoint": {"address": address}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _answering(name: str, **routes: Data) -> list[Data]:
    """The filters of a listener for whoever is beside the proxy."""
    hcm = {"stat_prefix": name, "original_ip_detection_extensions": [proto_json.NO_PROXY_IN_FRONT], **routes}
    return skeletons.chain({"hcm": hcm, "http_filters": skeletons.http_filters("http")})


def _route_configuration(name: str, routes: list[Data]) -> Data:
    host = {"name": name, "domains": ["*"], "routes": routes}
    return {"name": name, "virtual_hosts": [host], "validate_clusters": False}


def _told_all(
    db: Db, node: NodeMetadata, records: Records, settings: Mapping[str, Json]
) -> XdsResource | Failure:
    """What the agent beside Envoy is told, by path: names of the mesh, and what policies want of it."""
    bodies = {path: _body(settings[path]) for path in sorted(settings)}
    if node.has_own_dns:
        bodies["/dns"] = answer(db, records)
    return _answering_all(db, tuple(bodies.items()))


@question
def _told_of_names(db: Db, records: Records) -> XdsResource | Failure:
    """The same where policies want nothing, which is one thing to read for most proxies."""
    return _answering_all(db, (("/dns", answer(db, records)),))


@question
def _answering_all(db: Db, bodies: tuple[tuple[str, str], ...]) -> XdsResource | Failure:
    """What is told, as a piece that all who are told the same share."""
    return encoding.own(db, snapshot.ROUTES, names.DYNAMIC_CONFIG, _answers(dict(bodies)))


@question
def answer(_db: Db, records: Records) -> str:
    """What the agent beside Envoy is told of names."""
    rows = [{"name": name, "ips": list(ips)} for name, ips in records]
    return _body({"records": rows, "ttl": TTL_SECONDS})


def _body(told: Json) -> str:
    return json.dumps(told, separators=(",", ":"))


def _dynamic_config(of: _Side) -> Data:
    name = names.DYNAMIC_CONFIG
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.pipe(f"{of.workdir}/{CONFIG_SOCKET}"),
        "filter_chains": [{"filters": _answering(name, rds=skeletons.rds(name))}],
    }


def _answers(bodies: Mapping[str, str]) -> Data:
    routes = [route for path, body in bodies.items() for route in _versioned(path, body)]
    longest = max(len(body.encode()) for body in bodies.values())
    config = _route_configuration(names.DYNAMIC_CONFIG, routes)
    return {**config, "max_direct_response_body_size_bytes": longest + 1}


def _versioned(path: str, body: str) -> Iterator[Data]:
    """The routes of an answer that is not given again to whoever names its version."""
    tag = hashlib.sha256(body.encode()).hexdigest()
    unchanged = {"name": "If-None-Match", "string_match": {"exact": tag}}
    yield {"match": {"path": path, "headers": [unchanged]}, "direct_response": {"status": 304}}
    yield {
        "match": {"path": path},
        "direct_response": {"status": 200, "body": {"inline_string": body}},
        "response_headers_to_add": [{"header": {"key": "ETag", "value": tag}}],
    }


def _dns(node: NodeMetadata, records: Records) -> Data:
    domains = [
        {
            "name": name,
            "endpoint": {"address_list": {"address": list(ips)}},
            "answer_ttl": f"{TTL_SECONDS}s",
        }
        for name, ips in records
    ]
    table = {"virtual_domains": domains}
    config = proto_json.typed(
        _DNS_TYPE, stat_prefix=names.DNS, server_config={"inline_dns_table": table}, case_insensitive=True
    )
    where = {"address": network.LOOPBACK, "port_value": node.dns_port, "protocol": "UDP"}
    return {
        "name": names.DNS,
        "stat_prefix": names.DNS,
        "address": {"socket_address": where},
        "listener_filters": [{"name": "envoy.filters.udp.dns_filter", "typed_config": config}],
    }
