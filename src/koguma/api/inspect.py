"""The Inspect API: what acts on a proxy, on its ports and routes, and whom a policy acts on.

The right to read a Dataplane is enough to inspect it, and the right to read a policy or service to see which
proxies it selects. All answers are for the newest revision.
"""

from aiohttp import web

from koguma.api import lists
from koguma.api.call import Call, answer_json
from koguma.application.context import Context
from koguma.core import gateway_view, hostnames, inspect, rules_view
from koguma.core.build import what_if
from koguma.core.incremental import Db
from koguma.core.meta import meta
from koguma.core.rules import PortRules
from koguma.model.errors import BadRequest, NotFound
from koguma.model.kind import Kind
from koguma.model.resource import Key


class Inspect:
    """Handlers of the endpoints that show the effective policies, rules and routes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rules(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a proxy, kind by kind."""
        fields = fields_of(call)
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(rules_view.of_proxy(db, proxy, fields=fields))

    async def policies(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The policies that are effective for a proxy as a whole."""
        fields = fields_of(call)
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(inspect.whole_policies(db, proxy, fields=fields))

    async def layout(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The ports that a proxy serves and calls."""
        db, proxy = await self._proxy(call, mesh, name)
        return answer_json(inspect.layout(db, proxy))

    async def inbound_policies(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The policies that are effective on one inbound."""
        fields = fields_of(call)
        db, proxy = await self._proxy(call, mesh, name)
        named_proxy, section = self._part(kri)
        if named_proxy != proxy:
            return answer_json({"policies": []})
        sections = inspect.inbound_sections(db, proxy)
        if section not in sections:
            existing = f"it has {', '.join(sections)}" if sections else "it has none"
            raise NotFound(f'Dataplane "{name}" has no inbound "{section}"; {existing}')
        return answer_json(inspect.inbound_policies(db, proxy, section, fields=fields))

    async def outbound_policies(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The policies that are effective on one outbound."""
        fields = fields_of(call)
        db, port = await self._outbound(call, mesh, name, kri)
        return answer_json(inspect.outbound_policies(db, port, fields=fields) if port else {"policies": []})

    async def outbound_routes(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The routes of one outbound."""
        fields = fields_of(call)
        db, port = await self._outbound(call, mesh, name, kri)
        return answer_json(inspect.outbound_routes(db, port, fields=fields) if port else {"routes": []})

    async def route_policies(
        self, call: Call, mesh: str, name: str, kri: str, route_kri: str
    ) -> web.StreamResponse:
        """The policies that are effective on one route of one outbound."""
        fields = fields_of(call)
        db, port = await self._outbound(call, mesh, name, kri)
        named = inspect.route_named(db, port, route_kri) if port else None
        route = named or self._part(route_kri)[0]
        return answer_json(
            inspect.route_policies(db, port, route, fields=fields) if port else {"policies": []}
        )

    async def dataplanes(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """A page of the proxies that a policy selects, or that a service has as endpoints."""
        page = lists.page(call.query)
        db, key = await self._object(call, kind, mesh, name)
        proxies = inspect.dataplanes(db, key, call.query.get("name", ""))
        end = page.offset + page.size
        link = {"next": lists.next_link(call.request, end)} if end < len(proxies) else {}
        items = [meta(db, proxy) for proxy in proxies[page.offset : end]]
        return answer_json({"total": len(proxies), "items": items, **link})

    async def attached(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The same page in the older shape that kumactl still reads."""
        page = lists.page(call.query)
        db, key = await self._object(call, kind, mesh, name)
        proxies = inspect.dataplanes(db, key, call.query.get("name", ""))
        end = page.offset + page.size
        link = {"next": lists.next_link(call.request, end)} if end < len(proxies) else {}
        items = [inspect.attachment(db, key, proxy) for proxy in proxies[page.offset : end]]
        return answer_json({"total": len(proxies), "items": items, **link})

    async def hostnames(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The host names of a service, each with the zones that resolve it."""
        db, key = await self._object(call, kind, mesh, name)
        control_plane = self._context.control_plane
        zones = (
            [zone.name for zone in self._context.state.listed("Zone")]
            if control_plane.is_global
            else [control_plane.zone]
        )
        claims = hostnames.of(db, key)
        names = sorted({claim.hostname for claim in claims if claim.hostname})
        items = [{"hostname": hostname, "zones": [{"name": zone} for zone in zones]} for hostname in names]
        return answer_json({"total": len(items), "items": items})

    async def gateway_rules(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a MeshGateway: those of a proxy that would serve it."""
        fields = fields_of(call)
        db, key = await self._object(call, kind, mesh, name)
        gateway = self._context.find(call.user, kind, mesh, name)
        proxy = inspect.gateway_proxy(gateway, self._context.control_plane)
        hypothetical = what_if.with_objects(db, mesh, [proxy])
        rules = rules_view.of_proxy(hypothetical, proxy.key, fields=fields)
        return answer_json({**rules, "resource": meta(db, key)})

    async def gateway_layout(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """What a MeshGateway serves: its proxies, listeners, hosts and routes, and what is refused."""
        db, key = await self._object(call, kind, mesh, name)
        return answer_json(gateway_view.of_gateway(db, key))

    async def _object(self, call: Call, kind: Kind, mesh: str, name: str) -> tuple[Db, Key]:
        context = self._context
        context.check(call.user, "get", kind, mesh, name)
        db = await context.database()
        context.check_mesh(call.user, mesh)
        return db, context.find(call.user, kind, mesh, name).key

    async def _proxy(self, call: Call, mesh: str, name: str) -> tuple[Db, Key]:
        return await self._object(call, self._context.kinds["Dataplane"], mesh, name)

    async def _outbound(self, call: Call, mesh: str, name: str, kri: str) -> tuple[Db, PortRules | None]:
        db, proxy = await self._proxy(call, mesh, name)
        destination, section = self._part(kri)
        return db, inspect.outbound(db, proxy, destination, section)

    def _part(self, kri: str) -> tuple[Key, str]:
        """The object and the section of a KRI in a path."""
        _, key, section = self._context.parse_kri(kri)
        return key, section


def fields_of(call: Call) -> bool:
    """Whether the query asks for who set each field."""
    word = call.query.get("origins")
    if word not in (None, "fields"):
        raise BadRequest(f'query parameter "origins" must be "fields", not "{word[:100]}"')
    return word is not None
