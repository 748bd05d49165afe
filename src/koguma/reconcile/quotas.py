"""Statuses of ResourceQuotas: what is used, kept true while objects come and go.

Enforcement does not read them: it counts. They are for people and for tools.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application import quota as quota_check
from koguma.application.context import Context
from koguma.kube import quota
from koguma.kube.catalog import Catalog
from koguma.kube.kinds.quota import RESOURCE_QUOTA
from koguma.kube.quota import ObjectCount
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.reconcile.following import PAUSE_SECONDS, follow
from koguma.store.contract import Change, Op, Put, Transaction, rfc3339
from koguma.store.watch import Watch

_REASON: Final = "status"

_log = structlog.get_logger("koguma.quotas")


class QuotaStatuses:
    """Writes the statuses of quotas, until cancelled."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._catalog: Catalog | None = None  # that the statuses were written by

    async def run(self) -> None:
        """Look at all quotas, and then at those that a change concerns."""
        await follow(self._context.store, None, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        await self._settle(self._quotas())
        while True:
            changes = await watch.next_batch(None)
            quotas = self._quotas()
            if not quotas:
                continue
            await asyncio.sleep(PAUSE_SECONDS)
            await self._settle(self._concerned(changes))

    def _quotas(self) -> tuple[Resource, ...]:
        return self._context.state.listed(RESOURCE_QUOTA.stored_as)

    def _concerned(self, changes: Iterable[Change]) -> list[Resource]:
        """The quotas that may be out of date; all of them where endpoints have come or gone."""
        if self._context.catalog is not self._catalog:
            return list(self._quotas())
        namespaces = set()
        for change in changes:
            kind = self._context.catalog.kind(change.resource.kind)
            if kind is None or (change.op is Op.UPDATE and kind is not RESOURCE_QUOTA):
                continue
            namespaces.add(quota.namespace_of(change.resource.key, kind, self._context.control_plane))
        return [each for each in self._quotas() if each.namespace in namespaces]

    async def _settle(self, quotas: Iterable[Resource]) -> None:
        self._catalog = self._context.catalog
        for resource in quotas:
            for _ in range(compare_and_swap.ATTEMPTS):
                stored = self._context.state.get(resource.key)
                if stored is None or (status := self._status(stored)) == stored.status:
                    break
                put = Put(msgspec.structs.replace(stored, status=status), stored.revision)
                transaction = Transaction((put,), SYSTEM, _REASON)
                await compare_and_swap.written_if_first(self._context.store, transaction)

    def _status(self, stored: Resource) -> Json:
        registry = self._context.catalog.registry
        counts = {limit.counted for limit in quota.limits(stored, registry)}
        used: Counter[ObjectCount] = quota_check.counted(self._context, self._context.state, counts)
        return quota.status(stored, used, registry, rfc3339(self._clock()))
