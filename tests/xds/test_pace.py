"""Places for writers: new streams have their own until they have everything, and nobody slow keeps one."""

import asyncio

import pytest

from koguma.xds.pace import Pace


class Talker:
    """A writer that writes until it is let go, as often as it is told to."""

    def __init__(self, writers: "Writers", name: str, *, keeps: bool) -> None:
        self._writers, self._name, self.keeps = writers, name, keeps
        self.let_go = asyncio.Event()
        self.n_ended = 0

    async def talk(self) -> bool:
        writers = self._writers
        writers.began.append(self._name)
        writers.at_once += 1
        writers.most = max(writers.most, writers.at_once)
        await self.let_go.wait()
        writers.at_once -= 1
        return self.keeps

    def go_on(self) -> None:
        self.n_ended += 1


class Writers:
    """Writers, and who of them has begun."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.began: list[str] = []
        self.talkers: dict[str, Talker] = {}
        self.at_once = self.most = 0

    def enter(self, name: str, *, is_new: bool = False, keeps: bool = False) -> None:
        self.talkers[name] = Talker(self, name, keeps=keeps)
        self.pace.enter(self.talkers[name], is_new=is_new)

    def let_go(self, name: str) -> None:
        self.talkers[name].let_go.set()

    async def ended(self, name: str) -> None:
        """Let one write to the end."""
        self.let_go(name)
        async with asyncio.timeout(1):
            while not self.talkers[name].n_ended:  # noqa: ASYNC110 - as below
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Let everybody write to the end."""
        for name in self.talkers:
            self.let_go(name)
        async with asyncio.timeout(1):
            while self.at_once or len(self.began) < len(self.talkers):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0)

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(1):
            while self.began != list(names):  # noqa: ASYNC110 - one step of the loop at a time
                await asyncio.sleep(0)


def paced(places: int = 1, places_for_new: int = 1, *, is_patient: bool = True) -> Writers:
    seconds = 60 if is_patient else 0.01
    return Writers(Pace(places, places_for_new, patience_seconds=seconds, answer_seconds=seconds))


async def turns() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_full_lane_does_not_stop_a_new_stream():
    writers = paced()
    writers.enter("a")
    writers.enter("b")
    writers.enter("c", is_new=True)
    await writers.until("a", "c")
    await writers.end()


async def test_those_who_write_take_turns_in_order():
    writers = paced(2)
    names = [str(number) for number in range(20)]
    for name in names:
        writers.enter(name)
    for at, name in enumerate(names):
        await writers.until(*names[: at + 2])
        writers.let_go(name)
    await writers.end()
    assert writers.most == 2


async def test_a_slow_one_is_passed_and_gives_its_place_back_once():
    writers = paced(is_patient=False)
    writers.enter("slow")
    writers.enter("next")
    await writers.until("slow", "next")
    await writers.end()
    patient = paced()
    for name in "ab":
        patient.enter(name)
    await patient.until("a")
    await asyncio.sleep(0.01)
    assert patient.began == ["a"]
    await patient.end()


async def test_a_place_is_given_back_by_one_who_fails():
    class Failing:
        async def talk(self) -> bool:
            raise asyncio.CancelledError

        def go_on(self) -> None:
            raise AssertionError("it failed, and has nothing more to say")

    writers = paced()
    writers.pace.enter(Failing(), is_new=False)
    writers.enter("after")
    await writers.until("after")
    await writers.end()


async def test_a_new_one_keeps_its_place_until_it_has_everything():
    writers = paced()
    writers.enter("a", is_new=True, keeps=True)
    writers.enter("b", is_new=True)
    await writers.ended("a")
    await turns()
    assert writers.began == ["a"]
    writers.pace.enter(writers.talkers["a"], is_new=True)  # it has answered, and is told more, before "b"
    await writers.until("a", "a")
    writers.pace.leave(writers.talkers["a"])
    await writers.until("a", "a", "b")
    await writers.end()


async def test_a_new_one_that_does_not_answer_is_passed_and_waits_like_the_others():
    writers = paced(is_patient=False)
    writers.enter("silent", is_new=True, keeps=True)
    await writers.ended("silent")
    writers.enter("b", is_new=True)
    await writers.until("silent", "b")
    writers.enter("c", is_new=True)
    writers.pace.enter(writers.talkers["silent"], is_new=True)
    await writers.until("silent", "b", "c", "silent")
    await writers.end()
    assert writers.most > 1


@pytest.mark.parametrize("has_left", [False, True])
async def test_there_are_never_more_places_than_there_were(has_left):
    writers = paced(places_for_new=2)
    writers.enter("kept", is_new=True, keeps=True)
    await writers.ended("kept")
    writers.talkers["kept"].keeps = False
    writers.pace.enter(writers.talkers["kept"], is_new=True)
    if has_left:  # before its turn ends
        writers.pace.leave(writers.talkers["kept"])
        writers.pace.leave(writers.talkers["kept"])
    await turns()
    writers.most = 0
    for name in "abcd":
        writers.enter(name, is_new=True)
    await turns()
    assert writers.began == ["kept", "kept", "a", "b"]
    await writers.end()
    assert writers.most == 2
