"""Planned delivery: what a zone would be sent if some changes of Global's store were written."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.state import State
from koguma.sync import mapping
from koguma.sync.mapping import Travelling
from koguma.sync.protocol.catalog import Audience, SyncReach
from koguma.sync.protocol.messages import SyncedObject

KindOf = Callable[[str], Kind | None]
_Sides = tuple[Resource | None, Resource | None]  # before and after


class PlannedDelivery(NamedTuple):
    """Objects that a zone would be sent, and keys of those that it would lose."""

    objects: tuple[SyncedObject, ...] = ()
    removed: tuple[Key, ...] = ()

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all of them."""
        return (*(each.key for each in self.objects), *self.removed)


class PlannedDeliveries:
    """What each zone would be sent, by the same mapping as all that is sent."""

    def __init__(self, state: State, changes: Sequence[Change], kind_of: KindOf) -> None:
        self._kind_of = kind_of
        sides = {change.resource.key: (state.get(change.resource.key), _after(change)) for change in changes}
        self._disabled_before = disabled(state.listed(ZONE_KIND.name))
        zones = {zone.key: zone for zone in state.listed(ZONE_KIND.name)}
        after = {**zones, **{key: each for key, (_, each) in sides.items() if key.kind == ZONE_KIND.name}}
        self._disabled_after = disabled(zone for zone in after.values() if zone is not None)
        self._sides = {**dict(self._switched(state)), **sides}

    def _switched(self, state: State) -> Iterator[tuple[Key, _Sides]]:
        """The objects of zones that are switched off, or on again."""
        if switched := self._disabled_before ^ self._disabled_after:
            yield from ((each.key, (each, each)) for each in state.all() if each.zone in switched)

    def of(self, audience: Audience) -> PlannedDelivery:
        """What a zone would be sent that gets what its audience says."""
        objects: list[SyncedObject] = []
        removed: list[Key] = []
        for before, after in self._sides.values():
            old = self._sent(before, self._disabled_before, audience)
            new = self._sent(after, self._disabled_after, audience)
            if old is not None and (new is None or new.key != old.key):
                removed.append(old.key)
            if new is not None and (old is None or old != new):
                objects.append(new)
        return PlannedDelivery(tuple(objects), tuple(removed))

    def _sent(
        self, resource: Resource | None, zones_off: Collection[str], audience: Audience
    ) -> SyncedObject | None:
        kind = self._kind_of(resource.kind) if resource is not None else None
        if resource is None or kind is None:
            return None
        travelling = mapping.downward(resource, kind, zones_off)
        if travelling is None or not audience(_reach(travelling)):
            return None
        return SyncedObject(travelling.resource.key, mapping.content(travelling.resource))


def disabled(zones: Iterable[Resource]) -> frozenset[str]:
    """The names of zones that are switched off."""
    return frozenset(zone.name for zone in zones if (zone.spec or {}).get("enabled") is False)


def _after(change: Change) -> Resource | None:
    return None if change.op is Op.DELETE or change.error else change.resource


def _reach(travelling: Travelling) -> SyncReach:
    return SyncReach(travelling.resource.kind, travelling.resource.zone, travelling.only_to)
