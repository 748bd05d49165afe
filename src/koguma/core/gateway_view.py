"""Gateway view: what a MeshGateway serves, for people: its proxies, listeners, hosts, routes, and why not.

Hosts and routes are the answers of the questions that the build asks (`build.gateway_hosts`,
`build.gateway_overlays`), so nobody is shown what Envoy does not get.
"""

from koguma.core import gateway_attachment, gateways, inbound, match, problems, world
from koguma.core.build import gateway_hosts, gateway_overlays
from koguma.core.gateways import Listener
from koguma.core.incremental import Db
from koguma.core.match import Traits
from koguma.core.meta import kri, meta
from koguma.core.policy_set import Policies
from koguma.model import hostname, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json


def of_gateway(db: Db, gateway: Key) -> Json:
    """What a MeshGateway serves; without a proxy, what one with the tags of its first selector would."""
    (traits, *_) = gateway_attachment.traits_of(db, gateway)
    warnings = [problem.text for problem in problems.of_object(db, gateway)]
    return {
        "kri": kri(db, gateway),
        "dataplanes": [meta(db, proxy) for proxy in gateway_attachment.serving(db, gateway)],
        "listeners": listeners(db, gateway, traits),
        **({"warnings": warnings} if warnings else {}),
    }


def listeners(db: Db, gateway: Key, traits: Traits) -> list[Json]:
    """The listeners of a gateway as proxies with these traits serve them."""
    return [_listener(db, gateway, traits, each) for each in gateways.listeners(db, gateway)]


def _listener(db: Db, gateway: Key, traits: Traits, listener: Listener) -> Json:
    selecting = inbound.policies_of(db, traits, listener.section)
    acting = gateway_overlays.without_routes(selecting)
    of_kinds = (of_kind for kind, of_kind in selecting if kind in gateways.ROUTE_KINDS)
    routes = Policies(part for of_kind in of_kinds for part in of_kind.parts)
    kinds = {kind for kind, _ in gateway_overlays.arriving(db, acting)}
    kinds |= {kind for kind, of_kind in acting if gateway_overlays.acts_on_calls(db, kind)}
    if listener.is_cross_mesh:
        kinds |= {kind for kind, _ in gateway_overlays.permitting(db, acting)}
    return {
        "kri": kri(db, gateway, str(listener.port)),
        **({"name": listener.name} if listener.name else {}),
        "port": listener.port,
        "protocol": listener.protocol,
        "hostname": listener.hostname,
        **({"crossMesh": gateways.called_name(gateway, listener)} if listener.is_cross_mesh else {}),
        "hosts": _hosts(db, gateway, listener, routes)
        if listener.is_http or listener.has_tls
        else _connections(db, routes),
        "policies": [kind for kind in match.policy_kinds(db) if kind in kinds],
        "refused": _refused(db, gateway, listener, routes),
    }


def _hosts(db: Db, gateway: Key, listener: Listener, routes: Policies) -> list[Json]:
    port = tuple(each.hostname for each in gateways.listeners(db, gateway) if each.port == listener.port)
    kinds = gateways.HTTP_ROUTES if listener.is_http else (target_ref.TCP_ROUTE,)
    of_kind = Policies.of(key for key in routes if key.kind in kinds)
    return [
        {
            "hostname": host.hostname,
            "routes": [
                {"kri": kri(db, policy), "kind": policy.kind}
                for policy in dict.fromkeys(
                    entry.policy for _, entries in host.routes for entry in reversed(entries)
                )
            ],
        }
        for host in gateway_hosts.served(db, listener, of_kind, port)
    ]


def _connections(db: Db, routes: Policies) -> list[Json]:
    tcp = Policies.of(key for key in routes if key.kind == target_ref.TCP_ROUTE)
    attached = dict.fromkeys(route.entry.policy for route in gateways.attached(db, tcp))
    shown = [{"kri": kri(db, policy), "kind": policy.kind} for policy in attached]
    return [{"hostname": hostname.ANY, "routes": shown}]


def _refused(db: Db, gateway: Key, listener: Listener, routes: Policies) -> list[Json]:
    """The routes that select a listener, and that it does not take."""
    attachments = (
        gateway_attachment.of_entry(db, gateway, listener, route)
        for policy in routes
        if gateways.is_attached(db, policy)
        for route in gateways.entries(db, policy)
    )
    return [
        {"kri": kri(db, each.policy), "path": each.path, "reason": each.refusal}
        for each in attachments
        if each.refusal
    ]


def of_proxy(db: Db, proxy: Key) -> list[Json]:
    """The listeners of a built-in gateway's proxy; none where no MeshGateway selects it."""
    traits = match.traits(db, proxy)
    if traits is None or traits.gateway is None or world.RESOURCES.get(db, traits.gateway) is None:
        return []
    return listeners(db, traits.gateway, traits)
