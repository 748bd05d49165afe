"""Inspect: which policies act on a proxy, on one of its ports, on a route; and on whom a policy acts.

Pure views for people: JSON in the shapes of Kuma 2.13's Inspect API. A conf is merged from the entries that
the build compiles (`rules`, `inbound`), by the same question (`items.conf`). With `fields`, each conf shows
under `fieldOrigins` who set each field; Kuma has `origins` for the policies as a whole. Policies that are
stored and do not act yet are listed under `inactive`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from koguma.core import gateway_view, inbound, problems, routes, rules, rules_view, world
from koguma.core import match as matching
from koguma.core.build import encoding, gateway, gateway_spec, network
from koguma.core.gateway_api import backend_tls
from koguma.core.inbound import Client, InboundRule
from koguma.core.incremental import Db
from koguma.core.items import ByKind, Entries
from koguma.core.lint import egresses, external_plugins
from koguma.core.meta import kri
from koguma.core.provenance import ShownConf, Viewer
from koguma.core.routes import RouteRule
from koguma.core.rules import PortRules, ProxyClass
from koguma.core.world import Proxy
from koguma.model import labels, tags, target_ref
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json


def _proxy(db: Db, key: Key) -> Proxy:
    proxy = world.proxy(db, key)
    assert proxy is not None, key
    return proxy


def _class(db: Db, proxy: Key) -> ProxyClass:
    proxy_class = rules.class_of(db, proxy)
    assert proxy_class is not None, proxy
    return proxy_class


def layout(db: Db, key: Key) -> Json:
    """The inbounds and outbounds of a proxy, with their names in Envoy, and warnings about the proxy."""
    proxy = _proxy(db, key)
    inbounds = [
        {
            **_named(kri(db, key, inbound.section), inbound.port, inbound.protocol),
            **_state(db, key, inbound.section),
        }
        for inbound in proxy.inbounds
    ]
    ports = called(db, key)
    outbounds = [_outbound(db, port) for port in ports]
    served = {"listeners": gateway_view.of_proxy(db, key)} if proxy.is_builtin else {}
    warnings = [problem.text for problem in problems.of_object(db, key)]
    warnings += _unbuilt(db, ports)
    warnings += egresses.in_zone(db, key.mesh, key.zone)
    warnings += egresses.forbidden(db, key, ((port.destination, port.section) for port in ports))
    return {
        "kri": kri(db, key),
        "labels": dict(proxy.labels),
        "inbounds": inbounds,
        **served,
        "outbounds": sorted(outbounds, key=lambda outbound: str(outbound["kri"])),
        **({"warnings": warnings} if warnings else {}),
    }


def called(db: Db, proxy: Key) -> tuple[PortRules, ...]:
    """The ports that a proxy calls; a built-in gateway those of the backends of its routes."""
    if not _proxy(db, proxy).is_builtin:
        return rules.ports(db, _class(db, proxy))
    spec = gateway_spec.of(db, proxy)
    if spec is None:
        return ()
    calls = rules.outbound(db, spec.proxy_class)
    return tuple(calls.of(each.destination, each.section) for each in gateway.backends(db, spec))


def _unbuilt(db: Db, ports: Sequence[PortRules]) -> Iterator[str]:
    """What a proxy calls in vain: its plugin is not installed, or nobody could check whom calls reach."""
    for port in ports:
        tls = backend_tls.of(db, port.destination, port.section)
        if tls is not None and tls.problem:
            yield f"{port.destination}: calls to port {port.section} fail: {tls.policy}: {tls.problem}"
    called = dict.fromkeys(port.destination for port in ports)
    for destination in (key for key in called if key.kind == "MeshExternalService"):
        yield from (f"{destination}: {problem.text}" for problem in external_plugins.missing(db, destination))


def _state(db: Db, key: Key, section: str) -> dict[str, Json]:
    """The state of an inbound that takes no calls; left out where it does, as in Kuma's answer."""
    net = network.networking(db, key)
    is_ready = net is None or all(each.is_ready for each in net.inbounds if each.section == section)
    return {} if is_ready else {"state": "NotReady"}


def _outbound(db: Db, port: PortRules) -> dict[str, Json]:
    number, protocol = _number_and_protocol(db, port)
    return _named(kri(db, port.destination, port.section), number, protocol)


def _named(name: str, port: int, protocol: str) -> dict[str, Json]:
    return {"kri": name, "port": port, "protocol": protocol, "proxyResourceName": name}


