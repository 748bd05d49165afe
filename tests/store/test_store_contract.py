"""What every store does, whatever it is kept in: run on memory, SQLite and PostgreSQL."""

import asyncio
import random
import uuid

import pytest
from msgspec.structs import replace
from store_cases import changes_after, contents, deletes, drained, key, make_resource, puts, transaction_of

from koguma.model.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    KogumaError,
    NotFound,
    Unavailable,
)
from koguma.model.resource import Resource
from koguma.store import Delete, DeleteMesh, Op, Put, Require, RequireNone, State, Transaction
from koguma.store.contract import Change

pytestmark = pytest.mark.slow


def revisions(changes) -> list[int]:
    return [change.revision for change in changes]


async def test_a_new_object_gets_its_identity_and_times(store) -> None:
    [change] = await store.write(puts(make_resource("slow")))
    assert (change.op, change.revision, change.author, change.reason) == (Op.CREATE, 1, "tester", "a test")
    stored = store.state.get(key("slow"))
    assert stored == change.resource
    assert (stored.revision, stored.generation) == (1, 1)
    assert stored.creation_time == stored.modification_time == change.time == "2026-03-01T12:00:00Z"
    assert (str(uuid.UUID(stored.uid)), uuid.UUID(stored.uid).version) == (stored.uid, 4)
    assert store.state.named("MeshTimeout", "default", "slow") is stored


async def test_an_update_keeps_the_identity_and_counts_new_specs(store, clock) -> None:
    [created] = await store.write(puts(make_resource("slow")))
    clock.advance(seconds=90)
    [labelled] = await store.write(puts(make_resource("slow", labels={"team": "a"})))
    [changed] = await store.write(puts(make_resource("slow", 2, labels={"team": "a"})))
    assert (labelled.op, changed.op) == (Op.UPDATE, Op.UPDATE)
    assert {c.resource.uid for c in (created, labelled, changed)} == {created.resource.uid}
    assert [c.resource.generation for c in (created, labelled, changed)] == [1, 1, 2]
    assert changed.resource.creation_time == "2026-03-01T12:00:00Z"
    assert changed.resource.modification_time == "2026-03-01T12:01:30Z"


async def test_a_write_that_changes_nothing_makes_no_revision(store, clock) -> None:
    [created] = await store.write(puts(make_resource("slow", status={"ready": True})))
    clock.advance(seconds=5)
    [again] = await store.write(puts(make_resource("slow", status={"ready": True})))
    assert again.op is Op.UNCHANGED
    assert again.resource == created.resource
    assert store.state.revision == 1
    assert await changes_after(store, 1) == []


async def test_a_write_in_a_newer_storage_version_is_stored_and_is_no_new_generation(opened, clock) -> None:
    store = await opened()
    older = make_resource("a", kind="widgets.example.com", mesh="", stored_version="example.com/v1")
    await store.write(puts(older))
    newer = replace(older, spec={"other": 1}, stored_version="example.com/v2")
    clock.advance(hours=1)
    (change,) = await store.write(transaction_of(Put(newer, 1, is_migration=True)))
    assert (change.op, change.resource.generation, change.resource.revision) == (Op.UPDATE, 1, 2)
    (again,) = await store.write(transaction_of(Put(newer, 2, is_migration=True)))
    assert again.op is Op.UNCHANGED
    await store.close()
    stored = (await opened()).state.get(newer.key)
    assert (stored.stored_version, stored.spec) == ("example.com/v2", {"other": 1})


async def test_values_that_python_takes_for_equal_are_still_a_change(store) -> None:
    await store.write(puts(make_resource("slow", 1)))
    for value in (True, 1.0, [1], "1", 0, False, None):
        [change] = await store.write(puts(make_resource("slow", value)))
        assert change.op is Op.UPDATE
        assert repr(store.state.get(key("slow")).spec) == repr({"value": value})


