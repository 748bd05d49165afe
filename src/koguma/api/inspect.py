"""The Inspect API: what acts on a proxy, on its ports and routes, and whom a policy acts on.

Who may read a proxy may inspect it, and who may read a policy or service may see whom it selects. All answers
are for the newest revision.
"""

from aiohttp import web

from koguma.api import lists
from koguma.api.call import Call, answer_json
from koguma.application.context import Context
from koguma.core import hostnames, inspect, rules_view
from koguma.core.build import what_if
from koguma.core.incremental import Db
from koguma.core.meta import meta
from koguma.core.rules import PortRules
from koguma.model.errors import BadRequest, NotFound
from koguma.model.kind import Kind
from koguma.model.resource import Key


class Inspect:
    """Handlers of the endpoints that show what comes out."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rules(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a proxy, kind by kind."""
        fields = _fields(call)
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(rules_view.of_proxy(db, proxy, fields=fields))

    async def policies(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """What holds for a proxy as a whole."""
        fields = _fields(call)
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(inspect.whole_policies(db, proxy, fields=fields))

    async def layout(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The ports that a proxy serves and calls."""
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(inspect.layout(db, proxy))

    async def inbound_policies(self, call: Call, mesh: str, name: str, text: str) -> web.StreamResponse:
        """What holds for calls that arrive at one inbound."""
        fields = _fields(call)
        db, proxy = await self._proxy(call, mesh, name)
        wanted, section = self._part(text)
        if wanted != proxy:
            return answer_json({"policies": []})
        sections = inspect.inbound_sections(db, proxy)
        if section not in sections:
            known = f"it has {', '.join(sections)}" if sections else "it has none"
            raise NotFound(f'Dataplane "{name}" has no inbound "{section}"; {known}')
        return answer_json(inspect.inbound_policies(db, proxy, section, fields=fields))

    async def outbound_policies(self, call: Call, mesh: str, name: str, text: str) -> web.StreamResponse:
        """What holds for calls to one port."""
        fields = _fields(call)
        db, port = await self._outbound(call, mesh, name, text)
        return answer_json(inspect.outbound_policies(db, port, fields=fields) if port else {"policies": []})

    async def outbound_routes(self, call: Call, mesh: str, name: str, text: str) -> web.StreamResponse:
        """The routes of calls to one port."""
        fields = _fields(call)
        db, port = await self._outbound(call, mesh, name, text)
        return answer_json(inspect.outbound_routes(db, port, fields=fields) if port else {"routes": []})

    async def route_policies(
        self, call: Call, mesh: str, name: str, text: str, route_text: str
    ) -> web.StreamResponse:
        """What holds for calls to one port through one route."""
        fields = _fields(call)
        db, port = await self._outbound(call, mesh, name, text)
        route, _ = self._part(route_text)
        return answer_json(
            inspect.route_policies(db, port, route, fields=fields) if port else {"policies": []}
        )

    async def dataplanes(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """A page of the proxies that a policy selects, or that are a service."""
        page = lists.page(call.query)
        db, key = await self._object(call, kind, mesh, name)
        found = inspect.dataplanes(db, key, call.query.get("name", ""))
        end = page.offset + page.size
        link = {"next": lists.next_link(call.request, end)} if end < len(found) else {}
        items = [meta(db, proxy) for proxy in found[page.offset : end]]
        return answer_json({"total": len(found), "items": items, **link})

    async def attached(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The same page in the older shape, which Kuma's command line still reads."""
        page = lists.page(call.query)
        db, key = await self._object(call, kind, mesh, name)
        found = inspect.dataplanes(db, key, call.query.get("name", ""))
        end = page.offset + page.size
        link = {"next": lists.next_link(call.request, end)} if end < len(found) else {}
        items = [inspect.attachment(db, key, proxy) for proxy in found[page.offset : end]]
        return answer_json({"total": len(found), "items": items, **link})

    async def hostnames(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The names by which a service is called, each with the zones where it is."""
        db, key = await self._object(call, kind, mesh, name)
        control_plane = self._context.control_plane
        zones = (
            [zone.name for zone in self._context.state.listed("Zone")]
            if control_plane.is_global
            else [control_plane.zone]
        )
        claims = hostnames.of(db, key)
        names = sorted({claim.hostname for claim in claims if claim.hostname})
        items = [{"hostname": text, "zones": [{"name": zone} for zone in zones]} for text in names]
        return answer_json({"total": len(items), "items": items})

    async def gateway_rules(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a MeshGateway: those of a proxy that would serve it."""
        fields = _fields(call)
        db, key = await self._object(call, kind, mesh, name)
        gateway = self._context.find(call.user, kind, mesh, name)
        proxy = inspect.gateway_proxy(gateway, self._context.control_plane)
        other = what_if.with_objects(db, mesh, [proxy])
        shown = rules_view.of_proxy(other, proxy.key, fields=fields)
        return answer_json({**shown, "resource": meta(db, key)})

    async def _object(self, call: Call, kind: Kind, mesh: str, name: str) -> tuple[Db, Key]:
        context = self._context
        context.check(call.user, "get", kind, mesh, name)
        db = await context.database()
        context.check_mesh(call.user, mesh)
        return db, context.find(call.user, kind, mesh, name).key

    async def _proxy(self, call: Call, mesh: str, name: str) -> tuple[Db, Key]:
        return await self._object(call, self._context.kinds["Dataplane"], mesh, name)

    async def _outbound(self, call: Call, mesh: str, name: str, text: str) -> tuple[Db, PortRules | None]:
        db, proxy = await self._proxy(call, mesh, name)
        destination, section = self._part(text)
        return db, inspect.outbound(db, proxy, destination, section)

    def _part(self, text: str) -> tuple[Key, str]:
        """The object and the section that a KRI in a path means."""
        _, key, section = self._context.named_by(text)
        return key, section


def _fields(call: Call) -> bool:
    """Whether the query asks for who set each field."""
    word = call.query.get("origins")
    if word not in (None, "fields"):
        raise BadRequest(f'query parameter "origins" must be "fields", not "{word[:100]}"')
    return word is not None
