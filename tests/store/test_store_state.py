"""The state in memory: lookups, listings in order, and staged changes that leave no trace."""

import asyncio
import json
import random

import pytest
from store_cases import NOON, Clock, changes_after, contents, key, make_resource, puts, transaction_of

from koguma.model.errors import NotFound
from koguma.store import Delete, Put, State, Store
from koguma.store.evaluate import StagedState, evaluate
from koguma.store.memory import MemoryLog


async def opened(**more) -> Store:
    store = Store(MemoryLog(), Clock(), **more)
    await store.open()
    return store


async def test_lists_are_sorted_by_mesh_and_core_name_after_any_change() -> None:
    store = await opened()
    dice = random.Random(7)
    for step in range(300):
        name, mesh = f"n-{dice.randrange(20)}", dice.choice(["a", "b", "ba"])
        one = make_resource(name, step, mesh=mesh)
        stored = store.state.get(one.key)
        await store.write(transaction_of(Delete(one.key)) if stored and dice.random() < 0.4 else puts(one))
        everything = sorted(contents(store).values(), key=lambda r: (r.mesh, r.core_name))
        assert list(store.state.listed("MeshTimeout")) == everything
        assert list(store.state.listed("MeshTimeout", "b")) == [r for r in everything if r.mesh == "b"]
    assert store.state.listed("MeshTimeout", "c") == store.state.listed("Nothing") == ()
    await store.close()


async def test_a_list_is_the_same_tuple_until_its_kind_changes() -> None:
    store = await opened()
    await store.write(puts(make_resource("a"), make_resource("b")))
    listed = store.state.listed("MeshTimeout")
    await store.write(puts(make_resource("c", kind="MeshRetry")))
    assert store.state.listed("MeshTimeout") is listed
    await store.write(puts(make_resource("a", 2)))
    assert [one.spec["value"] for one in store.state.listed("MeshTimeout")] == [2, 1]
    await store.close()


def test_a_refused_transaction_leaves_no_trace_in_a_staged_state() -> None:
    state = State()
    staged = StagedState(state)
    with pytest.raises(NotFound):
        evaluate(staged, transaction_of(Put(make_resource("a")), Delete(key("nobody"))), NOON, lambda: "uid")
    assert staged.entry(key("a")) is None
    assert staged.key_named("MeshTimeout", "default", "a") is None
    assert (staged.revision, state.revision) == (0, 0)


def test_evaluations_build_on_the_staged_state_and_leave_the_state_alone() -> None:
    state = State()
    staged = StagedState(state)
    for revision, value in enumerate([1, 2, 3], 1):
        [change] = evaluate(staged, puts(make_resource("a", value)), NOON, lambda: "uid")
        staged.apply(change, change.resource.key)
        assert (change.revision, change.resource.generation) == (revision, value)
    assert list(staged.stored_keys()) == [key("a")]
    assert list(state.stored_keys()) == []


async def test_a_preview_says_what_a_write_would_do() -> None:
    store = await opened()
    [change] = store.preview(puts(make_resource("a")))
    assert (change.revision, store.state.revision) == (1, 0)
    assert await changes_after(store, 0) == []
    await store.close()


async def test_idle_watchers_are_not_woken_by_other_kinds() -> None:
    store = await opened()
    watchers = [
        asyncio.create_task(store.watch(frozenset({"Dataplane"}), 0).next_batch()) for _ in range(1_000)
    ]
    await asyncio.sleep(0)
    waiters = store._replica.buffer._waiters
    before = set(waiters["Dataplane"])
    for number in range(50):
        await store.write(puts(make_resource(f"n-{number}")))
    assert waiters["Dataplane"] == before
    await store.write(puts(make_resource("dp", kind="Dataplane")))
    assert {len(batch) for batch in await asyncio.gather(*watchers)} == {1}
    assert waiters == {}
    await store.close()


async def test_a_cancelled_watcher_leaves_nothing_behind() -> None:
    store = await opened()
    watcher = asyncio.create_task(store.watch(frozenset({"Dataplane", "Mesh"}), 0).next_batch())
    await asyncio.sleep(0)
    watcher.cancel()
    await asyncio.wait([watcher])
    assert store._replica.buffer._waiters == {}
    await store.close()


async def test_watchers_that_never_read_hold_nothing() -> None:
    store = await opened(changes_in_memory=100)
    idle = [store.watch(None, 0) for _ in range(100)]
    for number in range(300):
        await store.write(puts(make_resource(f"n-{number % 10}", number)))
    buffer = store._replica.buffer
    assert len(buffer._all) == sum(len(some) for some in buffer._by_kind.values()) == 100
    assert [one.position for one in idle] == [0] * 100
    await store.close()


async def test_the_next_revision_shares_equal_parts() -> None:
    store = await opened()
    status = {"vips": [{"ip": "241.0.0.1"}], "count": {"total": 1}}
    await store.write(puts(make_resource("a", {"deep": [1]}, labels={"team": "a"}, status=status)))
    before = store.state.get(key("a"))
    changed = {"vips": [{"ip": "241.0.0.1"}], "count": {"total": 2}}
    await store.write(puts(make_resource("a", {"deep": [1]}, labels={"team": "a"}, status=changed)))
    after = store.state.get(key("a"))
    assert (after.status, after.revision) == (changed, 2)
    assert after.spec is before.spec
    assert after.labels is before.labels
    assert after.status["vips"] is before.status["vips"]
    await store.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True]), ({"a": 1}, {"a": 1.0})],
)
async def test_what_is_only_equal_to_python_is_stored_as_it_was_written(first, then) -> None:
    store = await opened()
    await store.write(puts(make_resource("a", first, annotations={"n": "1"})))
    await store.write(puts(make_resource("a", then, annotations={"n": "2"})))
    stored = store.state.get(key("a")).spec["value"]
    assert json.dumps(stored) == json.dumps(then)
    await store.close()


async def test_what_a_change_replaced_is_known_as_long_as_the_change() -> None:
    store = await opened(changes_in_memory=3)
    for value in range(1, 6):
        await store.write(puts(make_resource("a", value)))
    await store.write(puts(make_resource("b")))
    replaced = {revision: store.replaced(revision) for revision in range(8)}
    known = {revision: each.spec["value"] for revision, each in replaced.items() if each is not None}
    assert known == {4: 3, 5: 4}
    await store.close()


async def test_a_core_name_that_went_is_free_again() -> None:
    store = await opened()
    await store.write(puts(make_resource("a"), make_resource("b")))
    await store.write(puts(make_resource("a", core_name="renamed")))
    assert store.state.named("MeshTimeout", "default", "a") is None
    assert store.state.named("MeshTimeout", "default", "renamed").key == key("a")
    await store.write(transaction_of(Delete(key("a")), Delete(key("b"))))
    assert store.state.key_named("MeshTimeout", "default", "renamed") is None
    assert store.state.key_named("MeshTimeout", "default", "b") is None
    await store.close()
