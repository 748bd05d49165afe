"""Quota: no user's write stores more objects than the ResourceQuotas of a namespace allow.

Quotas are read and objects are counted when the transaction is evaluated, on the very state that it is
committed on: two writers at once, through whichever endpoints and control planes, cannot both take the last
place. What the control plane writes by itself (generated services, statuses) is counted and never refused,
and neither is a backup that is restored; a proxy that brings its Dataplane is refused like a user.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from koguma.application.context import Context
from koguma.kube import quota
from koguma.kube.kinds.quota import RESOURCE_QUOTA
from koguma.kube.quota import HardLimit, ObjectCount
from koguma.model.errors import Forbidden
from koguma.model.resource import Key
from koguma.store.contract import Change, Op, RequireOfChanges, StateView


class QuotaExceeded(Forbidden):
    """A namespace would have more objects than a ResourceQuota allows."""

    title = "Not admitted"


def requirement(context: Context) -> RequireOfChanges:
    """The operation that ends a user's transaction: what it creates fits the quotas."""
    return RequireOfChanges(QuotaCheck(context).check)


def counted(context: Context, view: StateView, counts: set[ObjectCount]) -> Counter[ObjectCount]:
    """How many objects there are of each."""
    found: Counter[ObjectCount] = Counter()
    for stored_as in sorted({each.stored_as for each in counts}):
        for place, number in view.counts(stored_as).items():
            at = _count_of(context, Key(stored_as, *place, ""))
            if at in counts:
                found[at] += number
    return found


def _count_of(context: Context, key: Key) -> ObjectCount | None:
    """What an object counts as; None where its kind is not known any more."""
    kind = context.catalog.kind(key.kind)
    if kind is None:
        return None
    return ObjectCount(key.kind, quota.namespace_of(key, kind, context.control_plane))


class QuotaCheck(msgspec.Struct, frozen=True):
    """Checks the changes of a transaction against the quotas of their namespaces."""

    context: Context

    def check(self, view: StateView, changes: Sequence[Change]) -> None:
        """Raise QuotaExceeded where a quota has not enough room."""
        requested = self._requested(changes)
        namespaces = {counted.namespace for counted, number in requested.items() if number > 0}
        if not namespaces:
            return
        quotas = [each for each in view.resources(RESOURCE_QUOTA.stored_as) if each.namespace in namespaces]
        registry = self.context.catalog.registry
        limits: list[HardLimit] = [
            limit
            for each in sorted(quotas, key=lambda each: each.key)
            for limit in quota.limits(each, registry)
            if requested.get(limit.counted, 0) > 0
        ]
        used = counted(self.context, view, {limit.counted for limit in limits})
        text = quota.exceeded(limits, requested, used)
        if text:
            raise QuotaExceeded(text)

    def _requested(self, changes: Sequence[Change]) -> Counter[ObjectCount]:
        """How many more objects there will be; a transaction may delete some and create others."""
        requested: Counter[ObjectCount] = Counter()
        for change in changes:
            step = {Op.CREATE: 1, Op.DELETE: -1}.get(change.op, 0)
            at = _count_of(self.context, change.resource.key) if step else None
            if at is not None:
                requested[at] += step
        return requested
