"""Zone answers: what a zone's control plane answers Global over its connection, about its own proxies alone.

Global has decided whether the user who asks it may see the answer. Secrets are masked here already.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from koguma.api.proxy_answers import ProxyAnswers
from koguma.core.envoy_origins.paths import NoSuchField
from koguma.fleet import zone_arrival
from koguma.fleet.arrival import Arrivals
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.zone_arrival import ZoneArrivalQuestion
from koguma.fleet.zone_questions import (
    ARRIVAL,
    CAN,
    INSPECT,
    PAGE,
    PLAN,
    CanQuestion,
    InspectQuestion,
    PageQuestion,
    PlanQuestion,
)
from koguma.model.errors import BadRequest, NotFound, NotSupported, Unavailable
from koguma.model.resource import Key

T = TypeVar("T")


class ReceivedFromGlobal(Protocol):
    """What came from Global."""

    @property
    def doubt(self) -> str:
        """Why this zone keeps what Global does not have any more; empty where it does not."""
        ...

    async def had_before(self, revision: int) -> int:
        """A revision of this zone's store at which nothing of one of Global's had come; 0: not known."""
        ...


class ZoneAnswers:
    """Answers by name; `views` gives None where this control plane serves no proxies."""

    def __init__(
        self,
        zone: str,
        answers: ProxyAnswers,
        views: Callable[[], EnvoyViews | None],
        arrivals: Arrivals,
        received: ReceivedFromGlobal,
        planned: Callable[[PlanQuestion], Awaitable[bytes]],
        can: Callable[[CanQuestion], Awaitable[bytes]],
    ) -> None:
        self._zone = zone
        self._answers = answers
        self._views = views
        self._arrivals = arrivals
        self._received = received
        self._planned = planned
        self._can = can

    async def answer(self, name: str, body: bytes, bytes_max: int, seconds_max: float) -> bytes:
        """The answer to a question; NotSupported where its name is not known."""
        match name:
            case _ if name == PAGE:
                page = _read(body, PageQuestion)
                self._check(page.key)
                return await self._page(page, bytes_max, seconds_max)
            case _ if name == INSPECT:
                question = _read(body, InspectQuestion)
                self._check(question.key)
                try:
                    return await self._answers.here(question)
                except NoSuchField as error:
                    raise BadRequest(str(error)) from None
            case _ if name == ARRIVAL:
                asked = _read(body, ZoneArrivalQuestion)
                had, kept = await self._received.had_before(asked.revision), self._received.doubt
                return msgspec.json.encode(zone_arrival.answer(self._arrivals, asked, had, kept))
            case _ if name == PLAN:
                return await self._planned(_read(body, PlanQuestion))
            case _ if name == CAN:
                return await self._can(_read(body, CanQuestion))
        raise NotSupported(f'this control plane does not know the question "{name[:100]}"')

    def _check(self, key: Key) -> None:
        if key.zone != self._zone:
            raise NotFound(f"{key} is not of this zone")

    async def _page(self, page: PageQuestion, bytes_max: int, seconds_max: float) -> bytes:
        views = self._views()
        if views is None:
            raise Unavailable("this control plane serves no proxies; see `koguma check`")
        return await views.ask(page.key, page.path, bytes_max=bytes_max, seconds_max=seconds_max)


def _read(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"the question cannot be read: {error}") from None