def _number_and_protocol(db: Db, port: PortRules) -> tuple[int, str]:
    destination = world.destination(db, port.destination)
    known = destination.port(port.section) if destination else None
    return (known.number, known.protocol) if known else (0, "tcp")


def _origins(db: Db, entries: Entries) -> list[Json]:
    return [{"kri": kri(db, policy)} for policy in dict.fromkeys(entry.policy for entry in entries)]


def _field_origins(shown: ShownConf) -> dict[str, Json]:
    return {"fieldOrigins": shown.origins} if shown.origins is not None else {}


def _merged(viewer: Viewer, kind: str, entries: Entries, *, listed: bool) -> Json:
    """The merged conf of entries of a kind; Kuma shows it bare for whole proxies, else as a list of one."""
    shown = viewer.conf(entries)
    return {
        "kind": kind,
        "conf": [shown.conf] if listed else shown.conf,
        **_field_origins(shown),
        "origins": _origins(viewer.db, entries),
    }


INACTIVE: Final = "stored, does not act yet"


def _with_inactive(
    db: Db,
    list_: str,
    by_kind: Iterable[tuple[str, Entries]],
    shown: Callable[[str, Entries], Json],
    *,
    is_gateway: bool = False,
) -> Json:
    """The kinds that act, as `shown` shows them; under `inactive` those that are only stored, if any."""
    all_kinds = tuple(by_kind)
    acting = [(kind, entries) for kind, entries in all_kinds if acts(db, kind, list_, is_gateway=is_gateway)]
    inactive = [
        {"kind": kind, "origins": _origins(db, entries), "reason": INACTIVE}
        for kind, entries in all_kinds
        if not acts(db, kind, list_, is_gateway=is_gateway)
    ]
    return {
        "policies": [shown(kind, entries) for kind, entries in acting],
        **({"inactive": inactive} if inactive else {}),
    }


def acts(db: Db, kind: str, list_: str, *, is_gateway: bool = False) -> bool:
    """Whether entries of a list (`to`, `rules`) reach Envoy; an empty name means whole-proxy `default`s."""
    policy = world.kind_of(db, kind).policy
    if policy is None:
        return False
    return policy.acts_on_gateways(list_) if is_gateway else policy.acts_on_sidecars(list_)


def whole_policies(db: Db, proxy: Key, *, fields: bool = False) -> Json:
    """The policies about a proxy as a whole, merged, in policy order."""
    viewer = Viewer(db, fields=fields)
    by_kind = rules.whole_proxy(db, _class(db, proxy))
    shown = partial(_merged, viewer, listed=False)
    return _with_inactive(db, "", by_kind, shown, is_gateway=_proxy(db, proxy).is_builtin)


def inbound_sections(db: Db, proxy: Key) -> tuple[str, ...]:
    """The inbounds of a proxy, by the names that KRIs use."""
    return tuple(inbound.section for inbound in _proxy(db, proxy).inbounds)


def inbound_policies(db: Db, proxy: Key, section: str, *, fields: bool = False) -> Json:
    """The rules for calls that arrive at one inbound; not merged, since each may be for other clients."""
    traits = matching.traits(db, proxy)
    assert traits is not None, proxy
    return policies_on_inbound(db, traits, section, fields=fields)


def policies_on_inbound(db: Db, traits: matching.Traits, section: str, *, fields: bool = False) -> Json:
    """The same for proxies with these traits."""
    viewer = Viewer(db, fields=fields)
    by_kind = dict(inbound.of(db, traits, section))

    def shown(kind: str, entries: Entries) -> Json:
        inbound_rules = [_inbound_rule(viewer, rule) for rule in by_kind[kind]]
        return {"kind": kind, "rules": inbound_rules, "origins": _origins(db, entries)}

    entries = ((kind, tuple(rule.entry for rule in inbound_rules)) for kind, inbound_rules in by_kind.items())
    return _with_inactive(db, "rules", entries, shown)


def _inbound_rule(viewer: Viewer, rule: InboundRule) -> Json:
    shown = viewer.conf((rule.entry,))
    client: dict[str, Json] = {}
    if rule.client.tags:
        client["matchers"] = rules_view.matchers(rule.client)
    elif rule.client != Client():
        client["match"] = rules_view.client_match(rule.client)
    return {
        "kri": kri(viewer.db, rule.entry.policy),
        **client,
        "conf": shown.conf,
        **_field_origins(shown),
    }


