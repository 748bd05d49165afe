"""Proxy plans: what changes of objects would do to proxies, worked out where the proxies are.

On Global every zone that would get something of the changes is asked, over its connection, what that would do
to its proxies; Global's own part is what becomes of the objects. A zone that does not answer is named.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.application.context import Context
from koguma.application.live_engine import ObjectChanges
from koguma.application.visible_objects import ReceivedRights, VisibleObjects
from koguma.core.plan import merging
from koguma.core.plan.model import Plan, Risk, UnknownZone
from koguma.core.plan.planner import PROXY_KINDS, PlannedChange, Planner
from koguma.core.plan.reader import PlanReader
from koguma.fleet.zone_questions import PlanQuestion, ZoneQuestions
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model.errors import BadRequest, KogumaError, Unavailable
from koguma.model.resource import Key
from koguma.runtime.clock import now
from koguma.store.contract import Change
from koguma.sync.global_server import GlobalServer
from koguma.sync.planned_delivery import PlannedDelivery
from koguma.sync.protocol.messages import SyncedObject
from koguma.sync.zone_client import ZoneClient

ZONES_AT_ONCE: Final = 16  # that are asked for one plan
SECONDS_MAX: Final = 90.0  # for all zones; the command line waits for two minutes
ANSWERS_BYTES_MAX: Final = 128 * 1024 * 1024  # of all zones together
_BEHIND_SECONDS_MAX: Final = 5.0  # until a zone has got what was written before


class ZoneSources(NamedTuple):
    """Whom Global asks: what it would send to zones, and what they say to that."""

    server: GlobalServer
    questions: ZoneQuestions


class ProxyPlans:
    """Plans for all proxies; `zones` are asked on Global, and None elsewhere."""

    def __init__(self, context: Context, zones: Callable[[], ZoneSources | None] = lambda: None) -> None:
        self._context = context
        self._zones = zones

    async def of(
        self,
        changes: Sequence[Change],
        visible: VisibleObjects,
        keys: frozenset[Key],
        *,
        envoy_fields: bool = False,
    ) -> Plan:
        """What changes would do to every proxy; `keys` are the objects that a user has named."""
        is_global = self._context.control_plane.is_global
        reader = PlanReader(visible, envoy_fields, has_reasons=not is_global)
        own = await self._here(changes, reader, keys)
        zones = self._zones()
        if not is_global or zones is None:
            return own
        return await _PlanOfZones(self._context, zones, visible, envoy_fields=envoy_fields).merged(
            own, changes
        )

    async def _here(self, changes: Sequence[Change], reader: PlanReader, keys: frozenset[Key]) -> Plan:
        change, at = PlannedChange(*ObjectChanges.of(changes)), now()

        def ask(planner: Planner) -> Plan:
            return planner.plan(change, at, reader, keys)

        return await self._context.trials.plan(await self._context.database(), self._context.store, ask)

    async def received(self, client: ZoneClient, question: PlanQuestion) -> bytes:
        """What objects of Global's would do here, once this zone had received them."""
        if len(question.keys) != len(question.contents):
            raise BadRequest("the question cannot be read: there have to be as many keys as contents")
        contents = zip(question.keys, question.contents, strict=True)
        objects = [SyncedObject(key, bytes(content)) for key, content in contents]
        changes, refused = await client.preview(objects, question.removed)
        visible = ReceivedRights(self._context, question.rights)
        reader = PlanReader(visible, question.envoy_fields, name_of=client.name_on_global)
        plan = await self._here(changes, reader, frozenset((*question.keys, *question.removed)))
        risks = [
            Risk("refused", f"{each.key} is refused by the zone's control plane: {each.reason}")
            for each in refused
            if visible.may_see(each.key)
        ]
        return msgspec.json.encode(msgspec.structs.replace(plan, risks=tuple(sorted((*plan.risks, *risks)))))


class _PlanOfZones:
    """One question to all zones that its reader may know of."""

    def __init__(
        self, context: Context, zones: ZoneSources, visible: VisibleObjects, *, envoy_fields: bool
    ) -> None:
        self._context = context
        self._server, self._questions = zones
        self._visible = visible
        self._rights = visible.sent()
        self._envoy_fields = envoy_fields
        self._turns = asyncio.Semaphore(ZONES_AT_ONCE)
        self._ends_at = asyncio.get_running_loop().time() + SECONDS_MAX

    async def merged(self, own: Plan, changes: Sequence[Change]) -> Plan:
        """The plans of all zones, and Global's own, as one."""
        delivery_of = self._server.planned(changes)
        n_proxies = self._readable_proxies()
        deliveries = {zone: delivery_of(zone) for zone in self._readable_zones(n_proxies)}
        asked = {zone: delivery for zone, delivery in deliveries.items() if delivery.keys}
        bytes_max = ANSWERS_BYTES_MAX // max(len(asked), 1)
        found = await asyncio.gather(*(self._asked(*each, bytes_max) for each in asked.items()))
        plans = {zone: plan for zone, plan in zip(asked, found, strict=True) if isinstance(plan, Plan)}
        unknown = [each for each in found if isinstance(each, UnknownZone)]
        unasked = sum(n_proxies[zone] for zone in deliveries if zone not in asked)
        return await asyncio.to_thread(merging.merged, own, plans, unknown, unasked)

    def _readable_proxies(self) -> Counter[str]:
        """How many proxies the reader may read, by zone."""
        keys = (key for key in self._context.state.stored_keys() if key.kind in PROXY_KINDS)
        return Counter(key.zone for key in keys if self._visible.may_see(key))

    def _readable_zones(self, n_proxies: Mapping[str, int]) -> Iterator[str]:
        """The zones of which the reader may know: in others there is no proxy that he may read."""
        for zone in self._context.state.listed(ZONE_KIND.name):
            if n_proxies[zone.name] or self._visible.may_see(zone.key):
                yield zone.name

    async def _asked(self, zone: str, delivery: PlannedDelivery, bytes_max: int) -> Plan | UnknownZone:
        question = PlanQuestion(
            tuple(each.key for each in delivery.objects),
            tuple(msgspec.Raw(each.content) for each in delivery.objects),
            delivery.removed,
            self._rights,
            self._envoy_fields,
        )
        try:
            async with asyncio.timeout_at(self._ends_at), self._turns:
                self._questions.check_online(zone)
                if not await self._server.wait_for(zone, _BEHIND_SECONDS_MAX):
                    raise Unavailable(f'zone "{zone}" has not got what was written before; try again')
                return await self._questions.plan(zone, question, bytes_max)
        except KogumaError as error:
            return UnknownZone(zone, error.detail)
        except TimeoutError:
            return UnknownZone(zone, f'zone "{zone}" did not answer within {SECONDS_MAX:g} s')
