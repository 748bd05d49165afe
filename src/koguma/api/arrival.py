"""Arrival page: whether a revision has reached every proxy that it touches, and who lacks it and why.

On Global these are the proxies of all zones, and the zones are asked.

The answer is about the proxies that the user may list, and about no other: neither their number nor how far
they are is part of it. `isPartial` says by his rights alone that there may be others.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.api.call import Call, answer_json
from koguma.api.global_arrival import GlobalArrival
from koguma.application.context import Context
from koguma.fleet import lack_view
from koguma.fleet.arrival import Arrival, Arrivals
from koguma.fleet.proxy_progress import change_at
from koguma.fleet.zone_arrivals import ZoneArrivals, is_complete
from koguma.identity import proxy_types
from koguma.model import kri
from koguma.model.errors import BadRequest, NotFound, Unavailable
from koguma.model.resource import Key
from koguma.model.schema import Json

SECONDS_MAX: Final = 30.0
WAITING_MAX: Final = 64  # requests of one control plane, whoever sends them
REVISIONS_MAX: Final = 50
OBJECTS_MAX: Final = 50
SHOWN_MAX: Final = 50  # proxies that lack it, each with its reason
_UNKNOWN_SECONDS: Final = 3.0  # in which a revision that another control plane wrote is read here
_DIGITS_MAX: Final = 18


class ArrivalQuestion(msgspec.Struct, frozen=True):
    """What is asked, and for how long the answer may wait."""

    revisions: tuple[int, ...]  # the newest first
    objects: tuple[str, ...]  # KRIs
    seconds: float
    counts_absent: bool


class ArrivalPage:
    """Handler of `/_arrival`."""

    def __init__(
        self,
        context: Context,
        arrivals: Callable[[], Arrivals | None],
        zones: Callable[[], ZoneArrivals | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._context = context
        self._arrivals = arrivals
        self._zones = zones  # on Global
        self._is_stopping = is_stopping
        self._n_waiting = 0

    async def show(self, call: Call) -> web.StreamResponse:
        """How far a revision is, as soon as it has arrived, or after the seconds that were asked for."""
        self._check(call)
        arrivals, zones = self._arrivals(), self._zones()
        if arrivals is None and zones is None:
            raise Unavailable("this control plane is starting; try again")
        asked = ArrivalQuestion(
            _revisions(call) or (self._context.state.revision,),
            _objects(call),
            _seconds(call),
            counts_absent=not call.flag("connected"),
        )
        if self._n_waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests are waiting already; try again")
        self._n_waiting += 1
        try:
            await self._known(asked.revisions[0])
            found = await self._found(call, arrivals, zones, asked)
        finally:
            self._n_waiting -= 1
        return answer_json({**found, "revision": asked.revisions[0], "isPartial": self._is_partial(call)})

    async def _found(
        self, call: Call, arrivals: Arrivals | None, zones: ZoneArrivals | None, asked: ArrivalQuestion
    ) -> dict[str, Json]:
        """How far the first revision is that has not arrived, else the oldest, which touches most proxies."""
        ends_at = asyncio.get_running_loop().time() + asked.seconds
        found: dict[str, Json] = {}
        for revision in asked.revisions:
            if zones is not None:
                found = await self._arrived_in_zones(call, zones, asked, revision, ends_at)
            elif arrivals is not None:
                arrival = await self._arrived(call, arrivals, asked, revision, ends_at)
                found = self._json(arrivals, arrival, asked.objects)
            if not found["arrived"]:
                break
        return found

    def _check(self, call: Call) -> None:
        """Raise Forbidden for who may list the proxies of no mesh: to them all would seem to have arrived."""
        if not any(self._may_list(call, place) for place in self._places()):
            plural = self._context.kinds[proxy_types.SIDECAR.kind].plural
            raise self._context.access.refusal(call.user, Attempt("list", plural))

    async def _known(self, revision: int) -> None:
        """Wait until this control plane has read a revision; another one may just have written it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _UNKNOWN_SECONDS
        while revision > self._context.state.revision:
            if loop.time() > ends_at:
                newest = self._context.state.revision
                raise NotFound(f"there is no revision {revision}: the newest one is {newest}")
            await asyncio.sleep(0.02)

    async def _arrived(
        self, call: Call, arrivals: Arrivals, asked: ArrivalQuestion, revision: int, ends_at: float
    ) -> Arrival:
        loop = asyncio.get_running_loop()
        while True:
            arrival = arrivals.of(
                change_at(revision),
                asked.objects,
                is_counted=lambda key: self._may_list(call, key),
                absent=asked.counts_absent,
            )
            if arrival.is_complete or loop.time() >= ends_at or self._is_stopping():
                return arrival
            await arrivals.pause()

    async def _arrived_in_zones(
        self, call: Call, zones: ZoneArrivals, asked: ArrivalQuestion, revision: int, ends_at: float
    ) -> dict[str, Json]:
        loop = asyncio.get_running_loop()
        arrival = GlobalArrival(self._context, zones, call.user, lambda key: self._may_list(call, key))
        looks = arrival.looks(revision, asked.objects, counts_absent=asked.counts_absent)
        while True:
            found = await looks.look()
            if is_complete(found) or loop.time() >= ends_at or self._is_stopping():
                return arrival.shown(revision, found)
            await looks.pause(self._n_waiting)

    def _may_list(self, call: Call, key: Key) -> bool:
        plural = self._context.kinds[key.kind].plural
        return self._context.access.allows_on(call.user, "list", plural, "", key.mesh)

    def _is_partial(self, call: Call) -> bool:
        return not all(self._may_list(call, place) for place in self._places())

    def _places(self) -> list[Key]:
        """Where proxies can be: for each kind the meshes that there are, or none."""
        meshes = [mesh.name for mesh in self._context.state.listed("Mesh")]
        return [
            Key(each.kind, mesh, "", "", "")
            for each in proxy_types.SERVED.values()
            for mesh in ([""] if each.is_of_zone else meshes)
        ]

    def _json(self, arrivals: Arrivals, arrival: Arrival, objects: tuple[str, ...]) -> dict[str, Json]:
        change = change_at(arrival.revision)
        lacking = (
            lack_view.lack_json(each.key, *arrivals.lack(each, change, objects))
            for each in arrival.lacking[:SHOWN_MAX]
        )
        shown = sorted(lacking, key=lack_view.urgency)
        answer: dict[str, Json] = {
            "revision": arrival.revision,
            "arrived": arrival.is_complete,
            "proxies": {
                "total": arrival.n_proxies,
                "affected": arrival.n_affected,
                "lacking": len(arrival.lacking),
            },
            "lacking": shown,
            "controlPlanes": list(arrival.instances),
        }
        return {**answer, "warning": arrival.problem} if arrival.problem else answer


def _revisions(call: Call) -> tuple[int, ...]:
    texts = call.query.getall("revision", [])
    if len(texts) > REVISIONS_MAX:
        raise BadRequest(f"at most {REVISIONS_MAX} revisions in one request, this one has {len(texts)}")
    for text in texts:
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) > 0):
            raise BadRequest(f'query parameter "revision" must be a whole number from 1, not "{text[:100]}"')
    return tuple(sorted({int(text) for text in texts}, reverse=True))


def _objects(call: Call) -> tuple[str, ...]:
    objects = tuple(call.query.getall("object", []))
    if len(objects) > OBJECTS_MAX:
        raise BadRequest(f"at most {OBJECTS_MAX} objects in one request, this one has {len(objects)}")
    for text in objects:
        if not kri.is_kri(text):
            raise BadRequest(f'query parameter "object" must be a KRI, not "{text[:100]}"')
    return objects


def _seconds(call: Call) -> float:
    text = call.query.get("seconds", "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= SECONDS_MAX:
        allowed = f"a number from 0 to {SECONDS_MAX:g}"
        raise BadRequest(f'query parameter "seconds" must be {allowed}, not "{text[:100]}"')
    return value