def outbound(db: Db, proxy: Key, destination: Key, section: str) -> PortRules | None:
    """The port of that name or number that a proxy calls, if it does."""
    target = world.destination(db, destination) if destination.kind in world.DESTINATION_KINDS else None
    port = target.port(section) if target else None
    if port is None:
        return None
    return next(
        (p for p in called(db, proxy) if (p.destination, p.section) == (destination, port.section)), None
    )


def outbound_policies(db: Db, port: PortRules, *, fields: bool = False) -> Json:
    """The merged confs for calls to one port, without routes."""
    viewer = Viewer(db, fields=fields)
    return _with_inactive(db, "to", port.entries, partial(_merged, viewer, listed=True))


def merged_policies(db: Db, by_kind: ByKind, *, fields: bool = False) -> Iterator[Json]:
    """The merged conf of each kind."""
    viewer = Viewer(db, fields=fields)
    for kind, entries in by_kind:
        yield _merged(viewer, kind, entries, listed=True)


def route_policies(db: Db, port: PortRules, route: Key, *, fields: bool = False) -> Json:
    """The merged confs for calls to one port through a route; a route inherits the port's confs.

    With `fields`, `setByRules` of a field has what rules of the route say instead for their requests;
    `acts` is false where all of them do.
    """
    viewer = Viewer(db, fields=fields)
    by_route_kind = dict(_routes(db, port))
    acting = {entry.policy for entries in by_route_kind.values() for entry in entries}
    by_kind = next((entries_by_kind for each, entries_by_kind in port.routes if each.key == route), ())
    every = viewer.route_rules(by_route_kind.get(target_ref.HTTP_ROUTE, ())) if fields else ()
    own = tuple(each.rule for each in every if each.rule.origin == route)
    shown = partial(_merged_on_route, viewer, own)
    return _with_inactive(db, "to", by_kind if route in acting else (), shown)


def _merged_on_route(viewer: Viewer, own: Sequence[RouteRule], kind: str, entries: Entries) -> Json:
    """The merged conf of a kind for a route, and where the route's own rules come instead."""
    merged = _merged(viewer, kind, entries, listed=True)
    policy = world.kind_of(viewer.db, kind).policy
    for field, origin in (merged.get("fieldOrigins") or {}).items():
        setting = policy.setting_of_rules(field) if policy else ""
        instead = [found for rule in own if setting and (found := viewer.of_rule(rule, setting))]
        if instead:
            origin |= {"setByRules": instead, "acts": len(instead) < len(own)}
    return merged


def route_named(db: Db, port: PortRules, kri: str) -> Key | None:
    """The route of this KRI that a port has: also one that was converted, which has its source's KRI."""
    acting = (entry.policy for _, entries in _routes(db, port) for entry in entries)
    return next((key for key in acting if encoding.kri(db, key, "") == kri), None)


def _routes(db: Db, port: PortRules) -> Iterator[tuple[str, Entries]]:
    """The routes that act: HTTP ones on a port that speaks HTTP, and TCP ones where none of those is."""
    if rules.protocol(db, port) in world.HTTP_PROTOCOLS:
        if port.http:
            yield target_ref.HTTP_ROUTE, port.http
    elif port.tcp:
        yield target_ref.TCP_ROUTE, port.tcp


def outbound_routes(db: Db, port: PortRules, *, fields: bool = False) -> Json:
    """The rules of the routes that act on calls to one port, those of the most important policy first."""
    viewer = Viewer(db, fields=fields)
    return {
        "routes": [
            {
                "kind": kind,
                "origins": _origins(db, entries),
                "rules": _route_rules(viewer, kind, entries),
                **_tried(viewer, kind, entries),
            }
            for kind, entries in _routes(db, port)
        ]
    }


def _route_rules(viewer: Viewer, kind: str, entries: Entries) -> list[Json]:
    if kind == target_ref.TCP_ROUTE:  # merged to one rule for all connections, which is of no single policy
        shown = viewer.conf(entries)
        return [{"kri": "", "matches": None, "conf": shown.conf, **_field_origins(shown)}]
    return [
        {
            "kri": kri(viewer.db, each.rule.origin),
            "matches": each.matches,
            "conf": each.shown.conf,
            **_field_origins(each.shown),
        }
        for each in viewer.route_rules(entries)
    ]


