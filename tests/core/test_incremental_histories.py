"""The incremental engine at random: any history of edits, asked and watched in any way, beside a fresh start.

A program is itself an input: numbered expressions over a few numbers and over each other, so that edits also
change who reads whom. The numbers are few, so that equal answers are frequent.

Then the same with what the engine is for: a mesh that changes, and the bytes that its Envoys get.
"""

import os
from collections.abc import Iterable
from random import Random

import building
import pytest
import random_meshes
from building import bodies
from hypothesis import given, settings
from hypothesis import strategies as st

from koguma.core import pipeline, problems
from koguma.core.answers import CycleError
from koguma.core.build import network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db, Watcher, question
from koguma.core.inputs import Index, Input
from koguma.model.resource import Key, Resource

pytestmark = pytest.mark.slow

NUMBERS: Input[str, int] = Input("numbers")
UNRELATED: Input[str, int] = Input("unrelated")
PROGRAM: Input[int, tuple] = Input("program")
BY_NUMBER = Index(NUMBERS, lambda _name, number: [number])
SIZE = 7
made: list[int] = []


@question
def answer(db: Db, place: int) -> int:
    made.append(place)
    operation, *operands = PROGRAM.get(db, place) or ("none",)
    return OPERATIONS[operation](db, *operands)


def failing(db: Db, place: int) -> int:
    number = answer(db, place)
    if number == 0:
        raise ValueError(place)
    return number


def either(db: Db, one: int, other: int) -> int:
    try:
        return answer(db, one)
    except (ValueError, CycleError):
        return answer(db, other)


OPERATIONS = {
    "none": lambda _db: 0,
    "number": lambda db, name: NUMBERS.get(db, name) or 0,
    "n_keys": lambda db: len(NUMBERS.keys(db)) % 3,
    "total": lambda db: sum(number for _, number in NUMBERS.items(db)) % 3,
    "group": lambda db, number: len(BY_NUMBER.keys(db, number)) % 3,
    "group_items": lambda db, number: int("z" in dict(BY_NUMBER.items(db, number))),
    "has": lambda db, number: int(BY_NUMBER.has(db, number)),
    "sum": lambda db, one, other: (answer(db, one) + answer(db, other)) % 3,
    "is": lambda db, one, other: int(answer(db, one) == answer(db, other)),
    "if": lambda db, test, one, other: answer(db, one) if answer(db, test) else answer(db, other),
    "fail": failing,
    "either": either,
}

# Drawn with Random and not with strategies, which favour simple programs; those have nothing that goes wrong.


def expression(random: Random, places: range) -> tuple:
    def place() -> int:
        return random.choice(places)

    return random.choice(
        [
            ("number", random.choice("xyz")),
            (random.choice(["n_keys", "total"]),),
            (random.choice(["group", "group_items", "has"]), random.randrange(3)),
            (random.choice(["sum", "is"]), place(), place()),
            ("either", place(), place()),
            ("if", place(), place(), place()),
            ("if", place(), place(), place()),
            ("fail", place()),
        ]
    )


def line(random: Random, place: int, *, with_cycles: bool) -> tuple:
    places = range(0 if with_cycles else place + 1, SIZE + 1)
    return PROGRAM, place, expression(random, places)


def edit(random: Random, *, with_cycles: bool) -> tuple:
    place, number = random.randrange(SIZE), random.choice([0, 1, 2, None])
    lines = [line(random, place, with_cycles=with_cycles)] * 5 + [(PROGRAM, place, None)]
    return random.choice([random.choice(lines), (NUMBERS, random.choice("xyz"), number)])


def histories(*, with_cycles: bool) -> st.SearchStrategy[list]:
    """A whole program, some of its answers watched, then anything."""

    def history(seed: int) -> list:
        random = Random(seed)
        program = [line(random, place, with_cycles=with_cycles) for place in range(SIZE)]
        steps = [("edit", program), *[("watch", place) for place in range(3)]]
        for verb in random.choices(VERBS, [9, 3, 3, 1, 5, 1, 1], k=25):
            operands = {
                "edit": [[edit(random, with_cycles=with_cycles) for _ in range(random.randint(1, 3))]],
                "changed": [],
                "collect": [],
                "collect_unused": [],
            }
            steps.append((verb, *operands.get(verb, [random.randint(0, SIZE)])))
        return steps

    return st.integers(0, 2**32).map(history)


EXAMPLES = 20_000 if os.environ.get("KOGUMA_SOAK") else 300
VERBS = ["edit", "ask", "watch", "unwatch", "changed", "collect", "collect_unused"]


