"""Writes the statuses of GatewayClasses, Gateways and ListenerSets, whenever they change.

What they say is decided in `core/gateway_api/statuses.py`. The class that is there from the start comes back
if somebody deletes it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.core.gateway_api import objects, statuses
from koguma.model.resource import Resource
from koguma.reconcile import initial_objects
from koguma.reconcile.following import Pace, follow
from koguma.store.contract import Ensure, Put, Transaction, rfc3339
from koguma.store.watch import Watch

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

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._pace = Pace()

    async def run(self) -> None:
        """Look at all of them, and again after each change."""
        await follow(self._context.store, _WATCHED, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        await self.settle()
        while True:
            await watch.next_batch(None)
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
        planned = list(statuses.plan(db, rfc3339(self._clock())))
        async for _batch, answers in compare_and_swap.in_batches(self._write_one, planned):
            _log.debug(
                "statuses of gateways written", written=sum(answers), refused=len(answers) - sum(answers)
            )

    async def _write_one(self, resource: Resource) -> bool:
        return await self._write(Transaction((Put(resource, resource.revision),), SYSTEM, _REASON))

    async def _write(self, transaction: Transaction) -> bool:
        return await compare_and_swap.written_if_first(self._context.store, transaction)
