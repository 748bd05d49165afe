"""Routes: which path leads where."""

from collections.abc import Mapping

from aiohttp import web

from koguma.api.apply import Apply
from koguma.api.call import Call
from koguma.api.dispatch import Endpoint, Found, Handler, Route
from koguma.api.inspect import Inspect
from koguma.api.plain import Objects
from koguma.api.proxies import Proxies
from koguma.api.system import System
from koguma.api.tokens import TokenIssuer
from koguma.api.watch import Watches
from koguma.model.kind import Kind, Kinds

_ITEM_TITLES = {
    "GET": "Could not retrieve a resource",
    "HEAD": "Could not retrieve a resource",
    "PUT": "Could not process a resource",
    "PATCH": "Could not process a resource",
    "DELETE": "Could not delete a resource",
}
_LIST_TITLES = {"GET": "Could not retrieve resources", "HEAD": "Could not retrieve resources"}


def fixed(
    system: System, apply: Apply, issuer: TokenIssuer, pages: Mapping[str, tuple[Handler, bool]]
) -> Route:
    """Paths without a variable part, and `/_kri/{kri}`. `pages`: handler, and whether it is open to all."""
    table = {
        (): Endpoint("index", {"GET": system.index}, is_open=True),
        ("config",): Endpoint("config", {"GET": system.config}),
        ("who-am-i",): Endpoint("who-am-i", {"GET": system.who_am_i}),
        ("policies",): Endpoint("policies", {"GET": system.policies}),
        ("_resources",): Endpoint("resources", {"GET": system.resources}),
        ("_apply",): Endpoint("apply", {"POST": apply.apply}, {"POST": "Could not apply resources"}),
        ("tokens", "user"): _token(issuer.user),
        ("tokens", "dataplane"): _token(issuer.dataplane),
        ("tokens", "zone"): _token(issuer.zone),
    }
    for path, (handler, is_open) in pages.items():
        table[path,] = Endpoint(path, {"GET": handler}, is_open=is_open)

    by_kri = Endpoint("kri", {"GET": system.by_kri}, _ITEM_TITLES)

    def route(segments: tuple[str, ...]) -> Found | None:
        endpoint = table.get(segments)
        if endpoint is not None:
            return endpoint, ()
        if len(segments) == 2 and segments[0] == "_kri":  # noqa: PLR2004 - /_kri/{kri}
            return by_kri, (segments[1],)
        return None

    return route


def _token(handler: Handler) -> Endpoint:
    return Endpoint("token", {"POST": handler}, {"POST": "Could not issue a token"})


def objects(kinds: Kinds, handlers: Objects, watches: Watches) -> Route:
    """`/<kind>`, `/<kind>/{name}`, `/meshes/{mesh}/<kind>`, `/meshes/{mesh}/<kind>/{name}`."""

    async def show(call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        if call.query and call.flag("watch"):
            return await watches.watch(call, kind, mesh)
        return await handlers.list(call, kind, mesh)

    many = Endpoint("list", {"GET": show}, _LIST_TITLES)
    methods = {
        "GET": handlers.get,
        "PUT": handlers.put,
        "PATCH": handlers.patch,
        "DELETE": handlers.delete,
    }
    one = Endpoint("item", methods, _ITEM_TITLES)
    read_only = Endpoint("item", methods, _ITEM_TITLES, allowed=("GET",))  # the others say why not

    def route(segments: tuple[str, ...]) -> Found | None:
        meshed = len(segments) > 2 and segments[0] == "meshes"  # noqa: PLR2004 - /meshes/{mesh}/<kind>
        mesh, rest = (segments[1], segments[2:]) if meshed else (None, segments)
        kind = kinds.by_path.get(rest[0]) if rest else None
        if kind is None or (meshed and not kind.is_mesh_scoped):
            return None
        match len(rest):
            case 1:
                return many, (kind, mesh)
            case 2 if meshed or not kind.is_mesh_scoped:
                return read_only if kind.read_only else one, (kind, mesh or "", rest[1])
            case _:
                return None

    return route


def inspect(kinds: Kinds, handlers: Inspect, proxies: Proxies) -> Route:
    """What stands below a Dataplane, a policy or a MeshService."""
    # Below a Dataplane words and KRIs take turns, so the words alone say which endpoint is meant.
    of_proxy: dict[tuple[str, ...], Handler] = {
        ("_rules",): handlers.rules,
        ("_policies",): handlers.policies,
        ("_layout",): handlers.layout,
        ("_config",): proxies.config,
        ("_inbounds", "_policies"): handlers.inbound_policies,
        ("_outbounds", "_policies"): handlers.outbound_policies,
        ("_outbounds", "_routes"): handlers.outbound_routes,
        ("_outbounds", "_routes", "_policies"): handlers.route_policies,
    }
    endpoints = {words: _inspected(handler) for words, handler in of_proxy.items()}
    dataplanes = _inspected(handlers.dataplanes)

    def route(segments: tuple[str, ...]) -> Found | None:
        match segments:
            case ("meshes", mesh, path, name, _, *_):
                kind, rest = kinds.by_path.get(path), segments[4:]
            case _:
                return None
        if kind is not None and kind.name == "Dataplane":
            found = endpoints.get(rest[::2]) if len(rest) % 2 else None
            return (found, (mesh, name, *rest[1::2])) if found else None
        if kind is not None and rest in _selected_paths(kind):
            return dataplanes, (kind, mesh, name)
        return None

    return route


def _inspected(handler: Handler) -> Endpoint:
    return Endpoint("inspect", {"GET": handler}, _ITEM_TITLES)


def _selected_paths(kind: Kind) -> tuple[tuple[str, ...], ...]:
    if kind.policy is not None:
        # The second is what Kuma's own command line asks for.
        return ("_resources", "dataplanes"), ("-resources", "dataplanes")
    return (("_resources", "dataplanes"), ("_dataplanes",)) if kind.name == "MeshService" else ()
