"""Zone questions: what Global asks the control planes of zones about their proxies, and who may wait for it.

Each zone has few questions at once, so that one that hangs keeps nobody from asking the others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import msgspec

from koguma.application.visible_objects import SentRights
from koguma.core.plan.model import Plan
from koguma.core.simulation.answers import CallQuestion
from koguma.envoy.admin_channel import ANSWER_BYTES_MAX
from koguma.fleet.envoy_views import (
    SECONDS_MAX,
    SECONDS_MAX_OF_MANY,
    SMALL_BYTES_MAX,
    NoChannel,
    NotConnected,
    masked,
)
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.zone_arrival import ZoneArrivalAnswer, ZoneArrivalQuestion
from koguma.fleet.zone_state import offline
from koguma.model.errors import (
    BadGateway,
    BadRequest,
    KogumaError,
    NotFound,
    NotSupported,
    TooLarge,
    Unavailable,
)
from koguma.model.kri import InvalidKri
from koguma.model.resource import Key
from koguma.model.violation import cut

PAGE: Final = "page"  # of the admin interface of a proxy's Envoy
INSPECT: Final = "inspect"  # what acts on a proxy
ARRIVAL: Final = "arrival"  # whether its proxies have a revision of the zone's
PLAN: Final = "plan"  # what objects of Global's would do to the zone's proxies
CAN: Final = "can"  # whether proxies of the zone may call others
LARGE_AT_ONCE: Final = 2  # of one zone, half of what there is for all
SMALL_AT_ONCE: Final = 16
PLAN_SECONDS_MAX: Final = 45.0  # the first one compiles what all proxies of the zone get
_DETAIL_MAX: Final = 1000
_QUESTION_BYTES_MAX: Final = 16 * 1024  # that zones read
_BYTES_ON_LOOP: Final = 1024 * 1024  # from here on a thread looks whether an answer is JSON
_ERRORS: Final[dict[str, Callable[[str], KogumaError]]] = {
    each.__name__: each
    for each in (NotConnected, NoChannel, NotSupported, BadGateway, BadRequest, NotFound, Unavailable)
}

AskZone = Callable[[str, str, bytes, int, float], Awaitable[bytes]]  # zone, name, body, bytes, seconds


class PageQuestion(msgspec.Struct, frozen=True):
    """A page of the admin interface of a proxy's Envoy."""

    key: Key
    path: str


class InspectQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What acts on a proxy, or what its configuration is: a path below it, as the API has it."""

    key: Key
    path: str  # such as _rules, or _outbounds/{kri}/_policies
    kris: tuple[str, ...] = ()  # in that path
    fields: bool = False  # also who set each field
    is_shadow: bool = False
    has_diff: bool = False
    meshes: tuple[str, ...] = ()  # of a zone proxy: those whose services are shown
    field: str = ""  # of its Envoy, where it is asked who set that


class PlanQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a zone's proxies would get if Global sent some objects, and removed others; who reads it."""

    keys: tuple[Key, ...]  # of the objects
    contents: tuple[msgspec.Raw, ...]  # as Global would send them
    removed: tuple[Key, ...]
    rights: SentRights
    envoy_fields: bool = False


class CanQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether proxies of a zone may call others."""

    mesh: str
    call: CallQuestion
    visible: tuple[str, ...] = ()  # kinds of which what is called may be


class ZoneRefusal(Protocol):
    """An error by which a zone answered."""

    error: str
    detail: str


class _ZoneTurns:
    def __init__(self) -> None:
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)
        self.small = asyncio.Semaphore(SMALL_AT_ONCE)


class ZoneQuestions:
    """Asks zones, by `ask`; `refusal` is the error that it raises where a zone answers by one."""

    def __init__(self, ask: AskZone, refusal: type[KogumaError], states: SharedStates) -> None:
        self._ask_zone = ask
        self._refusal = refusal
        self._states = states
        self._turns: dict[str, _ZoneTurns] = {}

    # Pages of Envoys, for EnvoyViews.

    def turn(self, key: Key, bytes_max: int, seconds_max: float) -> AbstractAsyncContextManager[None]:
        """A turn of the zone of a proxy."""
        return self._turn(key.zone, bytes_max, seconds_max)

    async def ask(self, key: Key, path: str, bytes_max: int, seconds_max: float) -> bytes:
        """A page of a proxy of a zone."""
        body = msgspec.json.encode(PageQuestion(key, path))
        page = await self._asked(key.zone, PAGE, body, bytes_max, seconds_max)
        return await masked(path, page)  # the zone has done so; a zone of another version may know less

    # What acts on proxies.

    async def inspect(self, question: InspectQuestion) -> bytes:
        """The zone's answer, as JSON."""
        body, zone = msgspec.json.encode(question), question.key.zone
        async with self._turn(zone, ANSWER_BYTES_MAX, SECONDS_MAX):
            answer = await self._asked(zone, INSPECT, body, ANSWER_BYTES_MAX, SECONDS_MAX)
            return await _as_json(zone, answer)

    async def arrival(self, zone: str, question: ZoneArrivalQuestion) -> ZoneArrivalAnswer:
        """How far a revision of a zone's is."""
        body = msgspec.json.encode(question)
        if len(body) > _QUESTION_BYTES_MAX:
            text = (
                "the question is too large: ask about fewer objects, or as who may list proxies of all meshes"
            )
            raise BadRequest(text)
        async with self._turn(zone, SMALL_BYTES_MAX, SECONDS_MAX_OF_MANY):
            answer = await self._asked(zone, ARRIVAL, body, SMALL_BYTES_MAX, SECONDS_MAX_OF_MANY)
        try:
            return msgspec.json.decode(answer, type=ZoneArrivalAnswer)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadGateway(f'zone "{zone}" answers with something else: {error}') from None

    async def plan(self, zone: str, question: PlanQuestion, bytes_max: int = ANSWER_BYTES_MAX) -> Plan:
        """What the zone says that would happen."""
        body, bytes_max = msgspec.json.encode(question), min(bytes_max, ANSWER_BYTES_MAX)
        async with self._turn(zone, ANSWER_BYTES_MAX, PLAN_SECONDS_MAX):
            try:
                answer = await self._asked(zone, PLAN, body, bytes_max, PLAN_SECONDS_MAX)
            except NotSupported as error:
                raise NotSupported(f"{error.detail}; upgrade the zone's control plane") from None
            return await asyncio.to_thread(_as_plan, zone, answer)

    async def can(self, zone: str, question: CanQuestion) -> bytes:
        """The zone's answer, as JSON."""
        body = msgspec.json.encode(question)
        async with self._turn(zone, ANSWER_BYTES_MAX, SECONDS_MAX):
            answer = await self._asked(zone, CAN, body, ANSWER_BYTES_MAX, SECONDS_MAX)
            return await _as_json(zone, answer)

    async def _asked(self, zone: str, name: str, body: bytes, bytes_max: int, seconds_max: float) -> bytes:
        self.check_online(zone)
        try:
            return await self._ask_zone(zone, name, body, bytes_max, seconds_max)
        except self._refusal as refusal:
            error: ZoneRefusal = refusal  # type: ignore[assignment]
            made = BadRequest if error.error == InvalidKri.__name__ else _ERRORS.get(error.error, Unavailable)
            raise made(f'zone "{zone}" answers: {cut(error.detail, _DETAIL_MAX)}') from None
        except (Unavailable, NotSupported, TooLarge) as error:
            raise type(error)(f'zone "{zone}": {error.detail}') from None

    def check_online(self, zone: str) -> None:
        """Raise Unavailable where a zone is not connected to this control plane."""
        connections = self._states.zone(zone)
        connected = [each.instance for each in connections if each.is_connected]
        if not connected:
            ends = [each.disconnected_at for each in connections if each.disconnected_at is not None]
            raise Unavailable(offline(zone, max(ends, default=None)))
        if self._states.instance not in connected:
            other = f'the control plane "{connected[-1]}" of Global; ask that one'
            raise Unavailable(f'zone "{zone}" is connected to {other}')

    @asynccontextmanager
    async def _turn(self, zone: str, bytes_max: int, seconds_max: float) -> AsyncIterator[None]:
        self.check_online(zone)  # who asks for a zone that is not there does not make turns for it
        turns = self._turns.setdefault(zone, _ZoneTurns())
        turn = turns.small if bytes_max <= SMALL_BYTES_MAX else turns.large
        try:
            async with asyncio.timeout(seconds_max):
                await turn.acquire()
        except TimeoutError:
            raise Unavailable(f'zone "{zone}" has not answered others yet; try again') from None
        try:
            yield
        finally:
            turn.release()


def _as_plan(zone: str, answer: bytes) -> Plan:
    try:
        plan = msgspec.json.decode(answer, type=Plan)
    except (msgspec.MsgspecError, RecursionError):
        plan = None
    if plan is None or not all(group.proxies for group in plan.groups):
        raise BadGateway(f'zone "{zone}" answers with something that is no plan')
    return plan


async def _as_json(zone: str, answer: bytes) -> bytes:
    try:
        if len(answer) <= _BYTES_ON_LOOP:
            msgspec.json.decode(answer)
        else:
            await asyncio.to_thread(msgspec.json.decode, answer)
    except (msgspec.DecodeError, RecursionError):
        raise BadGateway(f'zone "{zone}" answers with something that is no JSON') from None
    return answer
