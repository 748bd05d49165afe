"""InboundSpec: what a proxy does with calls that arrive: a listener, its service's cluster, and who may call.

Who may call an HTTP port comes apart from the listener, so that a denial acts on open connections too.
Limits and faults come apart from it as well, with the routes or, on a port without requests, by themselves:
setting or changing them touches no connection. On a strict port everybody needs a certificate of the mesh; on
a permissive one a caller that is no proxy is let through as it is, in plain text or with its own TLS.
"""

import itertools
from collections.abc import Iterator

import msgspec

from koguma.core import match, world
from koguma.core.build import (
    added_resources,
    clusters,
    encoding,
    endpoints,
    lay,
    logs,
    network,
    overlays,
    resource_template,
    skeletons,
    tls,
)
from koguma.core.build.network import InboundNetworking, Networking
from koguma.core.incremental import Db, question
from koguma.envoy import by_caller, filters, names, proto_json, rbac, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model import tags
from koguma.model.overlay import Where
from koguma.model.resource import Key
from koguma.model.schema import Json

_IDLE = "7200s"
# Whoever sends the headers of a request, or its part of a TLS handshake, drop by drop would hold a connection
# for as long as he likes. A MeshTimeout may say otherwise about headers.
_HEADERS = "10s"
_HANDSHAKE = "10s"
_HTTP1: Data = {"explicit_http_config": {"http_protocol_options": {}}}
_HTTP2: Data = {"explicit_http_config": {"http2_protocol_options": {"allow_connect": True}}}
_LIMIT_TYPE = "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit"
_RBAC_TYPE = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
_TLS_INSPECTOR = proto_json.extension(
    "envoy.filters.listener.tls_inspector",
    "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
)
_SOURCE_OF_TRANSPARENT = {4: "127.0.0.6", 6: "::6"}
_written = msgspec.json.Encoder()
_IDENTITY = "x-forwarded-client-cert"


def _respelled(header: str) -> Iterator[str]:
    """A header's name with one or more of its hyphens as underscores."""
    words_of = header.split("-")
    for joints in itertools.product("-_", repeat=len(words_of) - 1):
        name = "".join(map("".join, itertools.zip_longest(words_of, joints, fillvalue="")))
        if name != header:
            yield name


# Many servers (CGI, WSGI) take both spellings of a header for one. What Envoy writes about who calls must not
# be contradicted by what the caller wrote with underscores; other headers with underscores are let through.
_OTHER_IDENTITIES = tuple(_respelled(_IDENTITY))


class InboundSpec(msgspec.Struct, frozen=True):
    """One inbound, with all that its Envoy parts are made of."""

    proxy: Key
    where: InboundNetworking
    name: str
    is_transparent: bool
    source: str = ""  # the address that the service is called from, where that matters

    @property
    def is_http(self) -> bool:
        """Whether requests are understood."""
        return self.where.protocol in world.HTTP_PROTOCOLS


@question
def resources(db: Db, proxy: Key) -> Bundle:
    """All that a proxy gets in order to be called."""
    net, seen = network.networking(db, proxy), match.traits(db, proxy)
    if net is None or seen is None:
        return encoding.bundled(())
    net = net.with_redirection_of(network.node_metadata(db, proxy))
    return encoding.bundled(each for one in _inbounds(db, proxy, net) for each in _one(db, one, seen))


def _inbounds(db: Db, proxy: Key, net: Networking) -> Iterator[InboundSpec]:
    is_transparent = bool(net.redirect_inbound)
    for where in net.inbounds:
        name = encoding.kri(db, proxy, where.section)
        source = _source(where.service_address) if is_transparent else ""
        yield InboundSpec(proxy, where, name, is_transparent, source)


def _source(service_address: str) -> str:
    if service_address in ("127.0.0.1", "::1"):
        return ""
    return _SOURCE_OF_TRANSPARENT[6 if ":" in service_address else 4]


def _one(db: Db, of: InboundSpec, seen: match.Traits) -> Iterator[XdsResource | Failure]:
    problem = _problem(of)
    if problem is not None:
        yield problem
        return
    where = _told(db, of)
    said = overlays.inbound_of(db, seen, of.where.section, where)
    yield from said.failures
    yield from added_resources.clusters(db, lay.over_parts({}, said.overlays), str(of.proxy))
    yield from _from_template(db, of, where, said) or _built(db, of, said)


