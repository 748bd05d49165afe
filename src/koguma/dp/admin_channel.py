"""The agent's end of the admin channel: answers the control plane out of Envoy's admin interface.

The agent connects to the control plane, never the other way round, so a proxy's machine needs no more open
ports. Only pages of `admin_pages` are fetched, always by GET, and secrets are masked before an answer leaves
the machine. Whatever happens here concerns this channel alone: it is opened again after a while, and neither
Envoy nor the rest of the agent notice.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from koguma.dp import bootstrap, unix_http
from koguma.dp.control_plane import (
    ChannelOptions,
    ControlPlaneClient,
    ControlPlaneDenied,
    ControlPlaneUnavailable,
)
from koguma.dp.unix_http import EnvoyUnreachable, ResponseTooLarge
from koguma.envoy import admin_channel, admin_pages
from koguma.envoy.admin_channel import BadChannelMessage, PageRequest
from koguma.envoy.admin_pages import UnknownPage
from koguma.envoy.masking import NotJson

_RETRY_SECONDS: Final = (0.5, 30.0)
_FIRST_SECONDS: Final = 1.0
_REFUSED_SECONDS: Final = 60.0
_STEADY_SECONDS: Final = 30.0  # the backoff is reset after a channel that lasted this long
_ANSWERS_MAX: Final = 4  # under way at once
_NOT_FOUND: Final = 404
_REFUSALS: Final = (400, 401, 403, 405, 409)
_PAGE_SECONDS_MAX: Final = 15.0
_PAGE_BYTES_MAX: Final = (
    32 * 1024 * 1024
)  # of what Envoy answers; it indents JSON, so that more than half is spaces
_OPTIONS: Final = ChannelOptions(message_bytes_max=8192, silence_seconds_max=admin_channel.PING_SECONDS * 3)

_log = structlog.get_logger("koguma.dp")


class AdminChannelClient:
    """Holds the channel of one proxy open."""

    def __init__(
        self, plane: ControlPlaneClient, proxy: Mapping[str, str], mask_tokens: Callable[[str], str]
    ) -> None:
        """`proxy` are the parameters that name it; `mask_tokens` hides the proxy's own tokens in a text."""
        self._plane = plane
        self._proxy = proxy
        self._mask_tokens = mask_tokens
        self._turn = asyncio.Lock()  # one page at a time, since it is held in memory as a whole
        self._logged = ""
        self._spread_seconds = 0.0  # over which the agents of the fleet come back

    async def run(self, admin: Path, registered: asyncio.Event) -> None:
        """Keep a channel open, until cancelled; begins when the control plane knows the proxy."""
        await registered.wait()
        await asyncio.sleep(self._jittered(_FIRST_SECONDS))  # Envoy connects first, which registers the proxy
        pauses = bootstrap.delays(*_RETRY_SECONDS)
        while True:
            begun_at, pause_min = time.monotonic(), 0.0
            try:
                await self._serve(admin)
                reason = "the connection has ended"
            except ControlPlaneUnavailable as error:
                reason = str(error)
            except ControlPlaneDenied as error:
                # It is not found until Envoy has connected; a control plane that stops answers 503.
                reason = "" if error.http_status == _NOT_FOUND else error.detail
                pause_min = _REFUSED_SECONDS if error.http_status in _REFUSALS else 0.0
            except Exception as error:  # noqa: BLE001 - the proxy works without it
                reason, pause_min = f"{type(error).__name__}: {error}", _REFUSED_SECONDS
            if time.monotonic() - begun_at >= _STEADY_SECONDS:
                pauses = bootstrap.delays(*_RETRY_SECONDS)
            self._log(reason)
            await asyncio.sleep(self._jittered(max(pause_min, next(pauses))))

    def _jittered(self, pause: float) -> float:
        """A pause after which to try again: when a control plane ends, its proxies come back one by one."""
        return max(pause * random.uniform(0.5, 1.0), random.uniform(0.0, self._spread_seconds))  # noqa: S311 - no secret

    def _log(self, reason: str) -> None:
        """Log why there is no channel, once for each reason."""
        if reason and reason != self._logged:
            self._logged = reason
            _log.info("no channel to the control plane; it is opened again later", why=reason)

    async def _serve(self, admin: Path) -> None:
        async with self._plane.open_channel(admin_channel.PATH, self._proxy, _OPTIONS) as channel:
            answers: set[asyncio.Task[None]] = set()
            try:
                greeting = admin_channel.read_greeting(str((await channel.receive()).data))
                self._spread_seconds = greeting.spread_seconds
                if self._logged:
                    _log.info("the channel to the control plane is open again")
                self._logged = ""
                async for message in channel:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        return
                    request = admin_channel.read_request(message.data)
                    if len(answers) >= _ANSWERS_MAX:  # of requests that the control plane gave up meanwhile
                        busy = "Envoy has not answered earlier requests yet"
                        await channel.send_bytes(
                            admin_channel.encoded(admin_channel.failure(request.number, busy))
                        )
                        continue
                    answer = asyncio.create_task(self._answer(channel, admin, request), name="admin page")
                    answers.add(answer)
                    answer.add_done_callback(answers.discard)
            except BadChannelMessage as error:
                _log.warning("the control plane sent what is no message of a channel", why=str(error))
            finally:
                for answer in answers:
                    answer.cancel()
                await asyncio.gather(*answers, return_exceptions=True)

    async def _answer(
        self, channel: aiohttp.ClientWebSocketResponse, admin: Path, request: PageRequest
    ) -> None:
        number = request.number
        try:
            answer = await self._page(admin, request)
            frames = admin_channel.frames(number, answer)
        except UnknownPage as error:
            frames = [admin_channel.failure(number, f"the agent refuses it: {error}")]
        except ResponseTooLarge:
            hint = "ask for a part of it, for instance config_dump?resource=dynamic_active_clusters"
            frames = [admin_channel.failure(number, f"Envoy's answer is too large; {hint}")]
        except (EnvoyUnreachable, NotJson) as error:
            frames = [admin_channel.failure(number, f"Envoy does not answer: {error}")]
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            for frame in frames:
                await channel.send_bytes(admin_channel.encoded(frame))

    async def _page(self, admin: Path, request: PageRequest) -> bytes:
        """A page without secrets, at most as large as the control plane takes it."""
        path = admin_pages.checked(request.path)
        async with self._turn:
            body = await unix_http.fetch(admin, path, _PAGE_BYTES_MAX, _PAGE_SECONDS_MAX)
            answer = await asyncio.to_thread(self._masked, path, body)
        if len(answer) > request.bytes_max:
            raise ResponseTooLarge
        return answer

    def _masked(self, path: str, body: bytes) -> bytes:
        return self._mask_tokens(admin_channel.masked(path, body).decode()).encode()
