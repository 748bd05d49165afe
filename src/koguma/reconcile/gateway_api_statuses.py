"""Statuses of objects of the Gateway API, kept true while what they refer to comes and goes.

The engine says what is true of each object. Only those are looked at whose answer changes, or whose status
somebody else has written. Nobody leads: a write is a compare-and-swap, and equal statuses are not written.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.core.gateway_api import backend_tls, backend_tls_status, objects, route_status
from koguma.core.incremental import Db, Question, Watcher
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.reconcile.following import Pace, follow
from koguma.store.contract import Put, Transaction, rfc3339
from koguma.store.watch import Watch

_REASON: Final = "status"
_log = structlog.get_logger("koguma.gateway-api")


class ObjectStatus(NamedTuple):
    """What the status of an object depends on, and the status that it should have."""

    question: Question[[Key], Any]
    status: Callable[[Db, Resource, str], Json]


_ROUTE: Final = ObjectStatus(route_status.of, route_status.status)
STATUSES: Final[Mapping[str, ObjectStatus]] = {
    **dict.fromkeys(objects.ROUTES, _ROUTE),
    backend_tls.KIND: ObjectStatus(backend_tls.conditions, backend_tls_status.status),
}


class GatewayApiStatuses:
    """Writes the statuses, until cancelled."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._db: Db | None = None
        self._watcher: Watcher | None = None
        self._pace = Pace()

    async def run(self) -> None:
        """Look at all objects, and then at those that a change concerns."""
        await follow(self._context.store, None, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        self._db = None
        await self._settle(())
        while True:
            changes = await watch.next_batch(None)
            await self._pace.pause()
            changes += await watch.next_batch(0)
            with self._pace.working():
                await self._settle({change.resource.key for change in changes})

    async def _settle(self, touched: Iterable[Key]) -> None:
        """Write the statuses that are no longer true; `touched` are objects that somebody has written."""
        db = await self._context.database()
        if db is not self._db or self._watcher is None:  # loaded, or loaded again
            self._db, self._watcher = db, Watcher(db)
            touched = [each.key for kind in STATUSES for each in self._context.state.listed(kind)]
        keys = self._changed(self._watcher, [key for key in touched if key.kind in STATUSES])
        now = rfc3339(self._clock())
        changed = []
        for key in keys:
            stored = self._context.state.get(key)
            status = STATUSES[key.kind].status(db, stored, now) if stored is not None else None
            if stored is not None and status != stored.status:
                changed.append(msgspec.structs.replace(stored, status=status))
        async for batch, answers in compare_and_swap.in_batches(self._write, changed):
            _log.debug("statuses written", written=sum(answers), refused=len(batch) - sum(answers))

    def _changed(self, watcher: Watcher, touched: Iterable[Key]) -> list[Key]:
        """The objects to look at; all that there are stay watched."""
        keys = dict.fromkeys(touched)
        for key in keys:
            if self._context.state.get(key) is None:
                watcher.unwatch(STATUSES[key.kind].question, key)
            else:
                watcher.watch(STATUSES[key.kind].question, key)
        keys |= {call.args[0]: None for call in watcher.changed_alone()}
        return list(keys)

    async def _write(self, resource: Resource) -> bool:
        transaction = Transaction((Put(resource, resource.revision),), SYSTEM, _REASON)
        return await compare_and_swap.written_if_first(self._context.store, transaction)