def _tried(viewer: Viewer, kind: str, entries: Entries) -> dict[str, Json]:
    """The matches in the order in which a request tries them; the first that fits decides."""
    if kind != target_ref.HTTP_ROUTE:
        return {}
    candidates = routes.ranked([each.rule for each in viewer.route_rules(entries)])
    return {"tried": [{"kri": kri(viewer.db, each.rule.origin), "match": each.match} for each in candidates]}


def dataplanes(db: Db, target: Key, name_part: str = "") -> tuple[Key, ...]:
    """By core name: the proxies that a policy selects, that are a MeshService, or serve a MeshGateway."""
    match target.kind:
        case "MeshService":
            proxies = members(db, target)
        case "MeshGateway":
            proxies = _serving(db, target)
        case _:
            proxies = matching.selected_by(db, target)
    named = sorted((_proxy(db, key).core_name, key) for key in proxies)
    return tuple(key for name, key in named if name_part in name)


def _serving(db: Db, gateway: Key) -> Iterator[Key]:
    for key in matching.proxies(db, gateway.mesh):
        traits = matching.traits(db, key)
        if traits is not None and traits.gateway == gateway:
            yield key


def attachment(db: Db, policy: Key, proxy: Key) -> Json:
    """A proxy that a policy acts on, in Kuma's older shape; a policy is attached to a whole proxy."""
    shown: dict[str, Json] = {"dataplane": {"mesh": proxy.mesh, "name": _proxy(db, proxy).core_name}}
    if policy.kind == "MeshGateway":
        return shown
    traits = matching.traits(db, proxy)
    gateway = world.RESOURCES.get(db, traits.gateway) if traits is not None and traits.gateway else None
    if gateway is None:
        return {"kind": "SidecarDataplane", **shown, "attachments": [{"type": "dataplane"}]}
    return {
        "kind": "MeshGatewayDataplane",
        **shown,
        "gateway": {"mesh": gateway.mesh, "name": gateway.core_name},
        "listeners": [_listener(each) for each in (gateway.spec.get("conf") or {}).get("listeners") or ()],
    }


def _listener(listener: Json) -> Json:
    host: Json = {"hostName": listener.get("hostname") or "*", "routes": []}
    return {"port": listener.get("port") or 0, "protocol": listener.get("protocol") or "TCP", "hosts": [host]}


def gateway_proxy(gateway: Resource, control_plane: ControlPlaneInfo) -> Resource:
    """A proxy as it would serve a MeshGateway: a built-in gateway with the tags of the first selector."""
    selectors = gateway.spec.get("selectors")
    own: Json = (selectors[0].get("match") if selectors else None) or {}
    serving = {"type": "BUILTIN", "tags": {name: value for name, value in own.items() if value != tags.ANY}}
    return Resource(
        kind="Dataplane",
        mesh=gateway.mesh,
        zone=control_plane.zone,
        namespace=gateway.namespace,
        name=gateway.name,
        core_name=gateway.core_name,
        labels={labels.ORIGIN: control_plane.origin, labels.MESH: gateway.mesh},
        spec={"networking": {"address": "127.0.0.1", "gateway": serving}},
    )


def members(db: Db, service: Key) -> Iterator[Key]:
    """The proxies that are a MeshService; asks every proxy of the mesh, so only for people."""
    resource = world.RESOURCES.get(db, service)
    if resource is not None:
        for key in matching.proxies(db, service.mesh):
            if (key.zone == service.zone or not service.zone) and _is_member(db, resource, _proxy(db, key)):
                yield key


def _is_member(db: Db, service: Resource, proxy: Proxy) -> bool:
    selector = service.spec.get("selector") or {}
    if selector.get("dataplaneRef"):
        name = selector["dataplaneRef"].get("name")
        return name in (proxy.key.name, proxy.core_name) and proxy.key.namespace == service.namespace
    if selector.get("dataplaneLabels") is not None:
        required = world.pairs(selector["dataplaneLabels"].get("matchLabels"))
        return set(required) <= set(world.labels_of(db, proxy.key))
    required = world.pairs(selector.get("dataplaneTags"))
    return bool(required) and any(_has_tags(proxy, inbound.tags, required) for inbound in proxy.inbounds)


def _has_tags(proxy: Proxy, own: world.Pairs, required: world.Pairs) -> bool:
    """As for selectors of policies: tags that an inbound lacks are taken from its proxy's labels."""
    return rules_view.covers(required, world.pairs({**dict(proxy.labels), **dict(own)}))
