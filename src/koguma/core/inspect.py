"""Inspect: what acts on a proxy, on one of its ports, on a call through a route; and whom a policy acts on.

Pure views for people, from the engine's database to JSON-shaped values, in the shapes of Kuma 2.13's Inspect
API. Configurations come out of the same entries and the same merge as those that proxies get. With `fields`
every configuration is shown with who set each of its fields, under `fieldOrigins`: Kuma has `origins` for the
policies as a whole. Policies of which nothing is built yet are no part of that; they stand under `inactive`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from koguma.core import inbound, problems, routes, rules, rules_view, world
from koguma.core import match as matching
from koguma.core.build import network
from koguma.core.inbound import Client, InboundRule
from koguma.core.incremental import Db
from koguma.core.items import Entries
from koguma.core.meta import kri
from koguma.core.provenance import ShownConf, Viewer
from koguma.core.rules import PortRules, ProxyClass
from koguma.core.world import Proxy
from koguma.model import labels, tags, target_ref
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json


def _proxy(db: Db, key: Key) -> Proxy:
    found = world.proxy(db, key)
    assert found is not None, key
    return found


def _class(db: Db, proxy: Key) -> ProxyClass:
    found = rules.class_of(db, proxy)
    assert found is not None, proxy
    return found


def layout(db: Db, key: Key) -> Json:
    """The ports that a proxy serves and calls, with the names that they have in Envoy, and what is odd."""
    proxy = _proxy(db, key)
    inbounds = [
        {
            **_named(kri(db, key, inbound.section), inbound.port, inbound.protocol),
            **_state(db, key, inbound.section),
        }
        for inbound in proxy.inbounds
    ]
    outbounds = [_outbound(db, port) for port in rules.ports(db, _class(db, key))]
    odd = [problem.text for problem in problems.of_object(db, key)]
    return {
        "kri": kri(db, key),
        "labels": dict(proxy.labels),
        "inbounds": inbounds,
        "outbounds": sorted(outbounds, key=lambda outbound: str(outbound["kri"])),
        **({"warnings": odd} if odd else {}),
    }


def _state(db: Db, key: Key, section: str) -> dict[str, Json]:
    """That an inbound takes no calls; nothing where it does, as Kuma's answer has it."""
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
    found = destination.port(port.section) if destination else None
    return (found.number, found.protocol) if found else (0, "tcp")


def _origins(db: Db, entries: Entries) -> list[Json]:
    return [{"kri": kri(db, policy)} for policy in dict.fromkeys(entry.policy for entry in entries)]


def _field_origins(shown: ShownConf) -> dict[str, Json]:
    return {"fieldOrigins": shown.origins} if shown.origins is not None else {}


def _merged(viewer: Viewer, kind: str, entries: Entries, *, listed: bool) -> Json:
    """What entries of a kind make together; Kuma shows it alone for whole proxies, else as a list of one."""
    shown = viewer.conf(entries)
    return {
        "kind": kind,
        "conf": [shown.conf] if listed else shown.conf,
        **_field_origins(shown),
        "origins": _origins(viewer.db, entries),
    }


INACTIVE: Final = "stored, does not act yet"


def _with_inactive(
    db: Db, list_: str, found: Iterable[tuple[str, Entries]], shown: Callable[[str, Entries], Json]
) -> Json:
    """What acts of these; and what is stored only, where there is anything like that."""
    all_found = tuple(found)
    acting = [(kind, entries) for kind, entries in all_found if acts(db, kind, list_)]
    inactive = [
        {"kind": kind, "origins": _origins(db, entries), "reason": INACTIVE}
        for kind, entries in all_found
        if not acts(db, kind, list_)
    ]
    return {
        "policies": [shown(kind, entries) for kind, entries in acting],
        **({"inactive": inactive} if inactive else {}),
    }


def acts(db: Db, kind: str, list_: str) -> bool:
    """Whether what entries of a list say reaches an Envoy; without a list, what is said of whole proxies."""
    policy = world.kind_of(db, kind).policy
    return policy is not None and policy.acts_by(list_)


def whole_policies(db: Db, proxy: Key, *, fields: bool = False) -> Json:
    """The policies about a proxy as a whole, merged, in policy order."""
    viewer = Viewer(db, fields=fields)
    found = rules.whole_proxy(db, _class(db, proxy))
    return _with_inactive(db, "", found, partial(_merged, viewer, listed=False))


def inbound_sections(db: Db, proxy: Key) -> tuple[str, ...]:
    """The inbounds of a proxy, by the names that KRIs use."""
    return tuple(inbound.section for inbound in _proxy(db, proxy).inbounds)


