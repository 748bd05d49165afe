"""Zone arrivals: on Global, whether a revision of its store has reached every proxy of every zone.

A zone has a store and revisions of its own. So three things are asked in turn: has the zone stored all that
Global has up to the revision (its connection knows), at which revision of its own store was that at the
latest (the zone says, and it is kept while the connection lasts), and have all its proxies that one (the zone
says). What is not known counts as lacking.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from koguma.application.context import Context
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.zone_arrival import ListedMeshes, ZoneArrivalAnswer, ZoneArrivalQuestion
from koguma.fleet.zone_state import offline
from koguma.identity import proxy_types
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model.errors import KogumaError, NotSupported
from koguma.model.resource import Key
from koguma.model.sync_receipt import SyncReceipt

LOOK_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 1.0
_PAUSE_SHARE: Final = 10  # how many times longer than the looks of all who wait the pause after one is
_KEPT_MAX: Final = 1000  # revisions of a zone

AskArrival = Callable[[str, ZoneArrivalQuestion], Awaitable[ZoneArrivalAnswer]]  # by zone


class AskedArrival(msgspec.Struct, frozen=True):
    """A revision of Global's store that somebody asks about, and the proxies that he may list."""

    revision: int
    objects: tuple[str, ...]  # KRIs
    listed: ListedMeshes
    counts_absent: bool


class ZoneLack(msgspec.Struct, frozen=True):
    """Why a revision has not arrived in a zone, whatever its proxies have."""

    zone: str
    reason: str  # offline, elsewhere, not-received, refused, kept, no-answer, too-old
    text: str
    since: datetime | None = None
    refused: Key | None = None
    is_lasting: bool = False  # nothing but another change will mend it


class FoundInZone(msgspec.Struct, frozen=True):
    """How far a revision is in a zone."""

    lacks: tuple[ZoneLack, ...] = ()
    answer: ZoneArrivalAnswer | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it has arrived there."""
        return not self.lacks and self.answer is not None and self.answer.is_complete


class _StoredRevisions:
    """By when a zone had stored revisions of Global's: at which of its own; over one connection."""

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self._global: list[int] = []  # both grow
        self._own: list[int] = []

    def of(self, revision: int) -> int:
        """The revision of the zone's store at which it had a revision of Global's; 0 where it has to say."""
        index = bisect_left(self._global, revision)
        return self._own[index] if index < len(self._own) else 0

    def add(self, revision: int, own: int) -> None:
        """The zone says that it is at a revision of its own; before, it had one of Global's."""
        if not self._global or (revision > self._global[-1] and own >= self._own[-1]):
            self._global.append(revision)
            self._own.append(own)
        del self._global[:-_KEPT_MAX], self._own[:-_KEPT_MAX]


