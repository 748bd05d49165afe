"""ReadyWriter: stores which of the proxies that brought their own object can be called now.

One proxy is stored at once. Where thousands become ready, they are stored in groups, since each write wakes
all that follows the store.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.registration import RETRY_SECONDS, Registration
from koguma.model.errors import Unavailable
from koguma.model.resource import Key
from koguma.store.contract import Transaction
from koguma.store.unavailable import log_unavailable

PAUSE_SECONDS: Final = 0.05  # after a write, for those that become ready meanwhile
AT_ONCE: Final = 200
REASON: Final = "proxy ready"

_log = structlog.get_logger("koguma.fleet")


class ReadyWriter:
    """The proxies whose readiness is not stored yet."""

    def __init__(
        self, context: Context, registration: Registration, is_current: Callable[[ConnectedProxy], bool]
    ) -> None:
        self._context = context
        self._registration = registration
        self._is_current = is_current
        self._waiting: dict[Key, ConnectedProxy] = {}
        self._writing: asyncio.Task[None] | None = None

    def store(self, proxy: ConnectedProxy) -> None:
        """Store that a proxy is ready, soon."""
        if self._registration.is_ready(proxy.proxy):
            return
        self._waiting[proxy.key] = proxy
        if self._writing is None or self._writing.done():
            self._writing = self._context.background.once("readiness of proxies", self._write_all())

    def stop(self) -> None:
        """Store nothing more."""
        if self._writing is not None:
            self._writing.cancel()

    async def _write_all(self) -> None:
        while self._waiting:
            group = dict(islice(self._waiting.items(), AT_ONCE))
            for key in group:
                del self._waiting[key]
            try:
                await self._write([proxy for proxy in group.values() if self._is_current(proxy)])
            except Unavailable as error:
                log_unavailable(_log, "proxies' readiness waits for the store", error)
                self._waiting = {**group, **self._waiting}
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, proxies: Sequence[ConnectedProxy]) -> None:
        resources = [proxy.proxy for proxy in proxies]
        puts = [put for each in resources if (put := self._registration.ready_put(each)) is not None]
        if not puts:
            return
        transaction = Transaction(tuple(puts), SYSTEM, REASON)
        if not await compare_and_swap.written_if_first(self._context.store, transaction):
            for resource in resources:  # one of them changed in between
                await self._registration.ready(resource)
