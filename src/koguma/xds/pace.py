"""Pace: how many streams may write at a time, so that a change for all proxies does not starve a new one.

New streams have a lane of their own, and each keeps its place there until it has everything: much has to be
remembered of a proxy on its way, so it is better to bring some to the end than all to the middle. Who does
not read, or does not answer, keeps its place for a moment only; after that the next one goes, and the slow
one has nobody waiting behind it. Thousands may wait, and do nothing until it is their turn.
"""

import asyncio
from collections import deque
from typing import Protocol


class Writer(Protocol):
    """Who waits for a turn."""

    async def talk(self) -> bool:
        """Have a turn; whether to keep the place for the next one."""

    def go_on(self) -> None:
        """The turn is over: wait for another one if there is more to say."""


class Pace:
    """Places for writers: some for streams that are up to date, some for those that are just beginning."""

    def __init__(
        self, places: int, places_for_new: int, patience_seconds: float, answer_seconds: float
    ) -> None:
        self._lane = _Lane(places, patience_seconds, answer_seconds)
        self._lane_for_new = _Lane(places_for_new, patience_seconds, answer_seconds)

    def enter(self, writer: Writer, *, is_new: bool) -> None:
        """Let a writer begin as soon as there is a place for it, first come first served."""
        (self._lane_for_new if is_new else self._lane).enter(writer)

    def leave(self, writer: Writer) -> None:
        """Give back a place that a writer has kept between turns, if it has."""
        self._lane_for_new.leave(writer)


class _Lane:
    """Some places, and those who wait for one."""

    def __init__(self, places: int, patience_seconds: float, answer_seconds: float) -> None:
        self._free = places
        self._patience_seconds = patience_seconds  # for one who writes
        self._answer_seconds = answer_seconds  # for one who keeps a place and says nothing
        self._waiting: deque[Writer] = deque()
        self._slow_at: dict[Writer, float] = {}  # who has a place, and when it is to lose it
        self._turns: dict[Writer, asyncio.Task[None]] = {}
        self._look: asyncio.TimerHandle | None = None

    def enter(self, writer: Writer) -> None:
        if writer in self._slow_at:
            self._begin(writer)
        elif self._free:
            self._free -= 1
            self._begin(writer)
        else:
            self._waiting.append(writer)
            self._look_later()

    def leave(self, writer: Writer) -> None:
        if self._slow_at.pop(writer, None) is None:
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._free += 1

    def _begin(self, writer: Writer) -> None:
        loop = asyncio.get_running_loop()
        self._slow_at[writer] = loop.time() + self._patience_seconds
        self._turns[writer] = loop.create_task(self._turn(writer))

    async def _turn(self, writer: Writer) -> None:
        is_kept = False
        try:
            is_kept = await writer.talk()
        finally:
            del self._turns[writer]
            if not is_kept:
                self.leave(writer)
            elif writer in self._slow_at:
                self._slow_at[writer] = asyncio.get_running_loop().time() + self._answer_seconds
        writer.go_on()

    def _look_later(self) -> None:
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(self._answer_seconds, self._pass_slow)

    def _pass_slow(self) -> None:
        """Give the places of those who are slow to those who wait."""
        self._look = None
        now = asyncio.get_running_loop().time()
        for writer in [writer for writer, slow_at in self._slow_at.items() if slow_at <= now]:
            self.leave(writer)
        if self._waiting:
            self._look_later()
