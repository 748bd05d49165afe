"""Proxy balance: sends proxies of this control plane to others of the store that have clearly fewer.

A proxy stays where it is for as long as nothing happens. So a control plane that was started later, or again,
would get none. Streams that have lasted for long enough are ended, a few in a second, until the numbers are
about the same; then the proxies connect elsewhere, and are sent nothing that they have. Nothing is ended
where no other control plane is alive.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from koguma.fleet.proxy_state import InstanceState

TICK_SECONDS: Final = 1.0
SHARE_A_TICK: Final = 50  # a fiftieth of the proxies here may leave in a tick
_TOLERANCE: Final = 1.1  # times the mean, which is no reason to move anybody

_log = structlog.get_logger("koguma.fleet")


class ProxyBalance:
    """Ends streams that are older than an age, give or take a quarter, where others have fewer proxies."""

    def __init__(
        self,
        instances: Callable[[], Sequence[InstanceState]],
        end_streams: Callable[[int, float], int],  # so many at most, of this age; says how many there were
        age_seconds: float,
    ) -> None:
        self._instances = instances
        self._end_streams = end_streams
        self._age_seconds = age_seconds

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Let a few of those go that are too many here."""
        instances = self._instances()
        too_many = surplus(instances)
        if too_many:
            here = next(each.n_proxies for each in instances if each.is_here)
            ended = self._end_streams(min(too_many, max(1, here // SHARE_A_TICK)), self._age_seconds)
            if ended:
                _log.info("proxies are sent to other control planes", proxies=ended, surplus=too_many)


def surplus(instances: Sequence[InstanceState]) -> int:
    """How many proxies this control plane has above the mean; 0 where nobody has clearly fewer."""
    serving = [each for each in instances if each.is_here or (each.address and not each.is_gone)]
    here = next((each.n_proxies for each in serving if each.is_here), 0)
    mean = sum(each.n_proxies for each in serving) / max(len(serving), 1)
    fewest = min((each.n_proxies for each in serving), default=here)
    return int(here - mean) if here > mean * _TOLERANCE and here - fewest > 1 else 0
