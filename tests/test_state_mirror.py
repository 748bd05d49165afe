"""Rows of proxies' states: a mirror that follows is the same as one that reads everything.

Two control planes write, lose the store, are killed, start again, and are taken for gone, in any order.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.state_mirror import GONE_SECONDS, POLL_SECONDS, REMOVAL_SECONDS, StateMirror
from koguma.fleet.state_writer import StateWriter
from koguma.model.resource import Key
from koguma.store.log import LogLost
from koguma.store.proxy_states import MemoryProxyStates

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = st.sampled_from([0, 1])
NAMES = st.sampled_from(["a", "b", "c"])


def key(name):
    return Key("Dataplane", "default", "zone", "", name)


def done(work):
    """What a coroutine returns that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


class Proxies:
    """The proxies of one control plane, in place of its connections."""

    def __init__(self, instance, is_stored):
        self._instance = instance
        self._is_stored = is_stored
        self._states = {}
        self._changed = {}

    def __iter__(self):
        return iter(self._states)

    def of(self, key):
        return self._states.get(key)

    def connect(self, name, at):
        state = ProxyState(key=key(name), core_name=name, instance=self._instance, connected_at=at)
        self._states[state.key] = state
        self.note(state.key)

    def disconnect(self, name, at):
        before = self._states.get(key(name))
        if before is not None:
            fields = {"key": before.key, "core_name": name, "instance": self._instance}
            connected_at = before.connected_at
            state = ProxyState(**fields, connected_at=connected_at, disconnected_at=at)
            self._states[before.key] = state
            self.note(before.key)

    def note(self, key):
        self._changed[key] = None

    def take_changed(self):
        changed, self._changed = list(self._changed), {}
        return changed

    def forget_gone(self, changed):
        states = self._states.items()
        gone = [
            key
            for key, each in states
            if not each.is_connected and key not in changed and not self._is_stored(key)
        ]
        for each in gone:
            del self._states[each]
        return gone


class LossyTable(MemoryProxyStates):
    """Loses the next request before it arrives, or its answer."""

    def __init__(self):
        super().__init__()
        self.lose = ""

    async def write(self, *values):
        return await self._lossy(super().write(*values))

    async def begin(self, *values):
        return await self._lossy(super().begin(*values))

    async def _lossy(self, work):
        lose, self.lose = self.lose, ""
        if lose == "request":
            work.close()
            raise LogLost("lost on the way")
        done = await work
        if lose == "answer":
            raise LogLost("the answer is lost")
        return done