def _built(db: Db, of: InboundSpec, said: overlays.PolicyOverlays) -> Iterator[XdsResource | Failure]:
    parts = logs.with_logs(lay.over_parts(_skeleton(of), said.overlays))
    yield encoding.own(db, snapshot.CLUSTER, of.name, _cluster(of, parts), origin=str(of.proxy))
    if of.is_http:
        config = _route_configuration(of, said)
        needs = ((snapshot.CLUSTER, of.name),)
        yield encoding.own(db, snapshot.ROUTES, of.name, config, needs, str(of.proxy))
    yield from _listener(db, of, parts)


def _from_template(
    db: Db, of: InboundSpec, where: Where, said: overlays.PolicyOverlays
) -> tuple[XdsResource, ...] | None:
    """The same out of a cast; None where it is not worth one, or cannot be."""
    texts = of.name, of.where.address, of.where.service_address, *(value for _, value in of.where.tags)
    marked = resource_template.placeholders(texts)
    try:
        written = _written.encode(said.overlays)
    except (TypeError, ValueError, OverflowError):  # the encoder knows better what is wrong with it
        return None
    if marked is None or resource_template.has_placeholders(written) or _is_own(where, written):
        return None
    found = _templates(db, _with_texts(of, marked), written)
    return found.filled(texts) if found else None


def _is_own(where: Where, written: bytes) -> bool:
    """Whether policies say what they hardly say for another proxy."""
    own = where.name, where.service, where.log_pipe
    return any(text and text.encode(errors="replace") in written for text in own)


@question
def _templates(db: Db, of: InboundSpec, written: bytes) -> resource_template.ResourceTemplates | None:
    """What all proxies have for an inbound of this shape about which policies say the same."""
    said = overlays.PolicyOverlays(tuple(msgspec.json.decode(written)))
    n_texts = 3 + len(of.where.tags)
    return resource_template.checked(
        encoding.encoder(db), lambda texts: _built(db, _with_texts(of, texts), said), n_texts
    )


def _with_texts(of: InboundSpec, texts: resource_template.Texts) -> InboundSpec:
    """An inbound that has nothing of its proxy but these texts."""
    name, address, service_address, *values = texts
    where = msgspec.structs.replace(
        of.where,
        name="",
        address=address,
        reached_at="",
        service_address=service_address,
        tags=tuple((tag, value) for (tag, _), value in zip(of.where.tags, values, strict=True)),
        is_ready=True,
    )
    nobody = Key(of.proxy.kind, of.proxy.mesh, "", "", "")
    return msgspec.structs.replace(of, proxy=nobody, where=where, name=name)


def _told(db: Db, of: InboundSpec) -> Where:
    """What is told to policies about an inbound."""
    own, key = dict(of.where.tags), of.proxy
    service = own.get(tags.SERVICE) or network.own_service(db, key)
    node = network.node_metadata(db, key)
    pipe = network.log_pipe(db, key, node)
    return Where(
        of.where.protocol,
        key.mesh,
        key.zone,
        of.name,
        of.where.tags,
        service,
        pipe,
        machine=network.machine(db, node),
    )


def _problem(of: InboundSpec) -> Failure | None:
    """Why there can be nothing of an inbound."""
    if not of.name:
        return encoding.nameless(snapshot.LISTENER, of.proxy)
    for where, field in ((of.where.address, "address"), (of.where.service_address, "serviceAddress")):
        if not endpoints.is_ip(where):
            text = f'"{where}" is no IP, and Envoy needs one; write networking.inbound[].{field}'
            return Failure(snapshot.LISTENER, of.name, text, str(of.proxy))
    return None


