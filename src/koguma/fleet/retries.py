"""Retries: when a proxy is offered again what it rejected for a reason that passes by itself.

Nothing reports that a port is free again, so the proxy has to try. The first retry comes soon, because mostly
the port belonged to a program that was just ending; later ones are rare, because each costs a line in the log
of its Envoy.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from koguma.model.resource import Key

FIRST_SECONDS: Final = 2.0
SECONDS_MAX: Final = 60.0


class Retries:
    """Schedules retries. `retry` makes one and returns whether there is still something to retry."""

    def __init__(self, retry: Callable[[Key], bool]) -> None:
        self._retry = retry
        self._scheduled: dict[Key, asyncio.TimerHandle] = {}

    def schedule(self, proxy: Key) -> None:
        """Retry until there is nothing left to retry. Idempotent."""
        if proxy not in self._scheduled:
            self._schedule(proxy, FIRST_SECONDS)

    def forget(self, proxy: Key) -> None:
        """A proxy has disconnected."""
        timer = self._scheduled.pop(proxy, None)
        if timer is not None:
            timer.cancel()

    def _schedule(self, proxy: Key, seconds: float) -> None:
        self._scheduled[proxy] = asyncio.get_running_loop().call_later(seconds, self._run, proxy, seconds)

    def _run(self, proxy: Key, waited_seconds: float) -> None:
        del self._scheduled[proxy]
        if self._retry(proxy):
            self._schedule(proxy, min(2 * waited_seconds, SECONDS_MAX))