def outcome(db: Db, place: int) -> object:
    try:
        return answer(db, place)
    except (ValueError, CycleError) as error:
        return type(error), error.args


class Scratch(Db):
    """No engine at all: every question is run every time."""

    def ask(self, question, args):
        return question.function(self, *args)


class Follower:
    """A Db that lives through a history, beside the plain rows that its answers should follow from.

    `beside` is one who follows the same Db, with a watcher of its own.
    """

    def __init__(self, other: type[Db], beside: "Follower | None" = None) -> None:
        self.db = beside.db if beside else Db()
        self.watcher = Watcher(self.db)
        self.all = beside.all if beside else []
        self.all.append(self)
        self.other = other
        self.rows: dict[tuple, object] = beside.rows if beside else {}
        self.reported: dict[int, object] = {}

    def edit(self, several: Iterable[tuple]) -> None:
        with self.db.change() as change:
            for table, key, row in several:
                if row is None:
                    change.remove(table, key)
                    self.rows.pop((table, key), None)
                else:
                    change.set(table, key, row)
                    self.rows[table, key] = row

    def ask(self, place: int) -> None:
        assert outcome(self.db, place) == self.fresh([place])[place]

    def watch(self, place: int) -> None:
        self.watcher.watch(answer, place)
        self.reported.setdefault(place, self.fresh([place])[place])

    def unwatch(self, place: int) -> None:
        self.watcher.unwatch(answer, place)
        self.reported.pop(place, None)

    def changed(self) -> None:
        made.clear()
        said = [place for _, (place,) in self.watcher.changed()]
        assert len(made) == len(set(made)), "a question ran twice in one propagation"
        assert not made or any(each.reported for each in self.all), "a question ran for nobody"
        now = self.fresh(self.reported)
        assert sorted(said) == sorted(place for place in now if now[place] != self.reported[place])
        self.reported = now
        self.rest()

    def rest(self) -> None:
        """Nothing changed, or nothing that anybody read: nothing runs, and nothing is reported."""
        made.clear()
        self.db.set(UNRELATED, "x", 1)
        self.db.remove(UNRELATED, "x")
        assert self.watcher.changed() == []
        assert {place: outcome(self.db, place) for place in self.reported} == self.reported
        assert made == []

    def collect(self) -> None:
        self.db.collect()

    def collect_unused(self) -> None:
        self.db.collect_unused()

    def fresh(self, places: Iterable[int]) -> dict[int, object]:
        """The answers of a Db that knows only the final rows, written in another order."""
        db = self.other()
        for (table, key), row in sorted(self.rows.items(), key=repr, reverse=True):
            db.set(table, key, row)
        before = list(made)
        answers = {place: outcome(db, place) for place in places}
        made[:] = before
        return answers


def live_through(history: list, other: type[Db]) -> None:
    follower = Follower(other)
    for verb, *args in [*history, ("changed",)]:
        getattr(follower, verb)(*args)
    for place in list(follower.reported):
        follower.unwatch(place)
    follower.collect()
    assert (follower.db.n_memos, follower.db.n_cells) == (0, 0)


@pytest.mark.property
@settings(deadline=None, max_examples=EXAMPLES)
@given(histories(with_cycles=False))
def test_any_history_of_edits_answers_as_if_there_were_no_engine(history):
    live_through(history, Scratch)


@pytest.mark.property
@settings(deadline=None, max_examples=EXAMPLES)
@given(histories(with_cycles=True))
def test_any_history_with_cycles_answers_as_a_fresh_start(history):
    live_through(history, Db)


@pytest.mark.property
@settings(deadline=None, max_examples=EXAMPLES)
@given(histories(with_cycles=False))
def test_without_asking_from_outside_unwatching_is_enough_to_free_all(history):
    follower = Follower(Scratch)
    for verb, *args in history:
        if verb not in ("ask", "collect"):
            getattr(follower, verb)(*args)
    for place in list(follower.reported):
        follower.unwatch(place)
    assert (follower.db.n_memos, follower.db.n_cells) == (0, 0)


@pytest.mark.property
@settings(deadline=None, max_examples=EXAMPLES)
@given(histories(with_cycles=False), st.integers(0, 2**32))
def test_watchers_of_one_database_are_independent(history, seed):
    random = Random(seed)
    first = Follower(Scratch)
    several = [first, Follower(Scratch, first), Follower(Scratch, first)]
    for verb, *args in history:
        getattr(random.choice(several), verb)(*args)
    for each in several:
        each.changed()
    for each in several:
        for place in list(each.reported):
            each.unwatch(place)
    first.collect()
    assert (first.db.n_memos, first.db.n_cells) == (0, 0)


