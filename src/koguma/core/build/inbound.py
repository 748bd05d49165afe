"""Inbound: what Envoy gets so that a proxy's service can be called: cluster, routes and listener.

The cluster leads to the service beside the proxy; the listener is in `inbound_listener`. Rate limits and
faults of an HTTP port come with its routes, so that changing them closes no connection.
"""

import itertools
from collections.abc import Iterator

import msgspec

from koguma.core import match
from koguma.core.build import (
    added_resources,
    addresses,
    encoding,
    inbound_listener,
    logs,
    network,
    overlay_merge,
    overlays,
    resource_template,
    skeletons,
)
from koguma.core.build.inbound_listener import IDLE_TIMEOUT, InboundSpec
from koguma.core.build.network import InboundNetworking, Networking
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.incremental import Db, question
from koguma.envoy import filters, names, proto_json, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.external import HTTP_OPTIONS
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model import tags
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key
from koguma.model.schema import Json

_HTTP1: Data = {"explicit_http_config": {"http_protocol_options": {}}}
_HTTP2: Data = {"explicit_http_config": {"http2_protocol_options": {"allow_connect": True}}}
_SOURCE_OF_TRANSPARENT = {4: "127.0.0.6", 6: "::6"}
_json = msgspec.json.Encoder()
_XFCC = "x-forwarded-client-cert"


def _respelled(header: str) -> Iterator[str]:
    """A header's name with one or more of its hyphens as underscores."""
    parts = header.split("-")
    for joints in itertools.product("-_", repeat=len(parts) - 1):
        name = "".join(map("".join, itertools.zip_longest(parts, joints, fillvalue="")))
        if name != header:
            yield name


# Many servers (CGI, WSGI) treat hyphens and underscores in header names alike. A caller must not contradict
# the identity that Envoy writes by sending the header with underscores; other such headers are let through.
_RESPELLED_XFCC = tuple(_respelled(_XFCC))


@question
def resources(db: Db, proxy: Key) -> Bundle:
    """Everything that a proxy gets for its inbounds."""
    networking, traits = network.networking(db, proxy), match.traits(db, proxy)
    if networking is None or traits is None:
        return encoding.bundled(())
    networking = networking.with_redirection_of(network.node_metadata(db, proxy))
    return encoding.bundled(
        resource
        for spec in _inbound_specs(db, proxy, networking)
        for resource in _resources_of_inbound(db, spec, traits)
    )


def _inbound_specs(db: Db, proxy: Key, networking: Networking) -> Iterator[InboundSpec]:
    is_transparent = bool(networking.redirect_inbound)
    for inbound in networking.inbounds:
        name = encoding.kri(db, proxy, inbound.section)
        source = _source(inbound.service_address) if is_transparent else ""
        yield InboundSpec(proxy, inbound, name, is_transparent, source)


def _source(service_address: str) -> str:
    if service_address in ("127.0.0.1", "::1"):
        return ""
    return _SOURCE_OF_TRANSPARENT[6 if ":" in service_address else 4]


def _resources_of_inbound(db: Db, spec: InboundSpec, traits: match.Traits) -> Iterator[XdsResource | Failure]:
    problem = _problem(spec)
    if problem is not None:
        yield problem
        return
    where = _where(db, spec)
    policy_overlays = overlays.inbound_of(db, traits, spec.inbound.section, where)
    yield from policy_overlays.failures
    yield from added_resources.clusters(
        db, overlay_merge.with_overlays({}, policy_overlays.overlays), str(spec.proxy)
    )
    yield from _from_template(db, spec, where, policy_overlays) or _built(db, spec, policy_overlays)


def _built(db: Db, spec: InboundSpec, policy_overlays: PolicyOverlays) -> Iterator[XdsResource | Failure]:
    parts = logs.with_logs(overlay_merge.with_overlays(_skeleton(spec), policy_overlays.overlays))
    yield encoding.own(db, snapshot.CLUSTER, spec.name, _cluster(spec, parts), origin=str(spec.proxy))
    if spec.is_http:
        split = envoy_routes.BackendSplit((envoy_routes.Backend(spec.name, 1),), 0)
        default = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
        config = route_configuration(spec.name, default, policy_overlays)
        needs = ((snapshot.CLUSTER, spec.name),)
        yield encoding.own(db, snapshot.ROUTES, spec.name, config, needs, str(spec.proxy))
    yield from inbound_listener.resources(db, spec, parts)


def _from_template(
    db: Db, spec: InboundSpec, where: OverlayContext, policy_overlays: PolicyOverlays
) -> tuple[XdsResource, ...] | None:
    """The same from a template; None where there is none, or where no other proxy would share it."""
    texts = (
        spec.name,
        spec.inbound.address,
        spec.inbound.service_address,
        *(value for _, value in spec.inbound.tags),
    )
    placeholders = resource_template.placeholders(texts)
    try:
        data = _json.encode(policy_overlays.overlays)
    except (TypeError, ValueError, OverflowError):  # the encoder will report what is wrong
        return None
    if placeholders is None or resource_template.has_placeholders(data) or _names_proxy(where, data):
        return None
    templates = _templates(db, _with_texts(spec, placeholders), data)
    return templates.filled(texts) if templates else None


