"""Write slots: new streams have their own until they are synced, and no slow stream keeps one."""

import asyncio

import pytest

from koguma.xds.write_scheduler import WriteScheduler


class FakeStream:
    """A stream whose writes last until they are let go."""

    def __init__(self, streams: "Streams", name: str, *, keeps: bool) -> None:
        self._streams, self._name, self.keeps = streams, name, keeps
        self.let_go = asyncio.Event()
        self.n_ended = 0

    async def write_pending(self) -> bool:
        streams = self._streams
        streams.began.append(self._name)
        streams.at_once += 1
        streams.most = max(streams.most, streams.at_once)
        await self.let_go.wait()
        streams.at_once -= 1
        return self.keeps

    def schedule_next(self) -> None:
        self.n_ended += 1


class Streams:
    """The streams of a scheduler, and those that have begun to write."""

    def __init__(self, scheduler: WriteScheduler) -> None:
        self.scheduler = scheduler
        self.began: list[str] = []
        self.streams: dict[str, FakeStream] = {}
        self.at_once = self.most = 0

    def schedule(self, name: str, *, is_new: bool = False, keeps: bool = False) -> None:
        self.streams[name] = FakeStream(self, name, keeps=keeps)
        self.scheduler.schedule(self.streams[name], is_new=is_new)

    def let_go(self, name: str) -> None:
        self.streams[name].let_go.set()

    async def ended(self, name: str) -> None:
        """Let one stream write to the end."""
        self.let_go(name)
        async with asyncio.timeout(60):
            while not self.streams[name].n_ended:  # noqa: ASYNC110 - as below
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Let all streams write to the end."""
        for name in self.streams:
            self.let_go(name)
        async with asyncio.timeout(60):
            while self.at_once or len(self.began) < len(self.streams):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0)

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(60):
            while self.began != list(names):  # noqa: ASYNC110 - one step of the loop at a time
                await asyncio.sleep(0)


def scheduled(slots: int = 1, slots_for_new: int = 1, *, is_slow_allowed: bool = True) -> Streams:
    seconds = 60 if is_slow_allowed else 0.01
    return Streams(WriteScheduler(slots, slots_for_new, write_seconds_max=seconds, ack_seconds_max=seconds))


async def turns() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_full_slots_do_not_block_a_new_stream():
    streams = scheduled()
    streams.schedule("a")
    streams.schedule("b")
    streams.schedule("c", is_new=True)
    await streams.until("a", "c")
    await streams.end()


async def test_streams_write_in_order():
    streams = scheduled(2)
    names = [str(number) for number in range(20)]
    for name in names:
        streams.schedule(name)
    for at, name in enumerate(names):
        await streams.until(*names[: at + 2])
        streams.let_go(name)
    await streams.end()
    assert streams.most == 2


async def test_a_slow_stream_loses_its_slot_once():
    streams = scheduled(is_slow_allowed=False)
    streams.schedule("slow")
    streams.schedule("next")
    await streams.until("slow", "next")
    await streams.end()
    patient = scheduled()
    for name in "ab":
        patient.schedule(name)
    await patient.until("a")
    await asyncio.sleep(0.01)
    assert patient.began == ["a"]
    await patient.end()


async def test_a_stream_that_fails_frees_its_slot():
    class Failing:
        async def write_pending(self) -> bool:
            raise asyncio.CancelledError

        def schedule_next(self) -> None:
            raise AssertionError("it failed, and has nothing more to write")

    streams = scheduled()
    streams.scheduler.schedule(Failing(), is_new=False)
    streams.schedule("after")
    await streams.until("after")
    await streams.end()


async def test_a_new_stream_keeps_its_slot_until_it_is_synced():
    streams = scheduled()
    streams.schedule("a", is_new=True, keeps=True)
    streams.schedule("b", is_new=True)
    await streams.ended("a")
    await turns()
    assert streams.began == ["a"]
    streams.scheduler.schedule(streams.streams["a"], is_new=True)  # its ACK lets it write again, before "b"
    await streams.until("a", "a")
    streams.scheduler.release(streams.streams["a"])
    await streams.until("a", "a", "b")
    await streams.end()


async def test_a_new_stream_without_an_ack_loses_its_slot_and_waits_again():
    streams = scheduled(is_slow_allowed=False)
    streams.schedule("silent", is_new=True, keeps=True)
    await streams.ended("silent")
    streams.schedule("b", is_new=True)
    await streams.until("silent", "b")
    streams.schedule("c", is_new=True)
    streams.scheduler.schedule(streams.streams["silent"], is_new=True)
    await streams.until("silent", "b", "c", "silent")
    await streams.end()
    assert streams.most > 1


@pytest.mark.parametrize("has_left", [False, True])
async def test_there_are_never_more_slots_than_there_were(has_left):
    streams = scheduled(slots_for_new=2)
    streams.schedule("kept", is_new=True, keeps=True)
    await streams.ended("kept")
    streams.streams["kept"].keeps = False
    streams.scheduler.schedule(streams.streams["kept"], is_new=True)
    if has_left:  # before its turn ends
        streams.scheduler.release(streams.streams["kept"])
        streams.scheduler.release(streams.streams["kept"])
    await turns()
    streams.most = 0
    for name in "abcd":
        streams.schedule(name, is_new=True)
    await turns()
    assert streams.began == ["kept", "kept", "a", "b"]
    await streams.end()
    assert streams.most == 2
