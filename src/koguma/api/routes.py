"""Routes: which path leads to which handlers."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from koguma.api import parameters, reasons, zone_membership
from koguma.api.backup import Backup
from koguma.api.call import Call
from koguma.api.can import Can
from koguma.api.dispatch import Handler, HttpEndpoint, Route, RouteMatch
from koguma.api.envoy_views import EnvoyPages
from koguma.api.history import History
from koguma.api.inspect import Inspect
from koguma.api.overviews import Overviews
from koguma.api.parameters import PlainPath
from koguma.api.plain import PlainObjects
from koguma.api.plan import Plans
from koguma.api.proxies import Proxies
from koguma.api.service_endpoints import ServiceEndpoints
from koguma.api.storage_migration import StorageMigrations
from koguma.api.system import System
from koguma.api.tokens import TokenIssuer
from koguma.api.traffic import Top
from koguma.api.undo import Undo
from koguma.api.watch import Watches
from koguma.api.zone_membership import ZoneMembership
from koguma.api.zone_proxies import ZoneProxies
from koguma.application import moments
from koguma.identity.proxy_types import EGRESS, INGRESS, SIDECAR
from koguma.model.errors import NotAllowed
from koguma.model.kind import Kind, Kinds

_ITEM_TITLES = {
    "GET": "Could not retrieve a resource",
    "HEAD": "Could not retrieve a resource",
    "PUT": "Could not process a resource",
    "PATCH": "Could not process a resource",
    "DELETE": "Could not delete a resource",
}
_ZONE_PROXIES = (INGRESS.kind, EGRESS.kind)
_LIST_TITLES = {"GET": "Could not retrieve resources", "HEAD": "Could not retrieve resources"}


def fixed(
    system: System,
    plans: Plans,
    backup: Backup,
    migrations: StorageMigrations,
    issuer: TokenIssuer,
    membership: ZoneMembership,
    pages: Mapping[str, tuple[Handler, bool]],
) -> Route:
    """Paths without a variable part, and `/_kri/{kri}`. `pages`: handler, and whether it needs no login."""
    endpoints = {
        "/": HttpEndpoint("index", {"GET": system.index}, is_open=True),
        "/config": HttpEndpoint("config", {"GET": system.config}),
        "/who-am-i": HttpEndpoint("who-am-i", {"GET": system.who_am_i}),
        "/policies": HttpEndpoint("policies", {"GET": system.policies}),
        "/_resources": HttpEndpoint("resources", {"GET": system.resources}),
        "/_apply": HttpEndpoint("apply", {"POST": plans.apply.apply}, {"POST": "Could not apply resources"}),
        "/_plan": HttpEndpoint("plan", {"POST": plans.plan}, {"POST": "Could not plan a change"}),
        "/_export": HttpEndpoint("export", {"GET": backup.export}, {"GET": "Could not export the store"}),
        "/_import": HttpEndpoint("import", {"POST": backup.restore}, {"POST": "Could not import a backup"}),
        "/_migrations/storage": HttpEndpoint(
            "migration",
            {"GET": migrations.show, "POST": migrations.step},
            {"POST": "Could not migrate what is stored"},
        ),
        zone_membership.JOIN: HttpEndpoint(
            "zone", {"POST": membership.join}, {"POST": "Could not join Global"}
        ),
        zone_membership.LEAVE: HttpEndpoint(
            "zone", {"POST": membership.leave}, {"POST": "Could not leave Global"}
        ),
        "/_kri/{kri}": HttpEndpoint("kri", {"GET": system.by_kri}, _ITEM_TITLES),
        "/tokens/user": _token(issuer.user),
        "/tokens/dataplane": _token(issuer.dataplane),
        "/tokens/zone": _token(issuer.zone),
        "/tokens/_review": HttpEndpoint(
            "token-review", {"POST": issuer.review}, {"POST": "Could not review a token"}
        ),
    }
    for path, (handler, is_open) in pages.items():
        endpoints[f"/{path}"] = HttpEndpoint(path, {"GET": handler}, is_open=is_open)
    declared = {path: _declared(endpoint, parameters.SYSTEM[path]) for path, endpoint in endpoints.items()}
    by_kri = declared.pop("/_kri/{kri}")
    table = {tuple(part for part in path.split("/") if part): endpoint for path, endpoint in declared.items()}

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        endpoint = table.get(segments)
        if endpoint is not None:
            return endpoint, ()
        if len(segments) == 2 and segments[0] == "_kri":  # noqa: PLR2004 - /_kri/{kri}
            return by_kri, (segments[1],)
        return None

    return route


def _declared(endpoint: HttpEndpoint, path: PlainPath) -> HttpEndpoint:
    """An endpoint that refuses query parameters which its path does not have."""
    return msgspec.structs.replace(endpoint, queries=path.queries)


def _token(handler: Handler) -> HttpEndpoint:
    return HttpEndpoint("token", {"POST": handler}, {"POST": "Could not issue a token"})


def objects(kinds: Kinds, handlers: PlainObjects, watches: Watches) -> Route:
    """`/<kind>`, `/<kind>/{name}`, `/meshes/{mesh}/<kind>`, `/meshes/{mesh}/<kind>/{name}`."""

    async def show(call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        if call.query and call.flag("watch"):
            if kind.computed is not None:
                raise NotAllowed(reasons.unwatchable(kind))
            moments.refuse_with_watch(call.query.get("at"))
            return await watches.watch(call, kind, mesh)
        return await handlers.list(call, kind, mesh)

    methods = {
        "GET": handlers.get,
        "PUT": handlers.put,
        "PATCH": handlers.patch,
        "DELETE": handlers.delete,
    }
    many = HttpEndpoint("list", {"GET": show}, _LIST_TITLES)
    one = HttpEndpoint("item", methods, _ITEM_TITLES)
    read_only = HttpEndpoint(
        "item", methods, _ITEM_TITLES, allowed=("GET",)
    )  # the other handlers answer why not
    lists = {kind.name: _declared(many, parameters.listed(kind)) for kind in kinds}
    items = {
        kind.name: _declared(read_only if kind.read_only else one, parameters.item(kind)) for kind in kinds
    }

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        meshed = len(segments) > 2 and segments[0] == "meshes"  # noqa: PLR2004 - /meshes/{mesh}/<kind>
        mesh, rest = (segments[1], segments[2:]) if meshed else (None, segments)
        kind = kinds.by_path.get(rest[0]) if rest else None
        if kind is None or (meshed and not kind.is_mesh_scoped):
            return None
        match len(rest):
            case 1:
                return lists[kind.name], (kind, mesh)
            case 2 if meshed or not kind.is_mesh_scoped:
                return items[kind.name], (kind, mesh or "", rest[1])
            case _:
                return None

    return route


def overviews(kinds: Kinds, handlers: Overviews) -> Route:
    """`_overview` below a kind or an object of it, and Kuma's older paths for the same."""
    by_older_path = {path: kinds[name] for name, path in parameters.OVERVIEWS.items()}
    many = HttpEndpoint("overview", {"GET": handlers.list}, _LIST_TITLES)
    lists = {name: _declared(many, parameters.overviews(kinds[name])) for name in parameters.OVERVIEWS}
    one = _declared(HttpEndpoint("overview", {"GET": handlers.get}, _ITEM_TITLES), parameters.UNPAGED)

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        meshed = len(segments) > 2 and segments[0] == "meshes"  # noqa: PLR2004 - /meshes/{mesh}/<kind>
        mesh, rest = (segments[1], segments[2:]) if meshed else (None, segments)
        kind = by_older_path.get(rest[0]) if rest else None
        if kind is not None:
            rest = (*rest, parameters.OVERVIEW)
        elif rest and rest[-1] == parameters.OVERVIEW:
            kind = kinds.by_path.get(rest[0])
        if kind is None or kind.name not in lists or (meshed and not kind.is_mesh_scoped):
            return None
        match rest:
            case (_, _):
                return lists[kind.name], (kind, mesh)
            case (_, name, _) if meshed or not kind.is_mesh_scoped:
                return one, (kind, mesh or "", name)
        return None

    return route


