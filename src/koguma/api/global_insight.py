"""The global insight: all meshes in numbers, as Kuma's GUI shows them first.

Everybody who is known may ask; the numbers are of what he may list. A mesh whose Dataplanes he may not list
counts nowhere.
"""

from collections.abc import Callable
from datetime import datetime

from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.access.user import User
from koguma.api.call import Call, answer_json, stale_headers
from koguma.application.context import Context
from koguma.fleet.insights.insights import Insights
from koguma.model.kind import Kind


class GlobalInsight:
    """Handlers of `/global-insight` and `/global-insights`."""

    def __init__(self, context: Context, insights: Insights, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._insights = insights
        self._clock = clock

    async def show(self, call: Call) -> web.StreamResponse:
        """Proxies, services, objects and zones in numbers."""
        self._check(call)
        may_list = self._may_list(call.user)
        dataplane = self._context.kinds["Dataplane"]
        names = [mesh.name for mesh in self._context.state.listed("Mesh")]
        meshes = [name for name in names if may_list(dataplane, name)]
        insight = await self._insights.in_numbers(meshes, may_list, self._clock())
        return answer_json(insight, headers=stale_headers(self._insights.problem))

    async def totals(self, call: Call) -> web.StreamResponse:
        """How many objects there are outside of meshes, by kind; the older answer."""
        self._check(call)
        return answer_json(self._insights.totals(self._may_list(call.user), self._clock()))

    def _check(self, call: Call) -> None:
        self._context.access.check(call.user, Attempt("get", path=call.request.path.rstrip("/")))

    def _may_list(self, user: User) -> Callable[[Kind, str], bool]:
        return lambda kind, mesh: self._context.access.allows_on(user, "list", kind.plural, "", mesh)
