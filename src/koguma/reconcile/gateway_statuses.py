"""Writes the statuses of GatewayClasses, Gateways and ListenerSets, whenever they change.

What they say is decided in `core/gateway_api/statuses.py`. The class that is there from the start comes back
if somebody deletes it.

A Gateway is served by proxies that are connected, to whichever control plane. Another one may know of a proxy
a moment earlier than this one, so a loss is written only if it stays so for some seconds.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.core.gateway_api import objects, statuses
from koguma.model.resource import Key, Resource
from koguma.reconcile import initial_objects
from koguma.reconcile.following import Pace, follow
from koguma.store.contract import Ensure, Put, Transaction, rfc3339
from koguma.store.watch import Watch

LOOK_SECONDS: Final = 1.0  # between two looks at which proxies are connected
LOSING_SECONDS: Final = 3.0
_REASON: Final = "status"
_WATCHED: Final = frozenset(
    {
        *statuses.KINDS,
        *objects.ROUTES,
        objects.REFERENCE_GRANT,
        "Secret.core",
        "Namespace.core",
        "MeshService",
        "Dataplane",
    }
)
_log = structlog.get_logger("koguma.gateway-api")


class GatewayStatuses:
    """Keeps these statuses true, until cancelled."""

    def __init__(
        self,
        context: Context,
        clock: Callable[[], datetime],
        connected: Callable[[], frozenset[Key] | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._clock = clock
        self._connected = connected  # None while that is not known
        self._monotonic = monotonic
        self._pace = Pace()
        self._settled_with: frozenset[Key] | None = None
        self._losing_since: dict[tuple[Key, int], float] = {}  # objects at a revision, whose proxies left

    async def run(self) -> None:
        """Look at all of them, and again after each change."""
        await follow(self._context.store, _WATCHED, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        await self.settle()
        while True:
            changes = await watch.next_batch(LOOK_SECONDS)
            if not changes and not self._losing_since and self._connected() is self._settled_with:
                continue
            await self._pace.pause()
            await watch.next_batch(0)
            with self._pace.working():
                await self.settle()

    async def settle(self) -> None:
        """Write what is not as it should be."""
        if self._context.control_plane.is_global:
            return
        wanted = initial_objects.gateway_class()
        if self._context.state.entry(wanted.key) is None:
            await self._write(Transaction((Ensure(wanted),), SYSTEM, _REASON))
        db = await self._context.database()
        connected = self._settled_with = self._connected()
        if connected is None:  # it is looked at again once that is known
            return
        planned = self._due(statuses.plan(db, rfc3339(self._clock()), connected))
        async for _batch, answers in compare_and_swap.in_batches(self._write_one, planned):
            _log.debug(
                "statuses of gateways written", written=sum(answers), refused=len(answers) - sum(answers)
            )

    def _due(self, planned: Iterable[Resource]) -> list[Resource]:
        """What is to be written now: that proxies left only after a while in which nobody said otherwise."""
        now, losing, due = self._monotonic(), dict[tuple[Key, int], float](), list[Resource]()
        for resource in planned:
            stored, at = self._context.state.get(resource.key), (resource.key, resource.revision)
            if stored is not None and statuses.loses_proxies(stored.status, resource.status):
                losing[at] = self._losing_since.get(at, now)
                if now - losing[at] < LOSING_SECONDS:
                    continue
            due.append(resource)
        self._losing_since = losing
        return due

    async def _write_one(self, resource: Resource) -> bool:
        return await self._write(Transaction((Put(resource, resource.revision),), SYSTEM, _REASON))

    async def _write(self, transaction: Transaction) -> bool:
        return await compare_and_swap.written_if_first(self._context.store, transaction)