def inspect(
    kinds: Kinds, handlers: Inspect, proxies: Proxies, zone_proxies: ZoneProxies, pages: EnvoyPages
) -> Route:
    """Paths below a Dataplane, a zone proxy, a policy or a service."""
    of_envoy: dict[str, Callable[..., Awaitable[web.StreamResponse]]] = {
        "xds": pages.xds,
        "stats": pages.stats,
        "clusters": pages.clusters,
    }
    sidecar = kinds[SIDECAR.kind]
    of_proxy: dict[str, Handler] = {
        **{path: _of_kind(handler, sidecar) for path, handler in of_envoy.items()},
        "_rules": handlers.rules,
        "_policies": handlers.policies,
        "_layout": handlers.layout,
        "_config": proxies.config,
        "_explain": handlers.explain,
        "_inbounds/{kri}/_policies": handlers.inbound_policies,
        "_outbounds/{kri}/_policies": handlers.outbound_policies,
        "_outbounds/{kri}/_routes": handlers.outbound_routes,
        "_outbounds/{kri}/_routes/{route}/_policies": handlers.route_policies,
    }
    # Below a Dataplane, fixed words and KRIs alternate, so the words alone identify the endpoint.
    endpoints = {
        tuple(path.split("/"))[::2]: _inspected(of_proxy[path], declared)
        for path, declared in parameters.OF_PROXY.items()
    }
    of_object: dict[str, Handler] = {
        "_resources/dataplanes": handlers.dataplanes,
        "-resources/dataplanes": handlers.dataplanes,
        "_dataplanes": handlers.dataplanes,
        "dataplanes": handlers.attached,
        "_hostnames": handlers.hostnames,
        "_rules": handlers.gateway_rules,
        "_layout": handlers.gateway_layout,
    }
    below = {
        (kind.name, path): _inspected(of_object[path], declared)
        for kind in kinds
        if kind.name not in ("Dataplane", *_ZONE_PROXIES)
        for path, declared in parameters.below(kind).items()
    }
    below_zone_proxy = _below_zone_proxies(
        kinds, zone_proxies, {path: _of_zone(handler) for path, handler in of_envoy.items()}
    )

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        match segments:
            case ("meshes", mesh, path, name, _, *_):
                kind, rest = kinds.by_path.get(path), segments[4:]
            case (path, name, word):
                kind = kinds.by_path.get(path)
                endpoint = below_zone_proxy.get((kind.name, word)) if kind is not None else None
                return (endpoint, (kind, name)) if endpoint else None
            case _:
                return None
        if kind is not None and kind.name == "Dataplane":
            endpoint = endpoints.get(rest[::2]) if len(rest) % 2 else None
            return (endpoint, (mesh, name, *rest[1::2])) if endpoint else None
        endpoint = below.get((kind.name, "/".join(rest))) if kind is not None else None
        return (endpoint, (kind, mesh, name)) if endpoint else None

    return route


