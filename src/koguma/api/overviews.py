"""Overviews: proxies and zones, each with what is known of its connections; Kuma's own shape of an answer.

The right to read the proxy or the zone is enough, as for its state.
"""

from typing import Final

import msgspec
from aiohttp import web

from koguma.access.user import User
from koguma.api import lists
from koguma.api.call import Call, answer, answer_json, stale_headers
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.fleet.insights.insights import Insights
from koguma.model import forms
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.runtime.clock import now

# The fields of an overview: the object, and its insight.
_FIELDS: Final = {
    "Dataplane": ("dataplane", "dataplaneInsight"),
    "Zone": ("zone", "zoneInsight"),
    "ZoneIngress": ("zoneIngress", "zoneIngressInsight"),
    "ZoneEgress": ("zoneEgress", "zoneEgressInsight"),
}


class Overviews:
    """Handlers of `_overview`, and of Kuma's older paths for the same."""

    def __init__(self, context: Context, insights: Insights) -> None:
        self._context = context
        self._insights = insights

    async def list(self, call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        """A page of overviews, in one mesh or (None) everywhere."""
        context = self._context
        context.check(call.user, "list", kind, mesh or "")
        if mesh is not None:
            context.check_mesh(call.user, mesh)
        page = lists.page(call.query)
        matches = lists.resource_filter(call.query, call.request.path, mesh)
        resources = context.listed(kind, mesh)
        if matches is not None:
            resources = [resource for resource in resources if matches(resource)]
        end = page.offset + page.size
        link = lists.next_link(call.request, end) if end < len(resources) else None
        shown = (self._overview(call.user, resource, kind) for resource in resources[page.offset : end])
        items = [msgspec.json.encode(overview) for overview in shown]
        call.is_compressible = True
        return answer(lists.body(items, len(resources), link), headers=stale_headers(self._insights.problem))

    async def get(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """One overview."""
        context = self._context
        context.check(call.user, "get", kind, mesh, name)
        if kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        overview = self._overview(call.user, context.find(call.user, kind, mesh, name), kind)
        return answer_json(overview, headers=stale_headers(self._insights.problem))

    def _overview(self, user: User, resource: Resource, kind: Kind) -> dict[str, Json]:
        visible = inline_secrets.visible(self._context, user, resource)
        shown = {
            name: value for name, value in forms.plain(visible, kind).items() if name not in visible.spec
        }
        spec_field, insight_field = _FIELDS[kind.name]
        return {
            **shown,
            "type": f"{kind.name}Overview",
            spec_field: visible.spec,
            insight_field: self._insights.spec(resource.key, resource.core_name),
            **(self._connection(resource.name) if kind.name == "Zone" else {}),
        }

    def _connection(self, zone: str) -> dict[str, Json]:
        """What Global adds to a zone: whether it is online, how far behind, versions, the last error."""
        connection = self._insights.connection(zone, self._context.about.version, now())
        return {"connection": connection} if connection else {}