async def test_a_delete_tells_the_last_state(store) -> None:
    [created] = await store.write(puts(make_resource("slow", 7)))
    [deleted] = await store.write(deletes(key("slow")))
    assert (deleted.op, deleted.revision, deleted.resource.revision) == (Op.DELETE, 2, 2)
    assert (deleted.resource.spec, deleted.resource.uid) == ({"value": 7}, created.resource.uid)
    assert store.state.get(key("slow")) is None
    assert store.state.named("MeshTimeout", "default", "slow") is None
    with pytest.raises(NotFound, match='MeshTimeout "slow"'):
        await store.write(deletes(key("slow")))


async def test_a_deleted_object_comes_back_as_another_one(store) -> None:
    [first] = await store.write(puts(make_resource("slow")))
    await store.write(deletes(key("slow")))
    [second] = await store.write(puts(make_resource("slow"), expect=0))
    assert second.op is Op.CREATE
    assert second.resource.uid != first.resource.uid


REFUSED = [
    (puts(make_resource("slow", 2), expect=0), AlreadyExists, ['"slow"', "revision 1"]),
    (
        puts(make_resource("slow", 2), expect=9),
        Conflict,
        ["revision 9", "1 is stored", "read it again and retry"],
    ),
    (deletes(key("slow"), expect=9), Conflict, ["revision 9", "1 is stored", "read it again and retry"]),
    (puts(make_resource("gone"), expect=3), NotFound, ['"gone"', "revision 3"]),
    (deletes(key("gone"), expect=3), NotFound, ['"gone"']),
]


async def test_a_write_that_expects_another_revision_is_refused(store) -> None:
    await store.write(puts(make_resource("slow")))
    for write, error, words in REFUSED:
        with pytest.raises(error) as refusal:
            await store.write(write)
        assert [word for word in words if word not in str(refusal.value)] == []
    assert store.state.revision == 1


async def test_a_write_that_expects_the_stored_revision_is_done(store) -> None:
    await store.write(puts(make_resource("slow"), expect=0))
    await store.write(puts(make_resource("slow", 2), expect=1))
    await store.write(deletes(key("slow"), expect=2))
    assert store.state.revision == 3


