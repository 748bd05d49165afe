"""What a proxy's own Envoy shows: `xds`, `stats` and `clusters` below a Dataplane or a zone proxy.

The right to read the object is not enough: each page is a subresource (`dataplanes/xds`), so that a role
may give it or not. A zone proxy serves several meshes, and needs the right to list what it serves of all.
"""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from koguma.api.call import JSON, Call, answer
from koguma.api.zone_proxies import SERVED_KINDS
from koguma.application.context import Context
from koguma.core.build import zone_egress
from koguma.envoy import admin_pages
from koguma.fleet.envoy_views import EnvoyViews
from koguma.model.errors import BadRequest, KogumaError, Unavailable
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.model.violation import Violation

TITLE: Final = "Could not execute admin operation"  # Kuma's
_PLAIN: Final = "text/plain; charset=utf-8"
_YES: Final = ("true", "1", "")  # Envoy asks only whether the parameter is there
_FORMATS: Final = ("text", "json")
_ZONE_PROXIES: Final[Mapping[str, str]] = {"ZoneIngress": "zone ingress", "ZoneEgress": "zone egress"}


class EnvoyPages:
    """Handlers of these paths; `views` gives None where this control plane serves no proxies."""

    def __init__(self, context: Context, views: Callable[[], EnvoyViews | None]) -> None:
        self._context = context
        self._views = views

    async def xds(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The configuration that Envoy has, as its config dump."""
        eds = {"include_eds": ""} if call.flag("include_eds", _YES) else {}
        path = _path(admin_pages.CONFIG_DUMP, eds)
        page = await self._page(call, kind, mesh, name, "xds", path)
        call.is_compressible = True
        return answer(msgspec.json.format(page, indent=1))

    async def stats(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The counters of Envoy; those that were never changed only with `usedonly=false`."""
        used = {"usedonly": ""} if "usedonly" not in call.query or call.flag("usedonly", _YES) else {}
        return await self._text(call, kind, mesh, name, "stats", used)

    async def clusters(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The clusters of Envoy, with the state of each endpoint."""
        return await self._text(call, kind, mesh, name, "clusters", {})

    async def _text(
        self, call: Call, kind: Kind, mesh: str, name: str, page: str, query: Mapping[str, str]
    ) -> web.StreamResponse:
        form = call.query.get("format", "") or _FORMATS[0]
        if form not in _FORMATS:
            wrong = Violation("format", f'must be one of {", ".join(_FORMATS)}, not "{form[:100]}"', "enum")
            raise BadRequest(
                "bad request: unsupported value for query parameter 'format'", violations=[wrong]
            )
        formatted = {"format": "json"} if form == "json" else {}
        body = await self._page(call, kind, mesh, name, page, _path(f"/{page}", {**query, **formatted}))
        call.is_compressible = True
        return answer(body, content_type=JSON if form == "json" else _PLAIN)

    async def _page(self, call: Call, kind: Kind, mesh: str, name: str, page: str, path: str) -> bytes:
        proxy = await self._readable(call, kind, mesh, name, page)
        where = f'{kind.name} "{name}"' + (f' of mesh "{mesh}"' if mesh else "")
        views = self._views()
        try:
            if views is None:
                raise Unavailable("this control plane serves no proxies; see `koguma check`")
            return await views.ask(proxy.key, path)
        except KogumaError as error:
            raise type(error)(f"{where}: {error.detail}", title=TITLE) from error

    async def _readable(self, call: Call, kind: Kind, mesh: str, name: str, page: str) -> Resource:
        """The object of a proxy whose page the user may see."""
        context = self._context
        context.check(call.user, "get", kind, mesh, name)
        context.check(call.user, "get", kind, mesh, name, page)
        if kind.name in SERVED_KINDS:
            for served in zone_egress.meshes(await context.database()):
                for each in SERVED_KINDS[kind.name]:
                    context.check(call.user, "list", context.kinds[each], served)
        if mesh:
            context.check_mesh(call.user, mesh)
        proxy = context.find(call.user, kind, mesh, name)
        is_elsewhere = proxy.zone != context.control_plane.zone and not context.control_plane.is_global
        if kind.name in _ZONE_PROXIES and is_elsewhere:
            what = _ZONE_PROXIES[kind.name]
            raise BadRequest(
                f'{kind.name} "{name}" is of zone "{proxy.zone}"; ask the control plane of that zone',
                title=f"Could not connect to {what} that resides in another zone",
            )
        return proxy


def _path(page: str, query: Mapping[str, str]) -> str:
    return f"{page}?{urlencode(query)}" if query else page
