"""What a control plane holds of its peers is what its store says, however it is kept up to date."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter

import pytest

from koguma.model.resource import Key, Resource
from koguma.store import Delete, Put, Store, Transaction, open_store
from koguma.sync import held_objects, mapping
from koguma.sync.held_objects import HeldObjects, HeldSnapshot
from koguma.sync.protocol import sums
from koguma.sync.protocol.messages import HeldEntry

ZONES = ("east", "west", "")


def _resource(name: str, zone: str, value: int = 0) -> Resource:
    return Resource(
        kind="MeshTimeout",
        mesh="default",
        zone=zone,
        name=name,
        core_name=f"{name}-{zone}",
        spec={"v": value},
    )


def _from_scratch(store: Store, zone: str) -> HeldSnapshot:
    hashes = {
        each.key: sums.content_hash(mapping.content(each)) for each in store.state.all() if each.zone == zone
    }
    return HeldSnapshot(hashes, sums.packed(HeldEntry(*each) for each in hashes.items()))


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Store, HeldObjects]]:
    store = await open_store("memory://")
    held = HeldObjects(store, attrgetter("zone"), lambda resource: bool(resource.zone), mapping.content)
    try:
        yield store, held
    finally:
        await store.close()


async def _write(store: Store, dice: random.Random, number: int) -> None:
    operations: dict[Key, Put | Delete] = {}
    for _ in range(number):
        resource = _resource(f"n{dice.randrange(30)}", dice.choice(ZONES), dice.randrange(1000))
        is_there = store.state.get(resource.key) is not None
        operations[resource.key] = Delete(resource.key) if is_there and dice.random() < 0.4 else Put(resource)
    await store.write(Transaction(tuple(operations.values()), "test"))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("followed", [0, 3, 1000])
async def test_after_any_writes_it_is_as_if_computed_from_scratch(
    seed: int, followed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_objects, "CHANGES_MAX", followed)
    dice = random.Random(seed)
    async with _opened() as (store, held):
        for _ in range(8):
            await _write(store, dice, dice.randrange(1, 12))
            for zone in ("east", "west", "nowhere"):
                assert await held.of(zone) == _from_scratch(store, zone)


async def test_writes_during_a_pass_over_all_objects_are_not_missed() -> None:
    async with _opened() as (store, held):
        puts = tuple(Put(_resource(f"n{number}", "east")) for number in range(5 * held_objects.STEP))
        await store.write(Transaction(puts, "test"))
        asked = asyncio.create_task(held.of("east"))
        await asyncio.sleep(0)
        first, last = puts[0].resource.key, puts[-1].resource
        await store.write(Transaction((Delete(first), Put(_resource(last.name, "east", 7))), "test"))
        assert await asked == _from_scratch(store, "east")


async def test_only_what_changed_is_hashed_again() -> None:
    hashed: list[str] = []

    def content(resource: Resource) -> bytes:
        hashed.append(resource.name)
        return mapping.content(resource)

    async with _opened() as (store, _):
        held = HeldObjects(store, attrgetter("zone"), lambda resource: bool(resource.zone), content)
        puts = tuple(Put(_resource(f"n{number}", "east")) for number in range(10))
        await store.write(Transaction(puts, "test"))
        await held.of("east")
        await store.write(Transaction((Put(_resource("n3", "east", 1)),), "test"))
        hashed.clear()
        for zone in ("east", "west", "east"):
            await held.of(zone)
        assert hashed == ["n3"]
