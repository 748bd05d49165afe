"""The Inspect API: what acts on a proxy, on its ports and routes, and whom a policy acts on.

The right to read a Dataplane is enough to inspect it, and the right to read a policy or service to see which
proxies it selects. Answers are for the newest revision, on Global of a proxy's zone; or for the past one that
the query names with `at`.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from koguma.api import at, lists, proxy_answers
from koguma.api.call import Call, answer, answer_json
from koguma.api.proxy_answers import ProxyAnswers
from koguma.application.context import Context
from koguma.core import gateway_view, hostnames, inspect, rules_view, world
from koguma.core.build import what_if
from koguma.core.envoy_origins import paths
from koguma.core.incremental import Db
from koguma.core.meta import meta
from koguma.fleet.zone_questions import InspectQuestion
from koguma.model.errors import BadRequest, Invalid, NotFound
from koguma.model.kind import Kind
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import Violation

ObjectView = Callable[[Db, Key], Json]  # what is shown of an object
_PATH_LENGTH_MAX: Final = 2000


class Inspect:
    """Handlers of the endpoints that show the effective policies, rules and routes."""

    def __init__(self, context: Context, answers: ProxyAnswers) -> None:
        self._context = context
        self._answers = answers

    async def rules(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a proxy, kind by kind."""
        return await self._of_proxy(call, mesh, name, proxy_answers.RULES)

    async def policies(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The policies that are effective for a proxy as a whole."""
        return await self._of_proxy(call, mesh, name, proxy_answers.POLICIES)

    async def layout(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The ports that a proxy serves and calls."""
        return await self._of_proxy(call, mesh, name, proxy_answers.LAYOUT)

    async def inbound_policies(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The policies that are effective on one inbound."""
        return await self._of_proxy(call, mesh, name, proxy_answers.INBOUND_POLICIES, kri)

    async def outbound_policies(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The policies that are effective on one outbound."""
        return await self._of_proxy(call, mesh, name, proxy_answers.OUTBOUND_POLICIES, kri)

    async def outbound_routes(self, call: Call, mesh: str, name: str, kri: str) -> web.StreamResponse:
        """The routes of one outbound."""
        return await self._of_proxy(call, mesh, name, proxy_answers.OUTBOUND_ROUTES, kri)

    async def route_policies(
        self, call: Call, mesh: str, name: str, kri: str, route_kri: str
    ) -> web.StreamResponse:
        """The policies that are effective on one route of one outbound."""
        return await self._of_proxy(call, mesh, name, proxy_answers.ROUTE_POLICIES, kri, route_kri)

    async def _of_proxy(self, call: Call, mesh: str, name: str, path: str, *kris: str) -> web.StreamResponse:
        """What a path below a proxy shows, worked out where the proxy is."""
        fields, dataplane = fields_of(call), self._context.kinds["Dataplane"]
        context = await at.context_of(call, self._context, dataplane)
        context.check(call.user, "get", dataplane, mesh, name)
        await context.database()
        context.check_mesh(call.user, mesh)
        key = context.find(call.user, dataplane, mesh, name).key
        return answer(await self._answers.of(InspectQuestion(key, path, kris, fields), context))

    async def explain(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """Who set the fields of a proxy's Envoy at a path; or which resources there are."""
        dataplane = self._context.kinds["Dataplane"]
        context = await at.context_of(call, self._context, dataplane)
        context.check(call.user, "get", dataplane, mesh, name)
        await context.database()
        context.check_mesh(call.user, mesh)
        key = context.find(call.user, dataplane, mesh, name).key
        return await explained(call, self._answers, key, context)

    async def dataplanes(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """A page of the proxies that a policy selects, or that a service has as endpoints."""
        return await self._page(call, kind, mesh, name, lambda db, _, proxy: meta(db, proxy))

    async def attached(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The same page in the older shape that kumactl still reads."""
        return await self._page(call, kind, mesh, name, inspect.attachment)

    async def _page(
        self, call: Call, kind: Kind, mesh: str, name: str, item: Callable[[Db, Key, Key], Json]
    ) -> web.StreamResponse:
        page, part = lists.page(call.query), call.query.get("name", "")
        end = page.offset + page.size

        def view(db: Db, key: Key) -> Json:
            proxies = inspect.dataplanes(db, key, part)
            link = {"next": lists.next_link(call.request, end)} if end < len(proxies) else {}
            items = [item(db, key, proxy) for proxy in proxies[page.offset : end]]
            return {"total": len(proxies), "items": items, **link}

        return await self._of_object(call, kind, mesh, name, view)

    async def hostnames(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The host names of a service, each with the zones that resolve it."""
        control_plane = self._context.control_plane
        zones = (
            [zone.name for zone in self._context.state.listed("Zone")]
            if control_plane.is_global
            else [control_plane.zone]
        )

        def view(db: Db, key: Key) -> Json:
            names = sorted({claim.hostname for claim in hostnames.of(db, key) if claim.hostname})
            items = [{"hostname": each, "zones": [{"name": zone} for zone in zones]} for each in names]
            return {"total": len(items), "items": items}

        return await self._of_object(call, kind, mesh, name, view)

    async def gateway_rules(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """All rules of a MeshGateway: those of a proxy that would serve it."""
        fields = fields_of(call)

        def view(db: Db, key: Key) -> Json:
            gateway = world.RESOURCES.get(db, key)
            if gateway is None:  # stored, and its kind cannot read it
                raise NotFound(f"{key} cannot be read; `koguma check` says why")
            proxy = inspect.gateway_proxy(gateway, self._context.control_plane)
            hypothetical = what_if.with_objects(db, mesh, [proxy])
            rules = rules_view.of_proxy(hypothetical, proxy.key, fields=fields)
            return {**rules, "resource": meta(db, key)}

        return await self._of_object(call, kind, mesh, name, view)

    async def gateway_layout(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """What a MeshGateway serves: its proxies, listeners, hosts and routes, and what is refused."""
        return await self._of_object(call, kind, mesh, name, gateway_view.of_gateway)

    async def _of_object(
        self, call: Call, kind: Kind, mesh: str, name: str, view: ObjectView
    ) -> web.StreamResponse:
        """A view of an object, as of now or of the moment that the query asks for."""
        context = await at.context_of(call, self._context, kind)
        context.check(call.user, "get", kind, mesh, name)

        def found() -> Key:
            context.check_mesh(call.user, mesh)
            return context.find(call.user, kind, mesh, name).key

        return answer_json(await context.view(found, view))


async def explained(call: Call, answers: ProxyAnswers, key: Key, context: Context) -> web.StreamResponse:
    """Who set the fields of a proxy's Envoy at the path in the query."""
    field = call.query.get("path", "")[:_PATH_LENGTH_MAX]
    try:
        paths.parsed(field)  # before a zone is asked
        question = InspectQuestion(key, proxy_answers.EXPLAIN, field=field)
        return answer(await answers.of(question, context))
    except paths.NoSuchField as error:
        raise Invalid([Violation("path", str(error), "missing")]) from None


def fields_of(call: Call) -> bool:
    """Whether the query asks for who set each field."""
    word = call.query.get("origins")
    if word not in (None, "fields"):
        raise BadRequest(f'query parameter "origins" must be "fields", not "{word[:100]}"')
    return word is not None
