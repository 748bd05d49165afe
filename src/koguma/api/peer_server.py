"""What other control planes of the store ask this one: pages of proxies that have their channel here.

Served on the port for proxies. The sender must have a token that is signed with the key in the store and is
for this control plane; nothing of a body is read before that. Whether a user may see the page was decided by
the one that asks.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.user import User
from koguma.api.call import Call, answer
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.peers import PeerError, PeerRequest
from koguma.identity import peer_tokens
from koguma.model.errors import BadRequest, KogumaError, NotAllowed, Unauthenticated
from koguma.model.redacted import Redacted

BODY_BYTES_MAX: Final = 16 * 1024
_BODY_SECONDS_MAX: Final = 5.0
_SECONDS_MAX: Final = 60.0
_BYTES: Final = "application/octet-stream"


class PeerServer:
    """Handler of `POST /peer/page`; `key` is the key in the store."""

    def __init__(
        self,
        views: EnvoyViews,
        instance: str,
        key: Callable[[], Redacted | None],
        clock: Callable[[], datetime],
    ) -> None:
        self._views = views
        self._instance = instance
        self._key = key
        self._clock = clock

    async def page(self, call: Call) -> web.StreamResponse:
        """A page, or why there is none."""
        if call.request.method != "POST":
            raise NotAllowed(f"{call.request.path} takes POST alone", allowed=("POST",))
        self._authenticate(call)
        body = await call.body(BODY_BYTES_MAX, _BODY_SECONDS_MAX)
        try:
            request = msgspec.json.decode(body, type=PeerRequest)
        except (msgspec.MsgspecError, RecursionError):
            raise BadRequest("the body is no request for a page") from None
        try:
            page = await self._views.ask_here(
                request.key,
                request.path,
                bytes_max=request.bytes_max,
                seconds_max=min(request.seconds_max, _SECONDS_MAX),
            )
        except KogumaError as error:
            reason = PeerError(type(error).__name__, error.detail)
            return answer(msgspec.json.encode(reason), error.status)
        return answer(page, content_type=_BYTES)

    def _authenticate(self, call: Call) -> None:
        scheme, _, token = (call.header("Authorization") or "").partition(" ")
        key = self._key()
        if scheme != "Bearer" or key is None:
            raise Unauthenticated("this path is for the other control planes of the store")
        instance = peer_tokens.asking(key, token, self._instance, self._clock())
        call.user = User(f"control-plane:{instance}")
