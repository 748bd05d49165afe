"""Internals: what Envoy gets for the proxy itself: readiness, admin, DNS, agent settings, redirection."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import rules
from koguma.core.build import (
    added_resources,
    addresses,
    encoding,
    gateway_limits,
    network,
    overlay_merge,
    passthrough,
    resource_template,
    skeletons,
    whole_overlays,
)
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy import names, proto_json, snapshot
from koguma.envoy.bootstrap import ADMIN_SOCKET
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.resource import Key
from koguma.model.schema import Json

Records = Group[tuple[str, tuple[str, ...]]]

TTL_SECONDS: Final = 30
READINESS_SOCKET: Final = "kuma-readiness-reporter.sock"
CONFIG_SOCKET: Final = "kuma-mesh-metric-config.sock"
# Paths of Envoy's admin that can be read on the machine itself, beside parts of its configuration.
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


class _AgentSpec(msgspec.Struct, frozen=True):
    """What of a proxy decides the listeners for its agent and its operators."""

    workdir: str
    address: str
    port: int  # of readiness and admin; 0: none
    has_agent_config: bool  # whether the agent reads settings from Envoy
    is_on_loopback: bool = False  # apart from the address, which is a placeholder in templates
    has_admin_port: bool = False  # whether Envoy's own admin is on that port of the loopback address
    readiness_port: int = 0  # where the agent reports whether it is ready; 0: on a socket


@question
def resources(db: Db, proxy: Key, records: Records) -> Bundle:
    """The resources of the proxy itself; `records` are the DNS records of what it can call."""
    networking, node, proxy_class = (
        network.networking(db, proxy),
        network.node_metadata(db, proxy),
        rules.class_of(db, proxy),
    )
    if networking is None or proxy_class is None:
        return encoding.bundled(())
    networking = networking.with_redirection_of(node)
    policy_overlays = whole_overlays.of(db, proxy, proxy_class, networking, node)
    parts, origin = overlay_merge.with_overlays({}, policy_overlays.overlays), str(proxy)
    return encoding.bundled(
        (
            *_agent_resources(db, networking, node, records, parts.get("settings") or {}),
            *passthrough.inbound_resources(db, proxy, networking, node),
            *added_resources.clusters(db, parts, origin),
            *added_resources.listeners(db, parts, origin),
            *gateway_limits.of(db, proxy),
            *policy_overlays.failures,
        )
    )


def of_zone_proxy(db: Db, proxy: Key) -> Iterator[XdsResource | Failure]:
    """The resources of a zone proxy itself; it calls nobody by name, and no policy of a mesh is about it."""
    networking = network.networking(db, proxy)
    if networking is not None:
        yield from _agent_resources(db, networking, network.node_metadata(db, proxy), Group(()), {})


def _agent_resources(
    db: Db, networking: Networking, node: NodeMetadata, records: Records, settings: Mapping[str, Json]
) -> Iterator[XdsResource | Failure]:
    """The resources for the agent and for operators: readiness and admin, DNS, and settings."""
    port = (networking.admin_port or node.admin_port) if node.workdir else 0
    if port and not addresses.is_ip(networking.address):
        text = f'it is asked on "{networking.address}", which is no IP; write an IP as networking.address'
        yield Failure(snapshot.LISTENER, names.ADMIN, text)
        port = 0
    has_agent_config = bool(node.workdir) and (node.has_own_dns or bool(settings))
    spec = _AgentSpec(
        node.workdir,
        networking.address,
        port,
        has_agent_config,
        is_on_loopback=bool(port) and networking.address == network.LOOPBACK,
        has_admin_port=bool(port) and not node.is_own_agent,
        readiness_port=0 if not port or node.has_readiness_socket else node.readiness_port,
    )
    built: tuple[XdsResource | Failure, ...] = _from_template(db, spec) or tuple(_built(db, spec))
    yield from built[:-1] if has_agent_config else built
    uses_names = bool(networking.redirect_outbound) or node.binds_outbounds
    if node.dns_port and uses_names and not (node.has_own_dns and node.workdir):
        # Envoy answers DNS itself where the agent does not. The names lead to virtual addresses, so without
        # these they are of no use. kuma-dp reports a DNS port even where DNS is off.
        yield encoding.encoded(db, snapshot.LISTENER, names.DNS, _dns(node, records))
    if has_agent_config:
        yield built[-1]
        yield _dns_config(db, records) if not settings else _agent_config(db, node, records, settings)


def _from_template(db: Db, spec: _AgentSpec) -> tuple[XdsResource, ...] | None:
    """The resources of a proxy from a template; None where there is none."""
    texts = spec.workdir, spec.address
    placeholders = resource_template.placeholders(texts)
    if placeholders is None:
        return None
    workdir, address = placeholders
    templates = _templates(db, msgspec.structs.replace(spec, workdir=workdir, address=address))
    return templates.filled(texts) if templates else None


@question
def _templates(db: Db, spec: _AgentSpec) -> resource_template.ResourceTemplates | None:
    """Templates for proxies that differ in their addresses only."""

    def make(texts: resource_template.Texts) -> Iterator[XdsResource | Failure]:
        workdir, address = texts
        return _built(db, msgspec.structs.replace(spec, workdir=workdir, address=address))

    return resource_template.checked(encoding.encoder(db), make, 2)


def _built(db: Db, spec: _AgentSpec) -> Iterator[XdsResource | Failure]:
    if spec.port:
        yield from _admin(db, spec)
    if spec.has_agent_config:
        # The configuration is in routes apart from the listener: many proxies share it, and a new DNS record
        # drains no listener.
        needs = ((snapshot.ROUTES, names.DYNAMIC_CONFIG),)
        yield encoding.own(db, snapshot.LISTENER, names.DYNAMIC_CONFIG, _dynamic_config(spec), needs)


def _admin(db: Db, spec: _AgentSpec) -> Iterator[XdsResource | Failure]:
    """The admin port: readiness for everybody; on the machine itself, the read-only part of Envoy's admin."""
    at = proto_json.address(network.LOOPBACK, spec.readiness_port)
    at = at if spec.readiness_port else proto_json.pipe(f"{spec.workdir}/{READINESS_SOCKET}")
    yield encoding.own(db, snapshot.CLUSTER, names.READINESS, _cluster_at(names.READINESS, at))
    needs = ((snapshot.CLUSTER, names.READINESS),)
    if not spec.is_on_loopback:  # there Envoy itself listens, or the listener below
        config = _route_configuration(names.ADMIN, [_READY])
        listener = _admin_listener(names.ADMIN, spec.address, spec.port, config)
        yield encoding.own(db, snapshot.LISTENER, names.ADMIN, listener, needs)
    if not spec.has_admin_port:
        admin = proto_json.pipe(f"{spec.workdir}/{ADMIN_SOCKET}")
        yield encoding.own(db, snapshot.CLUSTER, names.ADMIN, _cluster_at(names.ADMIN, admin))
        name = names.ADMIN_LOOPBACK
        listener = _admin_listener(name, network.LOOPBACK, spec.port, _admin_routes(name))
        yield encoding.own(db, snapshot.LISTENER, name, listener, (*needs, (snapshot.CLUSTER, names.ADMIN)))


