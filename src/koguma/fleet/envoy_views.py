"""Envoy views: pages of the admin interface of any proxy, wherever it is connected.

A proxy with a channel here is asked over that. Any other is asked for at the control plane that has its
channel. A control plane that asks for another one looks at its own channels alone, so no request goes in
circles.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import msgspec

from koguma.envoy import admin_channel, admin_pages
from koguma.envoy.admin_channel import ANSWER_BYTES_MAX
from koguma.envoy.admin_pages import UnknownPage
from koguma.envoy.masking import NotJson
from koguma.fleet.admin_channels import AdminChannels
from koguma.fleet.roster import Roster
from koguma.model.errors import BadGateway, BadRequest, KogumaError, NotSupported, Unavailable
from koguma.model.resource import Key
from koguma.runtime.background import Background

SECONDS_MAX: Final = 20.0
SECONDS_MAX_OF_MANY: Final = 5.0  # for each, where others wait for their turn
SMALL_BYTES_MAX: Final = 1024 * 1024
LARGE_AT_ONCE: Final = 4  # answers of more than that, each in memory as a whole
SMALL_AT_ONCE: Final = 32
_BYTES_ON_LOOP: Final = 64 * 1024  # from here on a thread masks the answer


class NotConnected(Unavailable):
    """The proxy has no channel here, and is not connected here either."""


class NoChannel(Unavailable):
    """The proxy is connected here, and has no channel here; it may have one at another control plane."""


class PageAnswer(msgspec.Struct, frozen=True):
    """The answer of one of many proxies: a page, or why there is none."""

    key: Key
    page: bytes = b""
    error: KogumaError | None = None


class OtherControlPlanes(Protocol):
    """Asks the other control planes of the store, or, on Global, those of zones."""

    async def ask(self, key: Key, path: str, bytes_max: int, seconds_max: float) -> bytes:
        """A page of a proxy that is connected to one of them; NotConnected where it is to none."""
        ...

    def turn(self, key: Key, bytes_max: int, seconds_max: float) -> AbstractAsyncContextManager[None]:
        """A turn to ask for that, before one of this control plane is taken."""
        ...


class EnvoyViews:
    """Asks Envoys for pages of their admin interface; secrets in the answers are masked."""

    def __init__(
        self,
        roster: Roster,
        channels: AdminChannels,
        background: Background,
        others: OtherControlPlanes | None = None,
    ) -> None:
        self._roster = roster
        self._channels = channels
        self._background = background
        self._others = others
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._small = asyncio.Semaphore(SMALL_AT_ONCE)

    async def ask(
        self, key: Key, path: str, *, bytes_max: int = ANSWER_BYTES_MAX, seconds_max: float = SECONDS_MAX
    ) -> bytes:
        """A page of a proxy, such as `/stats?format=json&usedonly`.

        Raises BadRequest where there is no such page, NotSupported where the proxy's agent has no channel,
        BadGateway where its answer cannot be used, and Unavailable where asking again may help.
        """
        try:
            return await self.ask_here(key, path, bytes_max=bytes_max, seconds_max=seconds_max)
        except (NotConnected, NoChannel) as error:
            if self._others is None:
                raise
            reason = error
        try:
            async with (
                self._others.turn(key, bytes_max, seconds_max),
                self._turn(bytes_max, seconds_max),
            ):
                return await self._others.ask(key, path, bytes_max, seconds_max)
        except NotConnected:
            raise reason from None

    async def ask_all(
        self,
        keys: Iterable[Key],
        path: str,
        *,
        bytes_max: int = SMALL_BYTES_MAX,
        seconds_max: float = SECONDS_MAX_OF_MANY,
        at_once: int = SMALL_AT_ONCE,
    ) -> AsyncIterator[PageAnswer]:
        """A page of each of many proxies, as the answers come; at most `at_once` are under way."""
        waiting = iter(keys)
        answers: asyncio.Queue[PageAnswer | None] = asyncio.Queue()

        async def work() -> None:
            try:
                for key in waiting:
                    answers.put_nowait(await self._answer(key, path, bytes_max, seconds_max))
            finally:
                answers.put_nowait(None)

        workers = [self._background.once("pages of proxies", work()) for _ in range(at_once)]
        try:
            n_working = len(workers)
            while n_working:
                answer = await answers.get()
                if answer is None:
                    n_working -= 1
                else:
                    yield answer
        finally:
            for worker in workers:
                worker.cancel()

    async def _answer(self, key: Key, path: str, bytes_max: int, seconds_max: float) -> PageAnswer:
        try:
            return PageAnswer(key, await self.ask(key, path, bytes_max=bytes_max, seconds_max=seconds_max))
        except KogumaError as error:
            return PageAnswer(key, error=error)

    async def ask_here(
        self, key: Key, path: str, *, bytes_max: int = ANSWER_BYTES_MAX, seconds_max: float = SECONDS_MAX
    ) -> bytes:
        """The same of a proxy with a channel to this control plane; NotConnected where it is not here."""
        try:
            path = admin_pages.checked(path)
        except UnknownPage as error:
            raise BadRequest(str(error)) from None
        channel = self._channels.of(key)
        if channel is None:
            raise self._no_channel(key)
        bytes_max = min(bytes_max, ANSWER_BYTES_MAX)
        # A turn of the channel first: who waits for an agent that hangs takes no turn of others.
        async with (
            _acquired(channel.turns, seconds_max, "its agent has not answered others yet; try again"),
            self._turn(bytes_max, seconds_max),
        ):
            page = await channel.ask(path, bytes_max, seconds_max)
            return await masked(path, page)

    def _turn(self, bytes_max: int, seconds_max: float) -> AbstractAsyncContextManager[None]:
        turns = self._small if bytes_max <= SMALL_BYTES_MAX else self._large
        return _acquired(turns, seconds_max, "too many proxies are asked at once; try again")

    def _no_channel(self, key: Key) -> KogumaError:
        """Why a proxy cannot be asked here."""
        proxy = self._roster.get(key)
        if proxy is None:
            return NotConnected("it is not connected")
        if not proxy.node.is_own_agent:
            return NotSupported(
                "it runs with Kuma's agent, which does not pass on what its Envoy shows; `koguma dp run` does"
            )
        if admin_channel.FEATURE not in proxy.node.features:
            return NotSupported("its agent is of an older version that does not pass on what its Envoy shows")
        return NoChannel("it is connected, but its agent has not opened its channel yet; try again")


@asynccontextmanager
async def _acquired(turns: asyncio.Semaphore, seconds_max: float, refusal: str) -> AsyncIterator[None]:
    """A turn; Unavailable where there is none in time."""
    try:
        async with asyncio.timeout(seconds_max):
            await turns.acquire()
    except TimeoutError:
        raise Unavailable(refusal) from None
    try:
        yield
    finally:
        turns.release()


async def masked(path: str, page: bytes) -> bytes:
    """A page without secrets; a large one is read in a thread."""
    try:
        if len(page) <= _BYTES_ON_LOOP:
            return admin_channel.masked(path, page)
        return await asyncio.to_thread(admin_channel.masked, path, page)
    except NotJson:
        raise BadGateway("its agent answered with something that is no JSON") from None