def _skeleton(of: InboundSpec) -> lay.Parts:
    cluster: Data = {
        "name": of.name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": {
            "cluster_name": of.name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _service(of.where)}}]}],
        },
    }
    if of.source:
        cluster["upstream_bind_config"] = {"source_address": {"address": of.source, "port_value": 0}}
    if not of.is_http:
        return {"cluster": cluster, "tcp": skeletons.tcp_proxy(of.name, {"cluster": of.name}, _IDLE)}
    options = _HTTP1 if of.where.protocol == "http" else _HTTP2
    hcm = {
        **skeletons.hcm(of.name),
        "original_ip_detection_extensions": [proto_json.NO_PROXY_IN_FRONT],
        # Without any MeshTimeout Kuma's own limits hold; Envoy's would close idle callers after an hour.
        "common_http_protocol_options": {"idle_timeout": _IDLE},
        "stream_idle_timeout": "3600s",
        "request_headers_timeout": _HEADERS,
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"uri": True},
    }
    return {
        "cluster": cluster,
        "http_options": {**options, "common_http_protocol_options": {"idle_timeout": _IDLE}},
        "hcm": hcm,
        "http_filters": skeletons.http_filters(of.where.protocol),
    }


def _service(where: InboundNetworking) -> Data:
    return proto_json.address(where.service_address, where.service_port)


def _cluster(of: InboundSpec, parts: lay.Parts) -> Data:
    cluster: Data = dict(parts["cluster"])
    if of.is_http:
        options = proto_json.typed(clusters.HTTP_OPTIONS, **parts["http_options"])
        cluster["typed_extension_protocol_options"] = {clusters.HTTP_OPTIONS: options}
    return cluster


def _route_configuration(of: InboundSpec, said: overlays.PolicyOverlays) -> Data:
    split = envoy_routes.Split((envoy_routes.Backend(of.name, 1),), 0)
    made = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
    routes = [_with_overlays(route, said) for route in made]
    for_some = [
        _for_caller(route, each) for found in said.part("callers") for each in found for route in routes
    ]
    host = envoy_routes.virtual_host(of.name, [*for_some, *routes])
    on_routes = {name: value for found in said.part("on_routes") for name, value in found.items()}
    if on_routes:
        # On the host, not on its routes: what is counted is counted for all of them together.
        by_name = {filters.name_of(key): value for key, value in sorted(on_routes.items())}
        host["typed_per_filter_config"] = by_name
    return {
        **envoy_routes.route_configuration(of.name, [host]),
        "request_headers_to_remove": ["x-kuma-tags", *_OTHER_IDENTITIES],
    }


def _for_caller(route: Data, caller: Json) -> Data:
    match = lay.laid(route["match"], caller["match"])
    return {**route, "match": match, "route": lay.laid(route["route"], caller["route_action"])}


def _with_overlays(route: Data, said: overlays.PolicyOverlays) -> Data:
    action = route["route"]
    for over in said.part("route_action"):
        action = lay.laid(action, over)
    route = {**route, "route": action}
    for over in said.part("route"):
        route = lay.laid(route, over)
    return route


def _listener(db: Db, of: InboundSpec, parts: lay.Parts) -> Iterator[XdsResource | Failure]:
    where = of.where
    tags = dict(where.tags) or {"kuma.io/unified-name": of.name}
    addresses = ((where.address, where.port),)
    data = skeletons.listener(
        of.name, addresses, "INBOUND", tags, skeletons.ListenerBinding(is_bound=not of.is_transparent)
    )
    needs: list[snapshot.Id] = [(snapshot.CLUSTER, of.name), *added_resources.needed(parts)]
    if of.is_http:
        needs.append((snapshot.ROUTES, of.name))
    else:
        needs.append((snapshot.EXTENSION, names.connection_limit(of.where.section)))
        yield _limit(db, of, parts)
    how = tls.mtls(db, of.proxy.mesh)
    if how is None:
        chains = [{"filters": skeletons.chain(_plain(parts), _apart(of, parts))}]
    else:
        said = (parts.get("inbound") or {}).get("mode")
        is_permissive = said == "Permissive" if said else how.is_permissive
        chains = list(_chains(of, parts, is_permissive=is_permissive))
        data["listener_filters"] = [_TLS_INSPECTOR]
        needs += tls.secrets(of.proxy.mesh)
        if of.is_http:
            needs.append((snapshot.EXTENSION, names.permission(of.where.section)))
            yield _permission(db, of, parts)
    data["filter_chains"] = chains
    yield encoding.own(db, snapshot.LISTENER, of.name, data, needs, str(of.proxy))