def _admin_listener(name: str, address: str, port: int, config: Data) -> Data:
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.address(address, port),
        **skeletons.EXCLUSIVE,
        "filter_chains": [{"filters": _http_filters(name, route_config=config)}],
    }


def _admin_routes(name: str) -> Data:
    """What of Envoy's admin can be read on the machine itself.

    Nothing can be changed. Only local host names are served, so that no web page reads it by DNS rebinding;
    and of the configuration only what came over xDS is shown, since the bootstrap holds the token.
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


def _http_filters(name: str, **routes: Data) -> list[Data]:
    """The filters of a listener for the agent and operators."""
    hcm = {"stat_prefix": name, "original_ip_detection_extensions": [proto_json.NO_PROXY_IN_FRONT], **routes}
    return skeletons.chain({"hcm": hcm, "http_filters": skeletons.http_filters("http")})


def _route_configuration(name: str, routes: list[Data]) -> Data:
    host = {"name": name, "domains": ["*"], "routes": routes}
    return {"name": name, "virtual_hosts": [host], "validate_clusters": False}


def _agent_config(
    db: Db, node: NodeMetadata, records: Records, settings: Mapping[str, Json]
) -> XdsResource | Failure:
    """The configuration that the agent fetches from Envoy, by path: DNS records, and settings of policies."""
    bodies = {path: _body(settings[path]) for path in sorted(settings)}
    if node.has_own_dns:
        bodies["/dns"] = dns_body(db, records)
    return _config_routes(db, tuple(bodies.items()))


@question
def _dns_config(db: Db, records: Records) -> XdsResource | Failure:
    """The same without settings of policies, which is one answer for most proxies."""
    return _config_routes(db, (("/dns", dns_body(db, records)),))


@question
def _config_routes(db: Db, bodies: tuple[tuple[str, str], ...]) -> XdsResource | Failure:
    """The routes that serve the configuration, which all agents with the same one share."""
    return encoding.own(db, snapshot.ROUTES, names.DYNAMIC_CONFIG, _answers(dict(bodies)))


@question
def dns_body(_db: Db, records: Records) -> str:
    """The DNS records for the agent, as JSON."""
    rows = [{"name": name, "ips": list(ips)} for name, ips in records]
    return _body({"records": rows, "ttl": TTL_SECONDS})


def _body(config: Json) -> str:
    return json.dumps(config, separators=(",", ":"))


def _dynamic_config(spec: _AgentSpec) -> Data:
    name = names.DYNAMIC_CONFIG
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.pipe(f"{spec.workdir}/{CONFIG_SOCKET}"),
        "filter_chains": [{"filters": _http_filters(name, rds=skeletons.rds(name))}],
    }


def _answers(bodies: Mapping[str, str]) -> Data:
    routes = [route for path, body in bodies.items() for route in _versioned(path, body)]
    longest = max(len(body.encode()) for body in bodies.values())
    config = _route_configuration(names.DYNAMIC_CONFIG, routes)
    return {**config, "max_direct_response_body_size_bytes": longest + 1}


def _versioned(path: str, body: str) -> Iterator[Data]:
    """The routes of a body with an ETag: 304 for an agent that has this version already."""
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
