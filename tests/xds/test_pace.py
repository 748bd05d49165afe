"""Places for writers: new streams have their own, and nobody keeps one for long."""

import asyncio

from koguma.xds.pace import Pace


class Writers:
    """Writers that write until they are let go, and who of them has begun."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.began: list[str] = []
        self.let_go: dict[str, asyncio.Event] = {}
        self.at_once = self.most = 0

    def enter(self, name: str, *, is_new: bool = False) -> None:
        self.let_go[name] = asyncio.Event()

        async def write() -> None:
            self.began.append(name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await self.let_go[name].wait()
            self.at_once -= 1

        self._pace.enter(write, is_new=is_new)

    async def end(self) -> None:
        """Let everybody write to the end."""
        for let_go in self.let_go.values():
            let_go.set()
        async with asyncio.timeout(1):
            while self.at_once or len(self.began) < len(self.let_go):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0)

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(1):
            while self.began != list(names):  # noqa: ASYNC110 - one step of the loop at a time
                await asyncio.sleep(0)


async def test_a_full_lane_does_not_stop_a_new_stream():
    writers = Writers(Pace(places=1, places_for_new=1, patience_seconds=60))
    writers.enter("a")
    writers.enter("b")
    writers.enter("c", is_new=True)
    await writers.until("a", "c")
    await writers.end()


async def test_those_who_write_take_turns_in_order():
    writers = Writers(Pace(places=2, places_for_new=1, patience_seconds=60))
    names = [str(number) for number in range(20)]
    for name in names:
        writers.enter(name)
    for at, name in enumerate(names):
        await writers.until(*names[: at + 2])
        writers.let_go[name].set()
    await writers.end()
    assert writers.most == 2


async def test_a_slow_one_is_passed_and_gives_its_place_back_once():
    writers = Writers(Pace(places=1, places_for_new=1, patience_seconds=0.01))
    writers.enter("slow")
    writers.enter("next")
    await writers.until("slow", "next")
    await writers.end()
    patient = Writers(Pace(places=1, places_for_new=1, patience_seconds=60))
    for name in "ab":
        patient.enter(name)
    await patient.until("a")
    await asyncio.sleep(0.01)
    assert patient.began == ["a"]
    await patient.end()


async def test_a_place_is_given_back_by_one_who_fails():
    pace = Pace(places=1, places_for_new=1, patience_seconds=60)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    pace.enter(cancelled, is_new=False)
    writers = Writers(pace)
    writers.enter("after")
    await writers.until("after")
    await writers.end()