def _plain(parts: lay.Parts) -> lay.Parts:
    """Without a certificate nobody can be told apart, so permissions do not act."""
    network_filters = dict(parts.get("network_filters") or {})
    network_filters.pop(filters.NETWORK_RBAC, None)
    return {**parts, "network_filters": network_filters}


def _chains(of: InboundSpec, parts: lay.Parts, *, is_permissive: bool) -> Iterator[Data]:
    mesh = of.proxy.mesh
    context = lay.laid(tls.downstream(mesh), parts.get("tls") or {})
    secured = {
        "filters": _secured(of, parts),
        "transport_socket": tls.socket(context),
        "transport_socket_connect_timeout": _HANDSHAKE,
    }
    if not is_permissive:
        yield secured
        return
    yield {
        "filter_chain_match": {"transport_protocol": "raw_buffer"},
        "filters": skeletons.chain(_plain(parts), _apart(of, parts)),
    }
    own_tls = skeletons.chain({"tcp": skeletons.tcp_proxy(of.name, {"cluster": of.name}, _IDLE)})
    if not of.is_http:
        own_tls = skeletons.chain(_plain(parts), _apart(of, parts))  # bytes are bytes
    yield {"filter_chain_match": {"transport_protocol": "tls"}, "filters": own_tls}
    of_mesh = {"transport_protocol": "tls", "application_protocols": [tls.ALPN]}
    yield {"filter_chain_match": of_mesh, **secured}


def _secured(of: InboundSpec, parts: lay.Parts) -> list[Data]:
    if not of.is_http:
        given = {filters.NETWORK_RBAC: rbac.deny_all_network(of.name), **(parts.get("network_filters") or {})}
        logs = [*(parts["tcp"].get("access_log") or ()), rbac.denied_connection_log()]
        secured = {**parts, "tcp": {**parts["tcp"], "access_log": logs}, "network_filters": given}
        return skeletons.chain(secured, _apart(of, parts))
    logs = [*(parts["hcm"].get("access_log") or ()), rbac.denied_log()]
    hcm = {**parts["hcm"], "local_reply_config": rbac.denied_reply(), "access_log": logs}
    own = {
        "name": names.permission(of.where.section),
        "config_discovery": {"config_source": proto_json.ADS, "type_urls": [_RBAC_TYPE]},
    }
    return skeletons.chain({**parts, "hcm": hcm}, {filters.RBAC: own, **_apart(of, parts)})


def _apart(of: InboundSpec, parts: lay.Parts) -> Data:
    """The filters whose configuration comes apart from the listener, which always has them."""
    if of.is_http:
        wanted = {*filters.PLACES, *(parts.get("on_routes") or {})}
        return {key: by_caller.place(filters.name_of(key)) for key in wanted}
    discovery = {"config_source": proto_json.ADS, "type_urls": [proto_json.TYPE_PREFIX + _LIMIT_TYPE]}
    return {
        filters.NETWORK_LOCAL_RATELIMIT: {
            "name": names.connection_limit(of.where.section),
            "config_discovery": discovery,
        }
    }


def _limit(db: Db, of: InboundSpec, parts: lay.Parts) -> XdsResource | Failure:
    """How many connections are taken; any number where no policy says so."""
    given: Json = (parts.get("extensions") or {}).get(filters.NETWORK_LOCAL_RATELIMIT)
    unlimited = proto_json.typed(
        _LIMIT_TYPE,
        stat_prefix=of.name,
        token_bucket={"max_tokens": 1, "fill_interval": "1s"},  # it must have one
        runtime_enabled={"default_value": False, "runtime_key": "koguma.connection_limit"},
    )
    data = {"name": names.connection_limit(of.where.section), "typed_config": given or unlimited}
    return encoding.own(
        db, snapshot.EXTENSION, names.connection_limit(of.where.section), data, origin=str(of.proxy)
    )


def _permission(db: Db, of: InboundSpec, parts: lay.Parts) -> XdsResource | Failure:
    given: Json = (parts.get("extensions") or {}).get(filters.RBAC) or rbac.deny_all()
    name = names.permission(of.where.section)
    data = {"name": name, "typed_config": given}
    return encoding.own(db, snapshot.EXTENSION, name, data, origin=str(of.proxy))
