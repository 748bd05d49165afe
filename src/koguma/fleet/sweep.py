"""Sweep: removes what proxies registered and that no control plane removes any more, as after one was killed.

A proxy's object goes when for a while nobody has had the proxy. Several control planes may do that at once,
and each needs to have seen it all the time: what was not known for a moment counts from then on.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from koguma.fleet.registration import CONNECTED_TO, Registration
from koguma.fleet.shared_states import SharedStates
from koguma.model.errors import Unavailable
from koguma.model.resource import Key, Resource
from koguma.store.unavailable import log_unavailable

SWEEP_SECONDS: Final = 90.0  # Envoy looks for its control plane every half minute at least
ROUND_SECONDS: Final = 10.0

_log = structlog.get_logger("koguma.fleet")


class Sweep:
    """Looks for objects of proxies that are connected nowhere."""

    def __init__(
        self,
        registration: Registration,
        states: SharedStates,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registration = registration
        self._states = states
        self._monotonic = monotonic
        self._missing_since: dict[Key, float] = {}

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            try:
                await self.round()
            except Unavailable as error:
                log_unavailable(_log, "the sweep of proxies waits for the store", error)
            await asyncio.sleep(ROUND_SECONDS)

    async def round(self) -> None:
        """Remove what has been missing for long enough."""
        now = self._monotonic()
        missing = {each.key: each for each in self._missing()} if self._states.is_known else {}
        self._missing_since = {key: self._missing_since.get(key, now) for key in missing}
        for key, since in list(self._missing_since.items()):
            if now - since >= SWEEP_SECONDS:
                await self._registration.remove(missing[key])

    def _missing(self) -> Iterator[Resource]:
        """Objects of proxies that are connected nowhere, where it is known who had them last.

        A control plane of an earlier release tells the others nothing of its proxies.
        """
        connected = self._states.connected_keys
        instances = {instance.id for instance in self._states.instances()}
        for resource in self._registration.registered():
            owner = resource.annotations.get(CONNECTED_TO, "")
            if resource.key not in connected and (self._states.is_alone or owner in instances):
                yield resource
