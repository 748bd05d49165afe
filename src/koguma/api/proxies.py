"""Proxies: the sync state of connected proxies, what they refused (NACK), and the configuration for each.

The right to list the Dataplanes of a mesh, or zone proxies, is enough to see their state.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from aiohttp import web

from koguma.api import at, proxy_answers
from koguma.api.call import Call, answer, answer_json
from koguma.api.proxy_answers import ProxyAnswers
from koguma.application.context import Context
from koguma.fleet.zone_questions import InspectQuestion
from koguma.identity.proxy_types import EGRESS, SIDECAR
from koguma.model.errors import BadRequest
from koguma.model.schema import Json
from koguma.model.violation import Violation

ProxySummaries = Callable[[str], Iterable[Mapping[str, Json]]]  # of one mesh, or of all for ""

STATES: Final = ("connecting", "synced", "behind", "nack")


class Proxies:
    """Handlers of `/_proxies` and of `_config` below a Dataplane."""

    def __init__(
        self,
        context: Context,
        answers: ProxyAnswers,
        connected: ProxySummaries,
        refused: ProxySummaries = lambda _mesh: (),
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        self._context = context
        self._answers = answers
        self._connected = connected
        self._refused = refused
        self._problem = problem  # why the summaries may be old

    async def list(self, call: Call) -> web.StreamResponse:
        """The proxies connected to any control plane of this store: of one mesh, or all that a user may see.

        Those whose connection was refused here are listed apart: they have no state.
        """
        mesh, state = call.query.get("mesh", ""), call.query.get("state", "")
        if state and state not in STATES:
            raise BadRequest(
                f'query parameter "state" must be one of {", ".join(STATES)}, not "{state[:100]}"'
            )
        if mesh:
            self._context.check(call.user, "list", self._context.kinds[SIDECAR.kind], mesh)
            self._context.check_mesh(call.user, mesh)
        connected, refused = (
            [proxy for proxy in proxies if self._may_list(call, proxy)]
            for proxies in (self._connected(mesh), () if state else self._refused(mesh))
        )
        items = [proxy for proxy in connected if state in ("", proxy["state"])]
        found = {"total": len(items), "items": items, "refused": refused}
        if self._context.control_plane.is_global:
            found["zones"] = sorted({proxy["zone"] for proxy in items})
        problem = self._problem()
        return answer_json({**found, "warning": problem} if problem else found)

    def _may_list(self, call: Call, proxy: Mapping[str, Json]) -> bool:
        """Whether a user may see a proxy; one that was refused and has no mesh is a zone proxy."""
        kind = self._context.kinds[proxy.get("kind") or (SIDECAR if proxy["mesh"] else EGRESS).kind]
        return self._context.access.allows_on(call.user, "list", kind.plural, "", proxy["mesh"])

    async def config(self, call: Call, mesh: str, name: str) -> web.StreamResponse:
        """The xDS resources for a proxy, by type and name, as Envoy's proto-JSON; secrets are masked.

        `shadow=true` shows what it would be with the shadow policies, `include=diff` what that changes.
        """
        is_shadow = _chosen(call, "shadow", ("false", "true")) == "true"
        has_diff = _chosen(call, "include", ("", "diff")) == "diff"
        dataplane = self._context.kinds["Dataplane"]
        context = await at.context_of(call, self._context, dataplane)
        context.check(call.user, "get", dataplane, mesh, name)
        await context.database()
        context.check_mesh(call.user, mesh)
        key = context.find(call.user, dataplane, mesh, name).key
        question = InspectQuestion(key, proxy_answers.CONFIG, is_shadow=is_shadow, has_diff=has_diff)
        call.is_compressible = True
        return answer(await self._answers.of(question, context))


def _chosen(call: Call, name: str, words: tuple[str, ...]) -> str:
    """The value of a query parameter that takes only these words; the first is the default."""
    value = call.query.get(name, "") or words[0]
    if value not in words:
        choices = ", ".join(word for word in words if word)
        wrong = Violation(name, f'must be one of {choices}, not "{value[:100]}"', "enum")
        # Kuma's message.
        raise BadRequest(f"bad request: unsupported value for query parameter '{name}'", violations=[wrong])
    return value
