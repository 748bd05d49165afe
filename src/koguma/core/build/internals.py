"""Internals: what a proxy has for itself: readiness, names of the mesh, and traffic that nobody described."""

import hashlib
import json
from collections.abc import Iterator
from typing import Final

from koguma.core.build import encoding, network, shape
from koguma.core.build.network import Link, Net
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy import names, snapshot, words
from koguma.envoy.snapshot import Bundle, Failure, Piece
from koguma.envoy.words import Data
from koguma.model.resource import Key

Records = Group[tuple[str, tuple[str, ...]]]

TTL_SECONDS: Final = 30
READINESS_SOCKET: Final = "kuma-readiness-reporter.sock"
CONFIG_SOCKET: Final = "kuma-mesh-metric-config.sock"
_DNS_TYPE: Final = "envoy.extensions.filters.udp.dns_filter.v3.DnsFilterConfig"
_ORIGINAL_DST: Final = words.extension(
    "envoy.filters.listener.original_dst", "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
)


@question
def everything(db: Db, proxy: Key, records: Records) -> Bundle:
    """What a proxy has for itself."""
    net, link = network.net(db, proxy), network.link(db, proxy)
    if net is None:
        return encoding.bundled(())
    return encoding.bundled((*_readiness(db, net, link), *_names(db, link, records), *_passthrough(db, net)))


def _readiness(db: Db, net: Net, link: Link) -> Iterator[Piece | Failure]:
    """A port that says whether the proxy is ready, to whoever asks."""
    port = net.admin_port or link.admin_port
    if not port or not link.workdir:
        return
    path = f"{link.workdir}/{READINESS_SOCKET}"
    yield encoding.encoded(db, snapshot.CLUSTER, names.READINESS, _to_socket(names.READINESS, path))
    route = {"match": {"path": "/ready"}, "route": {"cluster": names.READINESS}}
    data = {
        "name": names.ADMIN,
        "stat_prefix": names.ADMIN,
        "address": words.address(net.address, port),
        "filter_chains": [{"filters": _answering(names.ADMIN, [route])}],
    }
    needs = ((snapshot.CLUSTER, names.READINESS),)
    yield encoding.encoded(db, snapshot.LISTENER, names.ADMIN, data, needs)


def _to_socket(name: str, path: str) -> Data:
    endpoint = {"endpoint": {"address": words.pipe(path)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _answering(name: str, routes: list[Data], **more: int) -> list[Data]:
    """The filters of a listener whose routes never change apart from it."""
    host = {"name": name, "domains": ["*"], "routes": routes}
    hcm = {
        "stat_prefix": name,
        "internal_address_config": {},
        "route_config": {"name": name, "virtual_hosts": [host], "validate_clusters": False, **more},
    }
    return shape.chain({"hcm": hcm, "http_filters": shape.http_filters("http")})


def _names(db: Db, link: Link, records: Records) -> Iterator[Piece | Failure]:
    """Names of the mesh: for the agent beside Envoy, or answered by Envoy itself."""
    if link.has_own_dns and link.workdir:
        data = _dynamic_config(link, *answer(db, records))
        yield encoding.encoded(db, snapshot.LISTENER, names.DYNAMIC_CONFIG, data)
    elif link.dns_port:
        yield encoding.encoded(db, snapshot.LISTENER, names.DNS, _dns(link, records))


@question
def answer(_db: Db, records: Records) -> tuple[str, str]:
    """What the agent beside Envoy is told of names, and the tag of that."""
    rows = [{"name": name, "ips": list(ips)} for name, ips in records]
    body = json.dumps({"records": rows, "ttl": TTL_SECONDS}, separators=(",", ":"))
    return body, hashlib.sha256(body.encode()).hexdigest()


def _dynamic_config(link: Link, body: str, tag: str) -> Data:
    unchanged = {"name": "If-None-Match", "string_match": {"exact": tag}}
    routes = [
        {"match": {"path": "/dns", "headers": [unchanged]}, "direct_response": {"status": 304}},
        {
            "match": {"path": "/dns"},
            "direct_response": {"status": 200, "body": {"inline_string": body}},
            "response_headers_to_add": [{"header": {"key": "ETag", "value": tag}}],
        },
    ]
    chain = _answering(names.DYNAMIC_CONFIG, routes, max_direct_response_body_size_bytes=len(body) + 1)
    return {
        "name": names.DYNAMIC_CONFIG,
        "stat_prefix": names.DYNAMIC_CONFIG,
        "address": words.pipe(f"{link.workdir}/{CONFIG_SOCKET}"),
        "filter_chains": [{"filters": chain}],
    }


def _dns(link: Link, records: Records) -> Data:
    domains = [
        {
            "name": name,
            "endpoint": {"address_list": {"address": list(ips)}},
            "answer_ttl": f"{TTL_SECONDS}s",
        }
        for name, ips in records
    ]
    table = {"virtual_domains": domains}
    config = words.typed(
        _DNS_TYPE, stat_prefix=names.DNS, server_config={"inline_dns_table": table}, case_insensitive=True
    )
    where = {"address": network.LOOPBACK, "port_value": link.dns_port, "protocol": "UDP"}
    return {
        "name": names.DNS,
        "stat_prefix": names.DNS,
        "address": {"socket_address": where},
        "listener_filters": [{"name": "envoy.filters.udp.dns_filter", "typed_config": config}],
    }


def _passthrough(db: Db, net: Net) -> Iterator[Piece | Failure]:
    """Where the kernel sends everything: to the listener that is meant, or to where it was going."""
    for direction, port in (("inbound", net.redirect_inbound), ("outbound", net.redirect_outbound)):
        if not port:
            continue
        name = names.passthrough(direction, 4)
        cluster: Data = {
            "name": name,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "5s",
        }
        if direction == "inbound":
            cluster["upstream_bind_config"] = {"source_address": {"address": "127.0.0.6", "port_value": 0}}
        yield encoding.encoded(db, snapshot.CLUSTER, name, cluster)
        chain = shape.chain({"tcp": shape.tcp_proxy(name, {"cluster": name}, "3600s")})
        data = {
            "name": name,
            "stat_prefix": name,
            "address": words.address("0.0.0.0", port),  # noqa: S104 - the kernel redirects from every address
            "use_original_dst": True,
            "listener_filters": [_ORIGINAL_DST],
            "traffic_direction": direction.upper(),
            "filter_chains": [{"filters": chain}],
        }
        yield encoding.encoded(db, snapshot.LISTENER, name, data, ((snapshot.CLUSTER, name),))