def _below_zone_proxies(
    kinds: Kinds, handlers: ZoneProxies, of_envoy: Mapping[str, Handler]
) -> dict[tuple[str, str], HttpEndpoint]:
    """What stands below a ZoneEgress or ZoneIngress, by the kind and the word."""
    of_path: dict[str, Handler] = {
        "_config": handlers.config,
        "_explain": handlers.explain,
        "_policies": handlers.policies,
        **of_envoy,
    }
    return {
        (name, path): _inspected(of_path[path], declared)
        for name in _ZONE_PROXIES
        for path, declared in parameters.below(kinds[name]).items()
    }


def _of_kind(handler: Callable[..., Awaitable[web.StreamResponse]], kind: Kind) -> Handler:
    """A handler for proxies of a mesh, whose kind is known."""

    async def handle(call: Call, mesh: str, name: str) -> web.StreamResponse:
        return await handler(call, kind, mesh, name)

    return handle


def _of_zone(handler: Callable[..., Awaitable[web.StreamResponse]]) -> Handler:
    """A handler for zone proxies, which are in no mesh."""

    async def handle(call: Call, kind: Kind, name: str) -> web.StreamResponse:
        return await handler(call, kind, "", name)

    return handle


def histories(kinds: Kinds, history: History, undo: Undo) -> Route:
    """`/_history`, `/_differences`, `/_undo`, and `_history` below an object of any kind that is stored."""
    endpoints = {
        "/_history": HttpEndpoint(
            "history", {"GET": history.list}, {"GET": "Could not retrieve the history"}
        ),
        "/_differences": HttpEndpoint(
            "differences", {"GET": history.differences}, {"GET": "Could not compare revisions"}
        ),
        "/_undo": HttpEndpoint("undo", {"POST": undo.undo}, {"POST": "Could not undo a revision"}),
    }
    declared = {
        path[1:]: _declared(endpoint, parameters.SYSTEM[path]) for path, endpoint in endpoints.items()
    }
    of_object = _declared(
        HttpEndpoint("history", {"GET": history.of_object}, _ITEM_TITLES), parameters.OF_OBJECT_HISTORY
    )

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        match segments:
            case (word,) if word in declared:
                return declared[word], ()
            case ("meshes", mesh, path, name, parameters.HISTORY):
                kind = kinds.by_path.get(path)
                fits = kind is not None and kind.is_mesh_scoped
            case (path, name, parameters.HISTORY):
                kind, mesh = kinds.by_path.get(path), ""
                fits = kind is not None and not kind.is_mesh_scoped
            case _:
                return None
        is_stored = kind is not None and bool(parameters.histories(kind))
        return (of_object, (kind, mesh, name)) if fits and is_stored else None

    return route


def surveys(kinds: Kinds, top: Top, endpoints: ServiceEndpoints) -> Route:
    """Paths for which many Envoys are asked: `_top` below a Mesh, `_endpoints` below a service."""
    handlers: dict[str, Handler] = {"_top": top.show, "_endpoints": endpoints.show}
    below = {
        (kind.name, path): _inspected(handlers[path], declared)
        for kind in kinds
        for path, declared in parameters.surveys(kind).items()
    }

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        match segments:
            case ("meshes", _, word):
                kind, names = kinds["Mesh"], segments[1:2]
            case ("meshes", mesh, path, name, word) if path in kinds.by_path:
                kind, names = kinds.by_path[path], (mesh, name)
            case _:
                return None
        endpoint = below.get((kind.name, word))
        return (endpoint, (kind, *names)) if endpoint else None

    return route


def answers(kinds: Kinds, can: Can) -> Route:
    """Paths below a Mesh that answer questions about it."""
    mesh_kind = kinds["Mesh"]
    handlers: dict[str, Handler] = {"_can": can.show}
    endpoints = {
        path: _inspected(handlers[path], declared) for path, declared in parameters.answers(mesh_kind).items()
    }

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        match segments:
            case ("meshes", mesh, word) if word in endpoints:
                return endpoints[word], (mesh_kind, mesh)
        return None

    return route


def _inspected(handler: Handler, path: PlainPath) -> HttpEndpoint:
    return _declared(HttpEndpoint("inspect", {"GET": handler}, _ITEM_TITLES), path)