def _names_proxy(where: OverlayContext, data: bytes) -> bool:
    """Whether overlays contain texts of this proxy, so that hardly another one has the same overlays."""
    own = where.name, where.service, where.log_pipe
    return any(text and text.encode(errors="replace") in data for text in own)


@question
def _templates(db: Db, spec: InboundSpec, data: bytes) -> resource_template.ResourceTemplates | None:
    """Templates for all proxies with such an inbound and with equal overlays, which come as JSON."""
    policy_overlays = PolicyOverlays(tuple(msgspec.json.decode(data)))
    n_texts = 3 + len(spec.inbound.tags)
    return resource_template.checked(
        encoding.encoder(db), lambda texts: _built(db, _with_texts(spec, texts), policy_overlays), n_texts
    )


def _with_texts(spec: InboundSpec, texts: resource_template.Texts) -> InboundSpec:
    """The inbound with these texts, and nothing else that is its proxy's own."""
    name, address, service_address, *values = texts
    inbound = msgspec.structs.replace(
        spec.inbound,
        name="",
        address=address,
        reached_at="",
        service_address=service_address,
        tags=tuple((tag, value) for (tag, _), value in zip(spec.inbound.tags, values, strict=True)),
        is_ready=True,
    )
    nobody = Key(spec.proxy.kind, spec.proxy.mesh, "", "", "")
    return msgspec.structs.replace(spec, proxy=nobody, inbound=inbound, name=name)


def _where(db: Db, spec: InboundSpec) -> OverlayContext:
    """What the hooks of policies get to know about an inbound."""
    own, key = dict(spec.inbound.tags), spec.proxy
    service = own.get(tags.SERVICE) or network.own_service(db, key)
    node = network.node_metadata(db, key)
    pipe = network.log_pipe(db, key, node)
    return OverlayContext(
        spec.inbound.protocol,
        key.mesh,
        key.zone,
        spec.name,
        spec.inbound.tags,
        service,
        pipe,
        machine=network.machine(db, node),
    )


def _problem(spec: InboundSpec) -> Failure | None:
    """Why an inbound cannot be built."""
    if not spec.name:
        return encoding.nameless(snapshot.LISTENER, spec.proxy)
    inbound = spec.inbound
    for address, field in ((inbound.address, "address"), (inbound.service_address, "serviceAddress")):
        if not addresses.is_ip(address):
            text = f'"{address}" is no IP, and Envoy needs one; write networking.inbound[].{field}'
            return Failure(snapshot.LISTENER, spec.name, text, str(spec.proxy))
    return None


def _skeleton(spec: InboundSpec) -> overlay_merge.Parts:
    cluster: Data = {
        "name": spec.name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": {
            "cluster_name": spec.name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _service_address(spec.inbound)}}]}],
        },
    }
    if spec.source:
        cluster["upstream_bind_config"] = {"source_address": {"address": spec.source, "port_value": 0}}
    if not spec.is_http:
        return {
            "cluster": cluster,
            "tcp": skeletons.tcp_proxy(spec.name, {"cluster": spec.name}, IDLE_TIMEOUT),
        }
    options = _HTTP1 if spec.inbound.protocol == "http" else _HTTP2
    hcm = {
        **skeletons.inbound_hcm(spec.name),
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"uri": True},
    }
    return {
        "cluster": cluster,
        "http_options": {**options, "common_http_protocol_options": {"idle_timeout": IDLE_TIMEOUT}},
        "hcm": hcm,
        "http_filters": skeletons.http_filters(spec.inbound.protocol),
    }


def _service_address(inbound: InboundNetworking) -> Data:
    return proto_json.address(inbound.service_address, inbound.service_port)


def _cluster(spec: InboundSpec, parts: overlay_merge.Parts) -> Data:
    cluster: Data = dict(parts["cluster"])
    if spec.is_http:
        options = proto_json.typed(HTTP_OPTIONS, **parts["http_options"])
        cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: options}
    return cluster


def route_configuration(name: str, default: list[Data], policy_overlays: PolicyOverlays) -> Data:
    """The routes of an inbound, from the default ones."""
    routes = [_with_overlays(route, policy_overlays) for route in default]
    for_callers = [
        _for_caller(route, caller)
        for callers in policy_overlays.part("callers")
        for caller in callers
        for route in routes
    ]
    host = envoy_routes.virtual_host(name, [*for_callers, *routes])
    on_routes = {
        name: value for overlay in policy_overlays.part("on_routes") for name, value in overlay.items()
    }
    if on_routes:
        # On the virtual host and not on its routes, so that limits count the requests of all routes together.
        by_name = {filters.name_of(key): value for key, value in sorted(on_routes.items())}
        host["typed_per_filter_config"] = by_name
    return {
        **envoy_routes.route_configuration(name, [host]),
        "request_headers_to_remove": ["x-kuma-tags", *_RESPELLED_XFCC],
    }


def _for_caller(route: Data, caller: Json) -> Data:
    match = overlay_merge.merged(route["match"], caller["match"])
    return {**route, "match": match, "route": overlay_merge.merged(route["route"], caller["route_action"])}


def _with_overlays(route: Data, policy_overlays: PolicyOverlays) -> Data:
    action = route["route"]
    for overlay in policy_overlays.part("route_action"):
        action = overlay_merge.merged(action, overlay)
    route = {**route, "route": action}
    for overlay in policy_overlays.part("route"):
        route = overlay_merge.merged(route, overlay)
    return route