async def test_of_two_writers_with_the_same_revision_one_wins(store) -> None:
    await store.write(puts(make_resource("slow")))
    results = await asyncio.gather(
        *(store.write(puts(make_resource("slow", value), expect=1)) for value in (2, 3)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [tuple, Conflict]
    assert store.state.get(key("slow")).spec == {"value": 2}


async def test_a_transaction_happens_together_or_not_at_all(store) -> None:
    changes = await store.write(puts(make_resource("a"), make_resource("b"), make_resource("c")))
    assert revisions(changes) == [1, 2, 3]
    assert len({change.transaction for change in changes}) == 1
    with pytest.raises(NotFound):
        await store.write(
            transaction_of(Put(make_resource("d")), Put(make_resource("a", 2)), Delete(key("nobody")))
        )
    assert sorted(name.name for name in contents(store)) == ["a", "b", "c"]
    assert store.state.get(key("a")).spec == {"value": 1}
    assert store.state.revision == 3


async def test_a_transaction_sees_its_own_steps(store) -> None:
    changes = await store.write(
        transaction_of(
            Put(make_resource("m", kind="Mesh", mesh="")),
            Require(key("m", kind="Mesh", mesh=""), NotFound("no mesh")),
            Put(make_resource("a", mesh="m")),
            Put(make_resource("a", 2, mesh="m"), expect=2),
            Delete(key("a", mesh="m"), expect=3),
            Put(make_resource("a", 3, mesh="m"), expect=0),
            Put(make_resource("a", 3, mesh="m")),
        )
    )
    ops = [Op.CREATE, Op.CREATE, Op.UPDATE, Op.DELETE, Op.CREATE, Op.UNCHANGED]
    assert [change.op for change in changes] == ops
    assert store.state.revision == 5
    assert store.state.get(key("a", mesh="m")).spec == {"value": 3}


async def test_a_taken_core_name_is_refused_with_both_names(store) -> None:
    await store.write(puts(make_resource("slow", namespace="shop", core_name="slow.shop")))
    with pytest.raises(AlreadyExists) as refusal:
        await store.write(puts(make_resource("slow.shop")))
    assert 'MeshTimeout "slow.shop" (mesh default)' in str(refusal.value)
    assert 'MeshTimeout "slow" (mesh default namespace shop)' in str(refusal.value)
    await store.write(
        puts(make_resource("slow.shop", mesh="other"), make_resource("slow.shop", kind="MeshRetry"))
    )
    assert store.state.revision == 3


async def test_a_core_name_can_change_hands_in_one_transaction(opened) -> None:
    store = await opened()
    await store.write(puts(make_resource("a", core_name="one"), make_resource("b", core_name="two")))
    await store.write(
        transaction_of(
            Delete(key("a")),
            Delete(key("b")),
            Put(make_resource("b", core_name="one")),
            Put(make_resource("a", core_name="two")),
        )
    )
    await store.write(transaction_of(Delete(key("b")), Put(make_resource("c", core_name="one"))))
    await store.write(puts(make_resource("a", core_name="three")))
    await store.write(puts(make_resource("c", core_name="two")))
    await store.close()
    store = await opened()
    names = {name: found.name for name in ("one", "two", "three") if (found := _named(store, name))}
    assert names == {"two": "c", "three": "a"}


async def test_two_objects_can_swap_their_core_names_in_one_transaction(opened) -> None:
    store = await opened()
    await store.write(puts(make_resource("a", core_name="one"), make_resource("b", core_name="two")))
    await store.write(
        puts(
            make_resource("a", core_name="three"),
            make_resource("b", core_name="one"),
            make_resource("a", core_name="two"),
        )
    )
    await store.close()
    store = await opened()
    assert (_named(store, "one").name, _named(store, "two").name) == ("b", "a")


def _named(store, core_name: str) -> Resource | None:
    return store.state.named("MeshTimeout", "default", core_name)


async def test_requirements_refuse_with_the_callers_own_words(store) -> None:
    mesh = key("default", kind="Mesh", mesh="")
    missing = Require(mesh, NotFound("mesh of name default is not found"))
    with pytest.raises(NotFound, match="mesh of name default is not found"):
        await store.write(transaction_of(missing, Put(make_resource("slow"))))
    await store.write(
        puts(make_resource("default", kind="Mesh", mesh=""), make_resource("dp", kind="Dataplane"))
    )
    await store.write(transaction_of(missing, Put(make_resource("slow"))))
    in_use = RequireNone("Dataplane", "default", Forbidden("there are dataplanes in it"))
    with pytest.raises(Forbidden, match="there are dataplanes in it"):
        await store.write(transaction_of(in_use, DeleteMesh("default"), Delete(mesh)))
    await store.write(
        transaction_of(Delete(key("dp", kind="Dataplane")), in_use, DeleteMesh("default"), Delete(mesh))
    )
    assert contents(store) == {}


async def test_deleting_a_mesh_deletes_what_is_in_it_in_key_order(store) -> None:
    mesh = make_resource("default", kind="Mesh", mesh="")
    await store.write(
        puts(
            make_resource("b"),
            make_resource("z", kind="Dataplane"),
            mesh,
            make_resource("a"),
            make_resource("a", mesh="other"),
        )
    )
    changes = await store.write(transaction_of(DeleteMesh("default"), Delete(mesh.key)))
    assert [str(change.resource.key) for change in changes] == [
        'Dataplane "z" (mesh default)',
        'MeshTimeout "a" (mesh default)',
        'MeshTimeout "b" (mesh default)',
        'Mesh "default"',
    ]
    assert revisions(changes) == [6, 7, 8, 9]
    assert list(contents(store)) == [key("a", mesh="other")]


async def test_everything_is_there_after_a_restart(opened) -> None:
    store = await opened()
    await store.write(
        puts(make_resource("ä.日本", labels={"a": "1"}, annotations={"b": "\u2028"}, spec={"x": [1.5, None]}))
    )
    await store.write(
        puts(make_resource("b"), make_resource("c", namespace="ns", zone="east", status={"ok": True}))
    )
    await store.write(transaction_of(Delete(key("b")), Put(make_resource("d"))))
    before, revision = contents(store), store.state.revision
    await store.close()
    store = await opened()
    assert contents(store) == before
    assert store.state.revision == revision
    assert revisions(await store.write(puts(make_resource("e")))) == [revision + 1]


@pytest.mark.parametrize("seed", [3, 51])
async def test_what_is_current_and_what_is_logged_agree_after_any_history(opened, backend, seed) -> None:
    dice = random.Random(seed)

    def operation() -> Put | Delete | DeleteMesh:
        one = make_resource(dice.choice("abcd"), dice.randrange(3), core_name=dice.choice("wxyz"))
        return dice.choice([Put(one), Put(one), Put(one, 0), Delete(one.key), DeleteMesh("default")])

    store = await opened()
    for _ in range(25):
        batch = [
            transaction_of(*(operation() for _ in range(dice.randrange(1, 5))))
            for _ in range(dice.randrange(1, 5))
        ]
        answers = await asyncio.gather(*map(store.write, batch), return_exceptions=True)
        assert [answer for answer in answers if not isinstance(answer, (tuple, KogumaError))] == []
    replayed = State()
    for change in await store.log.since(0):
        replayed.apply(change)
    await store.close()
    reopened = await opened()
    assert store.state.revision == replayed.revision == reopened.state.revision > 20
    assert list(store.state.all()) == list(replayed.all()) == list(reopened.state.all())


async def _some_history(store) -> list[Change]:
    changes: list[Change] = []
    for value in range(4):
        changes += await store.write(
            puts(make_resource("a", value), make_resource("b", value, kind="MeshRetry"))
        )
    changes += await store.write(deletes(key("a")))
    return changes


async def test_a_watch_from_any_revision_sees_the_rest_in_order(opened) -> None:
    store = await opened()
    changes = await _some_history(store)
    for revision in range(len(changes) + 1):
        assert await changes_after(store, revision) == changes[revision:]
    await store.close()
    store = await opened()
    for revision in range(len(changes) + 1):
        assert await changes_after(store, revision) == changes[revision:]


async def test_a_watch_that_left_the_memory_reads_on_from_the_log(opened, monkeypatch) -> None:
    monkeypatch.setattr("koguma.store.watch.PAGE", 2)
    store = await opened(changes_in_memory=3)
    retries = frozenset({"MeshRetry"})
    everything, some = store.watch(None, 0), store.watch(retries, 0)
    changes = await _some_history(store)
    assert await drained(everything) == changes
    assert await drained(some) == [change for change in changes if change.resource.kind == "MeshRetry"]
    assert everything.position == some.position == store.state.revision


async def test_a_watch_wakes_for_its_kinds_only(store) -> None:
    watch = store.watch(frozenset({"MeshRetry", "Dataplane"}), 0)
    waiting = asyncio.create_task(watch.next_batch(30))
    await store.write(puts(make_resource("a")))
    await asyncio.sleep(0)
    assert not waiting.done()
    [change] = await store.write(puts(make_resource("b", kind="MeshRetry")))
    assert await waiting == [change]
    assert watch.position == 2


async def test_a_watch_without_news_moves_on_with_the_store(store) -> None:
    watch = store.watch(frozenset({"MeshRetry"}), 0)
    await store.write(puts(make_resource("a"), make_resource("b")))
    assert await watch.next_batch(0.001) == []
    assert watch.position == 2


async def test_a_watch_from_the_future_waits_for_it(store) -> None:
    watch = store.watch(None, 2)
    await store.write(puts(make_resource("a"), make_resource("b")))
    assert await watch.next_batch(0) == []
    [change] = await store.write(puts(make_resource("c")))
    assert await watch.next_batch(5) == [change]


async def test_closing_ends_the_watches(opened) -> None:
    store = await opened()
    waiting = asyncio.create_task(store.watch(None, 0).next_batch())
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Unavailable, match="closing"):
        await waiting


async def test_compaction_forgets_old_changes_and_keeps_what_is_current(opened, clock) -> None:
    store = await opened()
    await _some_history(store)  # 9 revisions; b is current at 8, a is deleted at 9
    clock.advance(days=31)
    await store.write(puts(make_resource("new"), make_resource("new", 2)))
    assert await store.compact() == 9
    assert store.state.compacted == 9
    before = contents(store)
    await store.close()
    store = await opened()
    assert contents(store) == before
    assert store.state.compacted == 9
    assert revisions(await changes_after(store, 9)) == [10, 11]
    with pytest.raises(Gone, match="oldest revision to watch from is 9"):
        await store.watch(None, 8).next_batch(0)
    assert revisions(await store.history(key("b", kind="MeshRetry"))) == [8]
    assert await store.change_at(9) is None


async def test_compaction_finds_nothing_to_forget_in_young_history(store) -> None:
    await _some_history(store)
    assert await store.compact(["MeshRetry"]) == 0
    assert revisions(await changes_after(store, 0)) == list(range(1, 10))


async def test_the_history_of_some_kinds_is_short(store, clock) -> None:
    await _some_history(store)
    clock.advance(hours=2)
    await store.write(puts(make_resource("b", 99, kind="MeshRetry")))
    assert await store.compact(["MeshRetry", "Secret"]) == 6
    assert revisions(await store.history(key("b", kind="MeshRetry"))) == [10, 8]  # superseded just now
    clock.advance(hours=2)
    await store.write(puts(make_resource("c")))
    assert await store.compact(["MeshRetry", "Secret"]) == 8
    assert revisions(await store.history(key("b", kind="MeshRetry"))) == [10]
    assert revisions(await store.history(key("a"))) == [9, 7, 5, 3, 1]


async def test_history_is_newest_first_and_tells_who_and_why(store) -> None:
    await _some_history(store)
    changes = await store.history(key("a"), limit=3)
    assert [(c.revision, c.op, c.author, c.reason) for c in changes] == [
        (9, Op.DELETE, "tester", "a test"),
        (7, Op.UPDATE, "tester", "a test"),
        (5, Op.UPDATE, "tester", "a test"),
    ]
    assert await store.change_at(5) == changes[2]
    assert await store.change_at(500) is None
    assert await store.history(key("nobody")) == []


async def test_an_unreadable_object_hides_no_other_and_can_be_deleted(opened, backend) -> None:
    store = await opened()
    await store.write(puts(make_resource("a"), make_resource("bad"), make_resource("c")))
    await store.close()
    backend.corrupt(2)
    store = await opened()
    assert [resource.name for resource in store.state.listed("MeshTimeout")] == ["a", "c"]
    [broken] = store.state.unreadable.values()
    assert (broken.key, broken.core_name, broken.revision) == (key("bad"), "bad", 2)
    assert "revision 2 cannot be read" in broken.error
    seen = await changes_after(store, 0)
    assert [(change.resource.name, bool(change.error)) for change in seen] == [
        ("a", False),
        ("bad", True),
        ("c", False),
    ]
    with pytest.raises(AlreadyExists):
        await store.write(puts(make_resource("bad"), expect=0))
    [deleted] = await store.write(deletes(key("bad"), expect=2))
    assert deleted.op is Op.DELETE
    assert store.state.unreadable == {}
    await store.close()
    assert sorted(name.name for name in contents(await opened())) == ["a", "c"]


async def test_an_unreadable_object_can_be_overwritten_or_go_with_its_mesh(opened, backend) -> None:
    store = await opened()
    await store.write(puts(make_resource("bad"), make_resource("worse")))
    await store.close()
    backend.corrupt(1)
    backend.corrupt(2)
    store = await opened()
    [mended] = await store.write(puts(make_resource("bad", 5)))
    assert (mended.op, mended.resource.generation) == (Op.UPDATE, 1)
    assert store.state.get(key("bad")).spec == {"value": 5}
    assert revisions(await store.write(transaction_of(DeleteMesh("default")))) == [4, 5]
    assert (contents(store), store.state.unreadable) == ({}, {})


async def test_writers_share_commits_and_fail_alone(store) -> None:
    await store.write(puts(make_resource("taken")))
    bad = [
        puts(make_resource("taken"), expect=0),
        deletes(key("nobody")),
        puts(make_resource("taken", 2), expect=7),
    ]
    good = [puts(make_resource(f"n-{number}"), expect=0) for number in range(30)]
    mixed = [*good[:10], bad[0], *good[10:20], bad[1], bad[2], *good[20:]]
    results = await asyncio.gather(*map(store.write, mixed), return_exceptions=True)
    failed = [type(result) for result in results if isinstance(result, KogumaError)]
    assert failed == [AlreadyExists, NotFound, Conflict]
    written = [change.revision for result in results if isinstance(result, tuple) for change in result]
    assert written == list(range(2, 32))
    assert store.writes == 31
    assert store.batches < 10


async def test_big_objects_go_in_several_appends(store) -> None:
    big = [store.write(puts(make_resource(f"n-{number}", "x" * 3_000_000))) for number in range(6)]
    assert [change.revision for [change] in await asyncio.gather(*big)] == [1, 2, 3, 4, 5, 6]
    assert store.batches == 2


async def test_a_batch_evaluates_each_transaction_on_top_of_the_others(store) -> None:
    created, updated, refused, deleted = await asyncio.gather(
        store.write(puts(make_resource("a"), expect=0)),
        store.write(puts(make_resource("a", 2), expect=1)),
        store.write(puts(make_resource("a", 3), expect=1)),
        store.write(deletes(key("a"), expect=2)),
        return_exceptions=True,
    )
    assert revisions([*created, *updated, *deleted]) == [1, 2, 3]
    assert isinstance(refused, Conflict)


UNFIT = [
    Transaction((Put(make_resource("bad", "\ud800")),), "tester"),
    Transaction((Put(make_resource("bad", object())),), "tester"),
    Transaction((Put(make_resource("bad")),), "tester", "a NUL \0 in the reason"),
]


async def test_what_no_database_can_keep_is_refused_alone(store) -> None:
    good = [puts(make_resource(name)) for name in "abc"]
    mixed = [one for pair in zip(good, UNFIT, strict=True) for one in pair]
    answers = await asyncio.gather(*map(store.write, mixed), return_exceptions=True)
    assert revisions(change for changes in answers[::2] for change in changes) == [1, 2, 3]
    for refused in answers[1::2]:
        assert isinstance(refused, BadRequest)
        assert 'MeshTimeout "bad" (mesh default) cannot be stored' in str(refused)


async def test_a_write_goes_on_when_its_caller_is_cancelled(store) -> None:
    callers = [asyncio.create_task(store.write(puts(make_resource(f"n-{number}")))) for number in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    callers[1].cancel()
    await asyncio.wait(callers)
    await store.write(puts(make_resource("last")))
    assert sorted(name.name for name in contents(store)) == ["last", "n-0", "n-1", "n-2"]


async def test_closing_finishes_the_writes_under_way(opened) -> None:
    store = await opened()
    writes = [asyncio.create_task(store.write(puts(make_resource(f"n-{number}")))) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert revisions(change for [change] in [await write for write in writes]) == list(range(1, 21))
    with pytest.raises(Unavailable, match="nothing was written"):
        await store.write(puts(make_resource("late")))
    assert len(contents(await opened())) == 20


async def test_the_store_says_that_it_is_alive(store) -> None:
    await store.ping()