class Fleet:
    """What connected proxies get while their mesh changes, beside a fresh start with the same objects."""

    def __init__(self, *, is_advised: bool = False) -> None:
        self.is_advised = is_advised
        self.db = building.database(())
        self.watcher = SnapshotWatcher(self.db)
        self.rows: dict[Key, Resource] = {}
        self.nodes: dict[Key, NodeMetadata] = {}
        self.reported: dict[Key, object] = {}

    def write(self, random: Random) -> None:
        written = [found for _ in range(random.randint(1, 2)) if (found := random_meshes.resource(random))]
        self.rows |= {each.key: each for each in written}
        pipeline.take(self.db, written)
        if self.is_advised:
            self.advise([each.key for each in written])

    def advise(self, written: Iterable[Key]) -> None:
        """Look for what is odd, as the API does after each write: beside the fleet, in the same database."""
        kinds = building.KINDS.by_name
        written = [key for key in written if key.kind in kinds]  # those of Kubernetes have none of their own
        problems.keep(self.db, [key for key in written if kinds[key.kind].policy is not None])
        fresh = building.database(reversed(self.rows.values()))
        for key in written:
            assert problems.of_object(self.db, key) == problems.of_object(fresh, key)

    def remove(self, random: Random) -> None:
        if self.rows:
            key = random.choice(sorted(self.rows))
            del self.rows[key]
            pipeline.take(self.db, [], [key])

    def connect(self, random: Random) -> None:
        key, node = random_meshes.proxy_key(random), random_meshes.node_metadata(random)
        self.nodes[key] = node
        self.db.set(network.NODE_METADATA, key, node)
        self.watcher.add(key)
        self.reported[key] = self.fresh(key)

    def disconnect(self, random: Random) -> None:
        if self.nodes:
            key = random.choice(sorted(self.nodes))
            del self.nodes[key], self.reported[key]
            self.watcher.remove(key)
            self.db.remove(network.NODE_METADATA, key)

    def ask(self, random: Random) -> None:
        key = random_meshes.proxy_key(random)
        assert bodies(snapshot.of(self.db, key)) == self.fresh(key)

    def changed(self, _random: Random | None = None) -> None:
        said = set(self.watcher.changed())
        now = {key: self.fresh(key) for key in self.reported}
        assert {key: bodies(snapshot.of(self.db, key)) for key in self.reported} == now
        assert {key: bodies(self.watcher.of(key)) for key in self.reported} == now
        assert said == {key for key in now if now[key] != self.reported[key]}
        self.reported = now

    def collect(self, _random: Random) -> None:
        self.db.collect()

    def collect_unused(self, _random: Random) -> None:
        self.db.collect_unused()

    def fresh(self, key: Key) -> object:
        """What a database gives that knows only the final objects, written in another order."""
        db = building.database(reversed(self.rows.values()))
        for proxy, node in sorted(self.nodes.items(), reverse=True):
            db.set(network.NODE_METADATA, proxy, node)
        return bodies(snapshot.of(db, key))


def lived_through(fleet: Fleet, random: Random) -> Fleet:
    for verb in ["write"] * 12 + ["connect"] * 2 + random.choices([*DEEDS], [*DEEDS.values()], k=25):
        getattr(fleet, verb)(random)
    fleet.changed()
    return fleet


MESHES = 3_000 if os.environ.get("KOGUMA_SOAK") else 40
DEEDS = {
    "write": 12,
    "remove": 3,
    "connect": 3,
    "disconnect": 1,
    "ask": 2,
    "changed": 4,
    "collect": 1,
    "collect_unused": 1,
}


@pytest.mark.property
@settings(deadline=None, max_examples=MESHES)
@given(st.integers(0, 2**32))
def test_any_history_of_a_mesh_gives_the_bytes_of_a_fresh_start(seed):
    fleet = lived_through(Fleet(), Random(seed))
    for key in list(fleet.reported):
        fleet.watcher.remove(key)
    pipeline.take(fleet.db, [], fleet.rows)
    fleet.db.collect()
    assert fleet.db.n_memos == 0


@pytest.mark.property
@settings(deadline=None, max_examples=MESHES // 2)
@given(st.integers(0, 2**32))
def test_any_history_of_a_mesh_whose_writers_are_advised_gives_the_bytes_of_a_fresh_start(seed):
    fleet = lived_through(Fleet(is_advised=True), Random(seed))
    fresh = building.database(reversed(fleet.rows.values()))
    assert problems.of_mesh(fleet.db, "default") == problems.of_mesh(fresh, "default")