class ZoneArrivals:
    """Answers for all zones that are connected to this control plane of Global; others count as lacking."""

    def __init__(
        self,
        context: Context,
        states: SharedStates,
        ask: AskArrival,
        receipt: Callable[[str], SyncReceipt | None],
    ) -> None:
        self._context = context
        self._states = states
        self._ask = ask
        self._receipt = receipt
        self._stored: dict[str, _StoredRevisions] = {}

    def counting(self, *, absent: bool) -> Iterator[str]:
        """The zones that count.

        One that is not connected does not where it is switched off, or has never been there.
        """
        for zone in self._context.state.listed(ZONE_KIND.name):
            connections = self._states.zone(zone.name)
            is_enabled = (zone.spec or {}).get("enabled") is not False
            if any(each.is_connected for each in connections) or (
                absent and is_enabled and (connections or self._has_proxies(zone.name))
            ):
                yield zone.name

    def _has_proxies(self, zone: str) -> bool:
        kinds = (each.kind for each in proxy_types.SERVED.values())
        return any(proxy.zone == zone for kind in kinds for proxy in self._context.state.listed(kind))

    async def found(self, zone: str, asked: AskedArrival) -> FoundInZone:
        """How far a revision is in a zone."""
        if (away := self._away(zone)) is not None:
            return FoundInZone((away,))
        receipt = self._receipt(zone)
        if receipt is None or receipt.revision < asked.revision:
            since = next((each.behind_since for each in self._states.zone(zone) if each.is_connected), None)
            return FoundInZone((ZoneLack(zone, "not-received", "it has not received it yet", since),))
        refused = tuple(self._refusals(zone, receipt, asked))
        try:
            answer = await self._answered(zone, receipt, asked)
        except NotSupported as error:
            return FoundInZone((*refused, ZoneLack(zone, "too-old", error.detail, is_lasting=True)))
        except KogumaError as error:
            return FoundInZone((*refused, ZoneLack(zone, "no-answer", error.detail)))
        if answer is None:
            text = "its connection has ended meanwhile"
            return FoundInZone((*refused, ZoneLack(zone, "not-received", text)))
        kept = (ZoneLack(zone, "kept", answer.kept, is_lasting=True),) if answer.kept else ()
        return FoundInZone((*refused, *kept), answer)

    def _away(self, zone: str) -> ZoneLack | None:
        connections = self._states.zone(zone)
        connected = [each.instance for each in connections if each.is_connected]
        if not connected:
            ends = [each.disconnected_at for each in connections if each.disconnected_at is not None]
            since = max(ends, default=None)
            return ZoneLack(zone, "offline", offline(zone, since), since)
        if self._states.instance not in connected:
            text = f'it is connected to the control plane "{connected[-1]}" of Global; ask that one'
            return ZoneLack(zone, "elsewhere", text)
        return None

    def _refusals(self, zone: str, receipt: SyncReceipt, asked: AskedArrival) -> Iterator[ZoneLack]:
        for refused in receipt.refused:
            if refused.is_about(asked.revision) or self._kri(refused.key) in asked.objects:
                yield ZoneLack(zone, "refused", refused.reason, refused=refused.key, is_lasting=True)
        if receipt.has_more:
            text = "it has refused more objects than are remembered; see `koguma check`"
            yield ZoneLack(zone, "refused", text, is_lasting=True)

    def _kri(self, key: Key) -> str:
        stored, kind = self._context.state.get(key), self._context.kinds.get(key.kind)
        return str(stored.kri(kind.short) or "") if stored is not None and kind is not None else ""

    async def _answered(
        self, zone: str, receipt: SyncReceipt, asked: AskedArrival
    ) -> ZoneArrivalAnswer | None:
        """The zone's answer; None where another connection may have given it."""
        stored = self._stored.get(zone)
        if stored is None or stored.connection != receipt.connection:
            stored = self._stored[zone] = _StoredRevisions(receipt.connection)
        own = stored.of(asked.revision)
        question = ZoneArrivalQuestion(asked.revision, own, asked.listed, asked.objects, asked.counts_absent)
        answer = await self._ask(zone, question)
        after = self._receipt(zone)
        if after is None or after.connection != receipt.connection or (own and answer.own != own):
            return None
        if not own:
            stored.add(receipt.revision, answer.own)
        return answer


class ArrivalLooks:
    """The looks of one request: zones that have it are asked again only once all others have it, too."""

    def __init__(self, arrivals: ZoneArrivals, asked: AskedArrival) -> None:
        self._arrivals = arrivals
        self._asked = asked
        self._found: dict[str, FoundInZone] = {}
        self._seconds = 0.0  # that the last look took

    async def look(self) -> Mapping[str, FoundInZone]:
        """How far it is, by zone."""
        began_at = time.monotonic()
        zones = list(self._arrivals.counting(absent=self._asked.counts_absent))
        self._found = {zone: found for zone, found in self._found.items() if zone in zones}
        had = [zone for zone, found in self._found.items() if found.is_complete]
        await self._ask([zone for zone in zones if zone not in had])
        if is_complete(self._found):  # more proxies may have come to these meanwhile
            await self._ask(had)
        self._seconds = time.monotonic() - began_at
        return {zone: self._found[zone] for zone in zones}

    async def _ask(self, zones: Sequence[str]) -> None:
        found = await asyncio.gather(*(self._arrivals.found(zone, self._asked) for zone in zones))
        self._found |= dict(zip(zones, found, strict=True))

    async def pause(self, n_waiting: int) -> None:
        """Wait until another look is worth it, and those of all who wait leave time for other work."""
        seconds = _PAUSE_SHARE * self._seconds * n_waiting
        await asyncio.sleep(min(max(LOOK_SECONDS, seconds), PAUSE_SECONDS_MAX))


def is_complete(found: Mapping[str, FoundInZone]) -> bool:
    """Whether it has arrived in all zones."""
    return all(each.is_complete for each in found.values())