def inbound_policies(db: Db, proxy: Key, section: str, *, fields: bool = False) -> Json:
    """The rules for calls that arrive at one inbound: not merged, since each may be for other clients."""
    viewer = Viewer(db, fields=fields)
    seen = matching.traits(db, proxy)
    assert seen is not None, proxy
    by_kind = dict(inbound.of(db, seen, section))

    def shown(kind: str, entries: Entries) -> Json:
        arriving = [_inbound_rule(viewer, rule) for rule in by_kind[kind]]
        return {"kind": kind, "rules": arriving, "origins": _origins(db, entries)}

    entries = ((kind, tuple(rule.entry for rule in found)) for kind, found in by_kind.items())
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
    known = world.destination(db, destination) if destination.kind in world.DESTINATION_KINDS else None
    port = known.port(section) if known else None
    if port is None:
        return None
    reached = rules.ports(db, _class(db, proxy))
    return next((p for p in reached if (p.destination, p.section) == (destination, port.section)), None)


def outbound_policies(db: Db, port: PortRules, *, fields: bool = False) -> Json:
    """What is merged for calls to one port, routes aside."""
    viewer = Viewer(db, fields=fields)
    return _with_inactive(db, "to", port.entries, partial(_merged, viewer, listed=True))


def route_policies(db: Db, port: PortRules, route: Key, *, fields: bool = False) -> Json:
    """What is merged for calls to one port through a route; it contains what the port's rules say."""
    viewer = Viewer(db, fields=fields)
    acting = {entry.policy for _, entries in _routes(db, port) for entry in entries}
    found = next((by_kind for each, by_kind in port.routes if each.key == route), ())
    return _with_inactive(db, "to", found if route in acting else (), partial(_merged, viewer, listed=True))


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
    if kind == target_ref.TCP_ROUTE:  # all of it is one rule, for all connections and of no single policy
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
    found = routes.ranked([each.rule for each in viewer.route_rules(entries)])
    return {"tried": [{"kri": kri(viewer.db, each.rule.origin), "match": each.match} for each in found]}


def dataplanes(db: Db, of: Key, name_part: str = "") -> tuple[Key, ...]:
    """By core name: the proxies that a policy selects, that are a MeshService, or serve a MeshGateway."""
    match of.kind:
        case "MeshService":
            found = members(db, of)
        case "MeshGateway":
            found = _serving(db, of)
        case _:
            found = matching.selected_by(db, of)
    named = sorted((_proxy(db, key).core_name, key) for key in found)
    return tuple(key for name, key in named if name_part in name)


def _serving(db: Db, gateway: Key) -> Iterator[Key]:
    for key in matching.proxies(db, gateway.mesh):
        seen = matching.traits(db, key)
        if seen is not None and seen.gateway == gateway:
            yield key


def attachment(db: Db, of: Key, proxy: Key) -> Json:
    """A proxy that a policy acts on, as Kuma's older view shows it; a policy is attached to a whole proxy."""
    shown: dict[str, Json] = {"dataplane": {"mesh": proxy.mesh, "name": _proxy(db, proxy).core_name}}
    if of.kind == "MeshGateway":
        return shown
    seen = matching.traits(db, proxy)
    gateway = world.RESOURCES.get(db, seen.gateway) if seen is not None and seen.gateway else None
    if gateway is None:
        return {"kind": "SidecarDataplane", **shown, "attachments": [{"type": "dataplane"}]}
    return {
        "kind": "MeshGatewayDataplane",
        **shown,
        "gateway": {"mesh": gateway.mesh, "name": gateway.core_name},
        "listeners": [_listener(each) for each in (gateway.spec.get("conf") or {}).get("listeners") or ()],
    }


def _listener(of: Json) -> Json:
    host: Json = {"hostName": of.get("hostname") or "*", "routes": []}
    return {"port": of.get("port") or 0, "protocol": of.get("protocol") or "TCP", "hosts": [host]}


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
        wanted = world.pairs(selector["dataplaneLabels"].get("matchLabels"))
        return set(wanted) <= set(world.labels_of(db, proxy.key))
    wanted = world.pairs(selector.get("dataplaneTags"))
    return bool(wanted) and any(_has_tags(proxy, inbound.tags, wanted) for inbound in proxy.inbounds)


def _has_tags(proxy: Proxy, own: world.Pairs, wanted: world.Pairs) -> bool:
    """As for selectors of policies: what an inbound does not say itself, its proxy's labels say."""
    return rules_view.covers(wanted, world.pairs({**dict(proxy.labels), **dict(own)}))
