"""Write scheduler: how many streams write at a time, so that a push to all proxies does not starve a new one.

New streams have write slots of their own, and each keeps its slot until the proxy is synced: a proxy that is
getting its first configuration needs much memory here, so it is better to finish some than to start all. A
proxy that does not read, or does not ACK, loses its slot after a moment, and the next stream gets it.
Thousands of streams may wait for a slot; waiting costs nothing.
"""

import asyncio
from collections import deque
from typing import Protocol


class ScheduledStream(Protocol):
    """A stream that waits for a write slot."""

    async def write_pending(self) -> bool:
        """Write what is pending; whether to keep the slot for the next responses."""

    def schedule_next(self) -> None:
        """The slot was used: ask for another one if more is pending."""


class WriteScheduler:
    """Write slots: some for streams that have been synced, some for new streams."""

    def __init__(
        self, slots: int, slots_for_new: int, write_seconds_max: float, ack_seconds_max: float
    ) -> None:
        self._slots = _SlotPool(slots, write_seconds_max, ack_seconds_max)
        self._slots_for_new = _SlotPool(slots_for_new, write_seconds_max, ack_seconds_max)

    def schedule(self, stream: ScheduledStream, *, is_new: bool) -> None:
        """Let a stream write as soon as there is a slot, first come first served."""
        (self._slots_for_new if is_new else self._slots).schedule(stream)

    def release(self, stream: ScheduledStream) -> None:
        """Free the slot that a new stream has kept, if it has one."""
        self._slots_for_new.release(stream)


class _SlotPool:
    """Some slots, and the streams that wait for one."""

    def __init__(self, slots: int, write_seconds_max: float, ack_seconds_max: float) -> None:
        self._n_free = slots
        self._write_seconds_max = write_seconds_max  # for one write
        self._ack_seconds_max = ack_seconds_max  # for a stream that keeps its slot and waits for an ACK
        self._waiting: deque[ScheduledStream] = deque()
        self._expires_at: dict[ScheduledStream, float] = {}  # streams with a slot, and when they lose it
        self._writes: dict[ScheduledStream, asyncio.Task[None]] = {}
        self._expiry_timer: asyncio.TimerHandle | None = None

    def schedule(self, stream: ScheduledStream) -> None:
        if stream in self._expires_at:
            self._start_write(stream)
        elif self._n_free:
            self._n_free -= 1
            self._start_write(stream)
        else:
            self._waiting.append(stream)
            self._start_expiry_timer()

    def release(self, stream: ScheduledStream) -> None:
        if self._expires_at.pop(stream, None) is None:
            return
        if self._waiting:
            self._start_write(self._waiting.popleft())
        else:
            self._n_free += 1

    def _start_write(self, stream: ScheduledStream) -> None:
        loop = asyncio.get_running_loop()
        self._expires_at[stream] = loop.time() + self._write_seconds_max
        self._writes[stream] = loop.create_task(self._write(stream))

    async def _write(self, stream: ScheduledStream) -> None:
        keeps_slot = False
        try:
            keeps_slot = await stream.write_pending()
        finally:
            del self._writes[stream]
            if not keeps_slot:
                self.release(stream)
            elif stream in self._expires_at:
                self._expires_at[stream] = asyncio.get_running_loop().time() + self._ack_seconds_max
        stream.schedule_next()

    def _start_expiry_timer(self) -> None:
        if self._expiry_timer is None:
            loop = asyncio.get_running_loop()
            self._expiry_timer = loop.call_later(self._ack_seconds_max, self._release_expired)

    def _release_expired(self) -> None:
        """Give the slots of slow streams to those that wait."""
        self._expiry_timer = None
        now = asyncio.get_running_loop().time()
        for stream in [stream for stream, expires_at in self._expires_at.items() if expires_at <= now]:
            self.release(stream)
        if self._waiting:
            self._start_expiry_timer()
