"""Properties of any history: the log alone gives the state, and a watch sees exactly the rest of it."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import Clock, changes_after, contents, make_resource

from koguma.model.errors import KogumaError, NotFound
from koguma.model.resource import Resource
from koguma.store import Delete, DeleteMesh, DeleteZone, Op, Put, Require, State, Store, Transaction
from koguma.store.contract import Change, Place
from koguma.store.memory import MemoryLog

pytestmark = pytest.mark.slow

KINDS = ("Mesh", "MeshTimeout", "Dataplane")
json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
resources = st.builds(
    lambda kind, mesh, name, core, spec, labels: make_resource(
        name, kind=kind, mesh=mesh, core_name=core, spec=spec, labels=labels
    ),
    st.sampled_from(KINDS),
    st.sampled_from(["", "m"]),
    st.sampled_from("abc"),
    st.sampled_from(["x", "y", "z"]),
    json,
    st.dictionaries(st.sampled_from("kl"), st.sampled_from("12"), max_size=1),
)
expectations = st.none() | st.integers(0, 12)
operations = st.one_of(
    st.builds(Put, resources, expectations),
    st.builds(lambda one, expect: Delete(one.key, expect), resources, expectations),
    st.builds(lambda one: Require(one.key, NotFound("required")), resources),
    st.just(DeleteMesh("m")),
    st.just(DeleteZone("")),
)
histories = st.lists(st.lists(operations, min_size=1, max_size=4), min_size=1, max_size=12)


async def lived(history, log: MemoryLog) -> tuple[Store, list[Change]]:
    """A store that has lived through a history, half of it in batches."""
    store = Store(log, Clock(), changes_in_memory=5)
    await store.open()
    written: list[Change] = []
    for at in range(0, len(history), 2):
        transactions = [Transaction(tuple(ops), "any") for ops in history[at : at + 2]]
        answers = await asyncio.gather(*map(store.write, transactions), return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, (tuple, KogumaError)), answer
            if isinstance(answer, tuple):
                written += [change for change in answer if change.op is not Op.UNCHANGED]
    return store, written


def snapshot(state: State) -> tuple[int, list[Resource], dict[str, str]]:
    names = {
        f"{one.kind}/{one.mesh}/{one.core_name}": state.named(one.kind, one.mesh, one.core_name).name
        for one in state.all()
    }
    counts: dict[str, Counter[Place]] = {}
    for key in state.stored_keys():
        counts.setdefault(key.kind, Counter())[Place(key.mesh, key.zone, key.namespace)] += 1
    assert {kind: dict(state.counts(kind)) for kind in counts} == counts
    return state.revision, list(state.all()), names


@pytest.mark.property
@given(histories)
@settings(deadline=None)
def test_the_log_alone_gives_the_live_state(history) -> None:
    async def run() -> None:
        log = MemoryLog()
        store, written = await lived(history, log)
        replayed = State()
        for change in await log.since(0):
            replayed.apply(change)
        reopened = State(await log.load())
        assert snapshot(store.state) == snapshot(replayed) == snapshot(reopened)
        assert written == await log.since(0)
        assert [change.revision for change in written] == list(range(1, store.state.revision + 1))
        await store.close()

    asyncio.run(run())


@pytest.mark.property
@given(histories, st.sets(st.sampled_from(KINDS), min_size=1) | st.none(), st.integers(0, 12))
@settings(deadline=None)
def test_a_watch_from_any_revision_sees_exactly_the_rest(history, kinds, after) -> None:
    async def run() -> None:
        store, written = await lived(history, MemoryLog())
        wanted = frozenset(kinds) if kinds else None
        rest = [
            change
            for change in written
            if change.revision > after and (wanted is None or change.resource.kind in wanted)
        ]
        assert await changes_after(store, after, wanted) == rest
        await store.close()

    asyncio.run(run())


@pytest.mark.property
@given(histories)
@settings(deadline=None)
def test_no_two_objects_ever_share_a_core_name(history) -> None:
    async def run() -> None:
        store, _ = await lived(history, MemoryLog())
        taken = [(one.kind, one.mesh, one.core_name) for one in contents(store).values()]
        assert len(taken) == len(set(taken))
        await store.close()

    asyncio.run(run())