class Fleet(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = LossyTable()
        self.now = 0.0
        self.n_started = 0
        self.stored = {key(name) for name in "abc"}
        self.were_deleted = set()  # each may have forgotten a disconnected proxy of these, or not yet
        self.planes = [self.started(), self.started()]
        self.mirror = self.new_mirror()
        self.lives = {}
        self.backup = None

    def clock(self):
        return START + timedelta(seconds=self.now)

    def started(self):
        self.n_started += 1
        name = f"plane-{self.n_started}"
        writer = StateWriter(self.table, name, self.clock, beats=True)
        writer.local = Proxies(name, self.stored.__contains__)
        return writer

    def new_mirror(self):
        return StateMirror(
            self.table,
            "reader",
            self.clock,
            self.stored.__contains__,
            is_alone=False,
            monotonic=lambda: self.now,
        )

    @rule(place=PLACES, name=NAMES)
    def connect(self, place, name):
        self.now += 0.01
        self.planes[place].local.connect(name, self.clock())

    @rule(place=PLACES, name=NAMES)
    def disconnect(self, place, name):
        self.now += 0.01
        self.planes[place].local.disconnect(name, self.clock())

    @rule(name=NAMES)
    def delete_object(self, name):
        self.stored.discard(key(name))
        self.were_deleted.add(key(name))

    @rule(name=NAMES)
    def write_object(self, name):
        self.stored.add(key(name))

    @rule(place=PLACES, lose=st.sampled_from(["", "", "request", "answer"]))
    def flush(self, place, lose):
        self.table.lose = lose
        done(self.planes[place].flush())
        self.table.lose = ""

    @rule()
    def poll(self):
        self.now += POLL_SECONDS
        done(self.mirror.poll())

    @rule(place=PLACES)
    def kill(self, place):
        self.planes[place] = self.started()

    @rule(place=PLACES)
    def stop(self, place):
        done(self.planes[place].leave())
        self.planes[place] = self.started()

    @rule()
    def remember(self):
        tables = self.table.by_instance.items()
        self.backup = dict(self.table.rows), {name: dict(rows) for name, rows in tables}

    @rule()
    def fail_over(self):
        """The database falls back to what a standby had."""
        if self.backup is not None:
            rows, states = self.backup
            self.table.rows = dict(rows)
            self.table.by_instance = {name: dict(each) for name, each in states.items()}

    @rule()
    def take_for_gone(self):
        """Nobody writes for long, and the reader removes what it finds."""
        for _ in range(int(REMOVAL_SECONDS / POLL_SECONDS / 2) + 2):
            self.now += 2 * POLL_SECONDS
            done(self.mirror.poll())

    @invariant()
    def a_mirror_that_follows_is_one_that_reads_everything(self):
        """Once all have written and it has polled: as the others, and as a new mirror."""
        for place in (0, 1):
            self.flush(place, "")
        self.poll()
        fresh = self.new_mirror()
        done(fresh.poll())
        living = {writer._instance for writer in self.planes}
        assert self.shown(self.mirror, living) == self.shown(fresh, living)
        truth = {
            (writer._instance, each): writer.local.of(each)
            for writer in self.planes
            for each in writer.local
            if self.is_shown(writer.local.of(each))
        }
        assert self.shown(self.mirror, living) == truth

    def shown(self, mirror, living):
        return {
            (name, each): state
            for name, other in mirror.instances.items()
            for each, state in other.states.items()
            if name in living and self.is_shown(state)
        }

    def is_shown(self, state):
        return state.is_connected or state.key not in self.were_deleted


class TestAnyHistory(Fleet.TestCase):
    settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


async def test_one_whose_beat_stands_still_is_gone_but_not_for_a_reader_that_stood_still_itself():
    now = [0.0]
    table = MemoryProxyStates()
    writer = StateWriter(table, "other", lambda: START, beats=True)
    writer.local = Proxies("other", lambda _key: True)
    writer.local.connect("a", START)
    mirror = StateMirror(
        table, "here", lambda: START, lambda _key: True, is_alone=False, monotonic=lambda: now[0]
    )
    changed = []
    mirror.on_change = changed.append
    await writer.flush()
    await mirror.poll()
    assert mirror.connected() == {key("a")}
    now[0] += 3600.0
    await mirror.poll()
    assert mirror.connected() == {key("a")}, "nobody looked for an hour"
    for _ in range(int(GONE_SECONDS / POLL_SECONDS)):
        now[0] += POLL_SECONDS
        await mirror.poll()
    assert mirror.connected() == set()
    [state] = mirror.of(key("a"))
    assert state.disconnected_at == START, "when it was last heard of"
    await writer.flush()
    await mirror.poll()
    assert mirror.connected() == {key("a")}
    assert changed == [{"default"}] * 3
    await writer.leave()
    await mirror.poll()
    assert mirror.connected() == set(), "it said so"


async def test_the_others_are_known_once_all_of_them_were_read():
    table = MemoryProxyStates()
    writer = StateWriter(table, "other", lambda: START, beats=True)
    writer.local = Proxies("other", lambda _key: True)
    writer.local.connect("a", START)
    await writer.flush()
    mirror = StateMirror(table, "here", lambda: START, lambda _key: True, is_alone=False)
    read = table.states

    async def lost(*_):
        raise LogLost("no answer")

    table.states = lost
    with pytest.raises(LogLost):
        await mirror.poll()
    assert not mirror.is_known, "which control planes there are was read, and not their proxies"
    table.states = read
    await mirror.poll()
    assert mirror.is_known
    assert mirror.connected() == {key("a")}


async def test_at_rest_only_signs_of_life_are_written_and_none_where_nobody_else_reads():
    table = MemoryProxyStates()
    for beats, expected in ((True, 10), (False, 0)):
        writer = StateWriter(table, f"{beats}", lambda: START, beats=beats)
        writer.local = Proxies("x", lambda _key: True)
        for number in range(100):
            writer.local.connect(f"a-{number}", START)
        await writer.flush()
        before = table.n_written
        for _ in range(10):
            await writer.flush()
        assert table.n_written - before == expected


async def test_a_row_that_cannot_be_read_hides_no_other():
    table = MemoryProxyStates()
    writer = StateWriter(table, "other", lambda: START, beats=True)
    writer.local = Proxies("other", lambda _key: True)
    for name in ("a", "b"):
        writer.local.connect(name, START)
    await writer.flush()
    rows = table.by_instance["other"]
    rows[key("a")] = rows[key("a")]._replace(data=b'{"state": "of the future"}')
    table.rows["other"] = table.rows["other"]._replace(data=b"no JSON")
    mirror = StateMirror(table, "here", lambda: START, lambda _key: True, is_alone=False)
    await mirror.poll()
    assert mirror.connected() == {key("b")}
    assert [each.id for each in mirror.shown(frozenset())] == ["other"]
