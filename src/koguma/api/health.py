"""Health: is it alive, is it ready, and what would an operator want to know about its parts."""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from koguma.access.authorizer import Attempt, Authorizer
from koguma.api.call import Call, answer, answer_json
from koguma.api.metrics import CONTENT_TYPE, Metrics
from koguma.runtime.checks import Check

Checks = Callable[[], Awaitable[Sequence[Check]]]


class Health:
    """Handlers of `/healthy`, `/ready`, `/metrics` and `/_check`."""

    def __init__(
        self, access: Authorizer, metrics: Metrics, ready: Callable[[], str], checks: Checks
    ) -> None:
        self._access = access
        self._metrics = metrics
        self._ready = ready
        self._checks = checks

    async def healthy(self, _call: Call) -> web.StreamResponse:
        """The process lives and answers."""
        return answer_json({"status": "healthy"})

    async def ready(self, _call: Call) -> web.StreamResponse:
        """It can do its work; else 503 with the reason."""
        problem = self._ready()
        if problem:
            return answer_json({"status": "not ready", "reason": problem}, status=503)
        return answer_json({"status": "ready"})

    async def metrics(self, call: Call) -> web.StreamResponse:
        """Numbers for Prometheus."""
        self._access.check(call.user, Attempt("get", path="/metrics"))
        response = answer(self._metrics.exposition())
        response.headers["Content-Type"] = CONTENT_TYPE
        return response

    async def check(self, call: Call) -> web.StreamResponse:
        """What `koguma check` shows about the server's parts."""
        self._access.check(call.user, Attempt("get", path="/_check"))
        return answer_json({"checks": await self._checks()})
