"""Envoy survey: pages of many Envoys' admin interfaces, looked at twice, some seconds apart.

Counters count from an Envoy's start, so that only two looks say what happens now. How many Envoys are asked
is bounded by who asks; a proxy that does not answer is left out, with the reason.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from koguma.fleet.envoy_views import EnvoyViews
from koguma.model.errors import KogumaError
from koguma.model.resource import Key

BYTES_MAX: Final = 1024 * 1024  # of one page
SECONDS_MAX: Final = 5.0  # for one page

Pages = tuple[bytes, ...]


class TwoAnswers(msgspec.Struct, frozen=True):
    """What an Envoy answered to the same questions, twice."""

    before: Pages
    after: Pages
    seconds: float  # between them


class Survey(msgspec.Struct, frozen=True):
    """What the Envoys answered, and why others did not."""

    answers: Mapping[Key, TwoAnswers]
    unanswered: Mapping[Key, str]


async def look_twice(views: EnvoyViews, paths: Mapping[Key, Sequence[str]], seconds: float) -> Survey:
    """The pages of each proxy now, and some seconds later."""
    loop = asyncio.get_running_loop()
    unanswered: dict[Key, str] = {}

    async def look(key: Key) -> tuple[Pages, float] | None:
        try:
            asked = (
                views.ask(key, path, bytes_max=BYTES_MAX, seconds_max=SECONDS_MAX) for path in paths[key]
            )
            return tuple(await asyncio.gather(*asked)), loop.time()
        except KogumaError as error:
            unanswered[key] = error.detail
            return None

    async def both(key: Key) -> tuple[Key, TwoAnswers] | None:
        first = await look(key)
        if first is None:
            return None
        await asyncio.sleep(seconds)
        second = await look(key)
        if second is None:
            return None
        return key, TwoAnswers(first[0], second[0], max(second[1] - first[1], 0.001))

    found = await asyncio.gather(*map(both, paths))
    return Survey(dict(each for each in found if each is not None), unanswered)


def spread(keys: Sequence[Key], count: int) -> tuple[Key, ...]:
    """At most so many of the keys, evenly spread over them, always the same ones."""
    if len(keys) <= count:
        return tuple(keys)
    return tuple(keys[number * len(keys) // count] for number in range(count))
