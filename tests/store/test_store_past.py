"""The past of a store: what was stored at any revision, on every backend, before and after compactions."""

import random
from datetime import timedelta

import pytest
from store_cases import Clock, contents, deletes, key, make_resource, puts, transaction_of

from koguma.model.errors import Gone, NotFound
from koguma.model.resource import Key, Resource
from koguma.store import Delete, Put, State, Store, Transaction
from koguma.store.past_queries import ChangeFilter

pytestmark = pytest.mark.slow

SECRET = "Secret"
KINDS = ("MeshTimeout", "MeshRetry", "Mesh", SECRET)
HOUR = timedelta(hours=1)


def stored(state: State) -> dict[Key, Resource]:
    return {resource.key: resource for resource in state.all()}


def without(kind: str, resources: dict[Key, Resource]) -> dict[Key, Resource]:
    return {key: resource for key, resource in resources.items() if key.kind != kind}


async def lived(store: Store, clock: Clock, seed: int, steps: int = 60) -> dict[int, dict[Key, Resource]]:
    """Write at random for many hours; what was stored after each transaction, by revision."""
    chance = random.Random(seed)
    recorded = {0: contents(store)}
    for _ in range(steps):
        clock.advance(minutes=chance.choice((0, 1, 30, 200)))
        ops = []
        for name in chance.sample("abcde", chance.randint(1, 3)):
            resource = make_resource(name, chance.randint(0, 3), chance.choice(KINDS))
            exists = store.state.get(resource.key) is not None
            ops.append(Delete(resource.key) if exists and chance.random() < 0.3 else Put(resource))
        await store.write(transaction_of(*ops))
        recorded[store.state.revision] = contents(store)
    return recorded


@pytest.mark.parametrize("seed", range(2))
async def test_the_past_is_what_was_recorded_when_it_was_the_present(opened, clock, seed) -> None:
    store = await opened()
    recorded = await lived(store, clock, seed)
    for revision, resources in recorded.items():
        state = await store.state_at(revision)
        assert (stored(state), state.revision) == (resources, revision)
    await store.close()
    store = await opened()  # the log alone knows it
    for revision, resources in recorded.items():
        assert stored(await store.state_at(revision)) == resources


@pytest.mark.parametrize("seed", range(2))
async def test_a_compaction_keeps_whatever_was_current_within_the_retention(opened, clock, seed) -> None:
    """Also what is itself older: it was superseded later."""
    store = await opened()
    recorded = await lived(store, clock, seed)
    retention = timedelta(hours=12)
    oldest = await store.revision_at(clock() - retention - timedelta(seconds=1))
    compacted = await store.compact([SECRET], retention, HOUR)
    bounds = await store.history_bounds()
    assert 0 < bounds.oldest == oldest <= compacted <= bounds.oldest_short
    for revision, resources in recorded.items():
        if revision < oldest:
            with pytest.raises(Gone, match=f"the oldest revision to ask for is {oldest}"):
                await store.state_at(revision, [SECRET])
            continue
        state = stored(await store.state_at(revision, [SECRET]))
        assert without(SECRET, state) == without(SECRET, resources)
        if revision >= bounds.oldest_short:
            assert state == resources
    assert stored(await store.state_at(store.state.revision, [SECRET])) == contents(store)


async def test_of_a_revision_that_is_not_there_the_error_says_the_newest(store) -> None:
    await store.write(puts(make_resource("a")))
    with pytest.raises(NotFound, match="there is no revision 2; the newest is 1"):
        await store.state_at(2)
    assert stored(await store.state_at(0)) == {}


async def test_an_unreadable_object_of_then_is_unreadable(opened, backend) -> None:
    store = await opened()
    await store.write(puts(make_resource("a"), make_resource("b")))
    await store.write(puts(make_resource("a", 2)))
    await store.close()
    backend.corrupt(1)
    store = await opened()
    then = await store.state_at(2)
    assert [resource.name for resource in then.all()] == ["b"]
    assert [(each.key.name, each.revision) for each in then.unreadable.values()] == [("a", 1)]
    assert not store.state.unreadable


async def test_changes_are_found_by_author_object_and_transaction(store, clock) -> None:
    await store.write(puts(make_resource("a"), make_resource("b", mesh="other")))
    clock.advance(hours=1)
    written = await store.write(Transaction((Put(make_resource("a", 2)),), "ann", "because"))
    clock.advance(hours=1)
    await store.write(deletes(key("a")))

    async def found(chosen: ChangeFilter, after: int = 0, before: int = 99, limit: int = 9) -> list[int]:
        return [change.revision for change in await store.changes(chosen, after, before, limit)]

    assert await found(ChangeFilter()) == [4, 3, 2, 1]
    assert await found(ChangeFilter(), limit=2) == [4, 3]
    assert await found(ChangeFilter(), after=1, before=4) == [3, 2]
    assert await found(ChangeFilter(author="ann")) == [3]
    assert await found(ChangeFilter(without_authors=("ann", "x"))) == [4, 2, 1]
    assert await found(ChangeFilter(kind="MeshTimeout", mesh="default", core_name="a")) == [4, 3, 1]
    assert await found(ChangeFilter(mesh="other")) == await found(ChangeFilter(of_mesh="other")) == [2]
    assert await found(ChangeFilter(transaction=written[0].transaction)) == [3]
    assert await store.changes(ChangeFilter(author="ann"), 0, 99, 9) == list(written)
    at = [await store.revision_at(clock() - timedelta(minutes=m)) for m in (0, 30, 60, 90, 150)]
    assert at == [4, 3, 3, 2, 0]
    await store.write(puts(make_resource("other", kind="Mesh", mesh=""), make_resource("other")))
    assert await found(ChangeFilter(of_mesh="other")) == [5, 2], "a mesh itself, and no namesake of it"
    assert await found(ChangeFilter(mesh="")) == [5]


async def test_what_changed_between_two_revisions_is_read_as_it_was_at_either(store) -> None:
    await store.write(puts(make_resource("a"), make_resource("b"), make_resource("c")))
    await store.write(puts(make_resource("a", 2), make_resource("d")))
    await store.write(deletes(key("b")))
    before, after = [await store.changed_between(at, 3, 6) for at in (3, 6)]
    assert {key.name: change and change.resource.spec["value"] for key, change in before.items()} == {
        "a": 1,
        "b": 1,
        "d": None,
    }
    assert {key.name: change and (change.op.value, change.revision) for key, change in after.items()} == {
        "a": ("update", 4),
        "b": ("delete", 6),
        "d": ("create", 5),
    }
    assert len(await store.changed_between(3, 3, 6, limit=2)) == 2
