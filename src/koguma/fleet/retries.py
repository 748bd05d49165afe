"""Trials: what a proxy refused for a reason that passes by itself is tried again, less and less often.

Nobody tells when a port is free again, so the proxy is asked. The first time soon, because mostly it was a
program that was just ending; later seldom, because each time costs a line in the log of its Envoy.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from koguma.model.resource import Key

FIRST_SECONDS: Final = 2.0
SECONDS_MAX: Final = 60.0


class Trials:
    """When to try again with whom. `again` says whether there is still something to try."""

    def __init__(self, again: Callable[[Key], bool]) -> None:
        self._again = again
        self._planned: dict[Key, asyncio.TimerHandle] = {}

    def plan(self, proxy: Key) -> None:
        """Try again in a while, and again until it is of use or of no use; more than once is as once."""
        if proxy not in self._planned:
            self._plan(proxy, FIRST_SECONDS)

    def forget(self, proxy: Key) -> None:
        """It has gone."""
        planned = self._planned.pop(proxy, None)
        if planned is not None:
            planned.cancel()

    def _plan(self, proxy: Key, seconds: float) -> None:
        self._planned[proxy] = asyncio.get_running_loop().call_later(seconds, self._try, proxy, seconds)

    def _try(self, proxy: Key, waited: float) -> None:
        del self._planned[proxy]
        if self._again(proxy):
            self._plan(proxy, min(2 * waited, SECONDS_MAX))
