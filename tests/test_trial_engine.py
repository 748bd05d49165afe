"""Trial engine: a dry run is asked about what is stored now, and leaves nothing behind."""

import asyncio
import threading
from random import Random

import pytest

from koguma.application.trial_engine import TrialEngine
from koguma.core import pipeline, world
from koguma.core.incremental import Db
from koguma.main import all_kinds
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Key, Resource
from koguma.store import Delete, Put, Transaction, open_store
from koguma.store.contract import Change, Op
from tests import build

KINDS = all_kinds()


@pytest.fixture
async def store():
    store = await open_store("memory://")
    yield store
    await store.close()


@pytest.fixture
def live() -> Db:
    return pipeline.load(KINDS, ControlPlaneInfo(), [])


def timeout(random: Random) -> Resource:
    return build.resource(build.timeout(f"t{random.randrange(6)}", idle=f"{random.randint(1, 3)}s"))


def objects(db: Db) -> dict[Key, object]:
    return {key: resource.spec for key, resource in world.RESOURCES.items(db)}


async def written(store, random: Random) -> None:
    stored = list(store.state.all())
    if stored and random.random() < 0.4:
        operation = Delete(random.choice(stored).key)
    else:
        operation = Put(timeout(random))
    await store.write(Transaction((operation,), author="somebody"))


def tried(store, random: Random) -> tuple[list[Change], dict[Key, object]]:
    """Some changes, and what would be stored with them."""
    after = {resource.key: resource.spec for resource in store.state.all()}
    changes = []
    for _ in range(random.randint(1, 3)):
        resource = timeout(random)
        op = Op.DELETE if resource.key in after and random.random() < 0.5 else Op.UPDATE
        changes.append(Change(0, op, resource, "", "somebody", "", ""))
        if op is Op.DELETE:
            del after[resource.key]
        else:
            after[resource.key] = resource.spec
    return changes, after


async def test_each_dry_run_is_asked_about_what_is_stored_with_its_changes(store, live):
    random, engine = Random(7), TrialEngine()
    for _ in range(60):
        for _ in range(random.randrange(4)):
            await written(store, random)
        changes, expected = tried(store, random)
        assert await engine.ask(live, store, changes, objects) == expected


async def test_after_an_error_and_a_cancellation_the_next_dry_run_is_right(store, live):
    random, engine = Random(8), TrialEngine()
    started, may_end = threading.Event(), threading.Event()

    def fails(_db: Db) -> None:
        raise ZeroDivisionError

    def waits(_db: Db) -> None:
        started.set()
        may_end.wait(30)

    for is_cancelled in (False, True, False, True):
        await written(store, random)
        changes, _ = tried(store, random)
        if is_cancelled:
            started.clear()
            may_end.clear()
            asking = asyncio.create_task(engine.ask(live, store, changes, waits))
            await asyncio.to_thread(started.wait, 30)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            with pytest.raises(ZeroDivisionError):
                await engine.ask(live, store, changes, fails)
        for _ in range(3):
            await written(store, random)
            changes, expected = tried(store, random)
            assert await engine.ask(live, store, changes, objects) == expected
            may_end.set()


async def test_a_second_dry_run_reads_only_what_has_changed(store, live):
    random, engine = Random(9), TrialEngine()
    for _ in range(20):
        await written(store, random)
    first = await engine.ask(live, store, tried(store, random)[0], lambda db: db)
    await written(store, random)
    assert await engine.ask(live, store, tried(store, random)[0], lambda db: db) is first
