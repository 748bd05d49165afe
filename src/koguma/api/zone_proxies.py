"""Zone proxies: the configuration of a ZoneEgress or ZoneIngress, and the policies that act on an egress.

They serve several meshes. The right to read one is needed, and of each mesh the right to list the services
that it serves: policies of other meshes are not shown, and the whole configuration only with all of them.
"""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from koguma.api import proxies
from koguma.api.call import Call, answer_json
from koguma.api.inspect import fields_of
from koguma.application.context import Context
from koguma.core import egress_view
from koguma.core.build import zone_egress
from koguma.core.incremental import Db
from koguma.identity.proxy_types import EGRESS, INGRESS
from koguma.model.errors import NotAllowed
from koguma.model.kind import Kind
from koguma.model.resource import Key

# What stands in the configuration of zone proxies, of each mesh.
SERVED_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    EGRESS.kind: ("MeshExternalService",),
    INGRESS.kind: ("MeshService", "MeshMultiZoneService"),
}


class ZoneProxies:
    """Handlers of what stands below a zone proxy."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def config(self, call: Call, kind: Kind, name: str) -> web.StreamResponse:
        """The xDS resources for a zone proxy, by type and name; secrets are masked."""
        context = self._context
        if context.control_plane.is_global:
            raise NotAllowed("Not allowed on global CP")
        db, key = await self._proxy(call, kind, name)
        for mesh in zone_egress.meshes(db):
            for served in SERVED_KINDS[kind.name]:
                context.check(call.user, "list", context.kinds[served], mesh)
        return answer_json({"xds": proxies.config_of(db, key)})

    async def policies(self, call: Call, kind: Kind, name: str) -> web.StreamResponse:
        """The policies that act on a zone egress, for each external service that it serves."""
        fields = fields_of(call)
        db, key = await self._proxy(call, kind, name)
        plural = self._context.kinds["MeshExternalService"].plural
        visible = [
            mesh
            for mesh in zone_egress.meshes(db)
            if self._context.access.allows_on(call.user, "list", plural, "", mesh)
        ]
        services = [each for mesh in visible for each in egress_view.policies(db, key, mesh, fields=fields)]
        return answer_json({"services": services})

    async def _proxy(self, call: Call, kind: Kind, name: str) -> tuple[Db, Key]:
        self._context.check(call.user, "get", kind, "", name)
        db = await self._context.database()
        return db, self._context.find(call.user, kind, "", name).key
