"""Zone proxies: the configuration of a ZoneEgress or ZoneIngress, who set it, and what acts on an egress.

They serve several meshes. The right to read one is needed, and of each mesh the right to list the services
that it serves: policies of other meshes are not shown, and the whole configuration, and who set any part of
it, only with all of them.
"""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from koguma.api import at, proxy_answers
from koguma.api.call import Call, answer
from koguma.api.inspect import explained, fields_of
from koguma.api.proxy_answers import ProxyAnswers
from koguma.application.context import Context
from koguma.core.build import zone_egress
from koguma.fleet.zone_questions import InspectQuestion
from koguma.identity.proxy_types import EGRESS, INGRESS
from koguma.model.kind import Kind
from koguma.model.resource import Key

# What stands in the configuration of zone proxies, of each mesh.
SERVED_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    EGRESS.kind: ("MeshExternalService",),
    INGRESS.kind: ("MeshService", "MeshMultiZoneService"),
}


class ZoneProxies:
    """Handlers of what stands below a zone proxy."""

    def __init__(self, context: Context, answers: ProxyAnswers) -> None:
        self._context = context
        self._answers = answers

    async def config(self, call: Call, kind: Kind, name: str) -> web.StreamResponse:
        """The xDS resources for a zone proxy, by type and name; secrets are masked."""
        context = await at.context_of(call, self._context, kind)
        key = await _wholly_readable(context, call, kind, name)
        call.is_compressible = True
        return answer(await self._answers.of(InspectQuestion(key, proxy_answers.CONFIG), context))

    async def explain(self, call: Call, kind: Kind, name: str) -> web.StreamResponse:
        """Who set the fields of a zone proxy's Envoy at a path; or which resources there are."""
        context = await at.context_of(call, self._context, kind)
        key = await _wholly_readable(context, call, kind, name)
        return await explained(call, self._answers, key, context)

    async def policies(self, call: Call, kind: Kind, name: str) -> web.StreamResponse:
        """The policies that act on a zone egress, for each external service that it serves."""
        fields = fields_of(call)
        context = await at.context_of(call, self._context, kind)
        meshes, key = await _proxy(context, call, kind, name)
        plural = context.kinds["MeshExternalService"].plural
        visible = [mesh for mesh in meshes if context.access.allows_on(call.user, "list", plural, "", mesh)]
        question = InspectQuestion(key, proxy_answers.SERVICES, fields=fields, meshes=tuple(visible))
        return answer(await self._answers.of(question, context))


async def _wholly_readable(context: Context, call: Call, kind: Kind, name: str) -> Key:
    """A zone proxy of which the user may read all that it has, in every mesh."""
    meshes, key = await _proxy(context, call, kind, name)
    for mesh in meshes:
        for served in SERVED_KINDS[kind.name]:
            context.check(call.user, "list", context.kinds[served], mesh)
    return key


async def _proxy(context: Context, call: Call, kind: Kind, name: str) -> tuple[tuple[str, ...], Key]:
    """A zone proxy that the user may read, and the meshes that it may serve."""
    context.check(call.user, "get", kind, "", name)
    return await context.view(
        lambda: context.find(call.user, kind, "", name).key, lambda db, key: (zone_egress.meshes(db), key)
    )
