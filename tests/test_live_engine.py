"""Live engine: one user of the database at a time, whatever is cancelled."""

import asyncio
import threading

import pytest

from koguma.application.live_engine import CHANGES_MAX, LiveEngine
from koguma.core import match
from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.store import Put, Transaction, open_store
from tests import build


@pytest.fixture
async def store():
    store = await open_store("memory://")
    yield store
    await store.close()


@pytest.mark.parametrize("n_cancelled", [1, 2])
async def test_work_that_is_cancelled_keeps_the_database_until_its_thread_has_ended(store, n_cancelled):
    engine = LiveEngine(store, Kinds(KINDS), ControlPlaneInfo())
    started, may_end = threading.Event(), threading.Event()

    def work(_db):
        started.set()
        may_end.wait(30)

    working = asyncio.create_task(engine.beside(work))
    await asyncio.to_thread(started.wait, 30)
    for _ in range(n_cancelled):
        working.cancel()
        await asyncio.sleep(0)
    asking = asyncio.create_task(engine.database())
    await asyncio.sleep(0.05)
    assert not asking.done()
    may_end.set()
    await asking
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_answers_that_nobody_uses_any_more_are_dropped_after_some_changes(store):
    engine = LiveEngine(store, Kinds(KINDS), ControlPlaneInfo())
    n_memos = []
    for number in range(3 * CHANGES_MAX + 5):
        written = build.resource(build.timeout(idle=f"{number + 1}s"))
        await store.write(Transaction((Put(written),), author="somebody"))
        db = await engine.database()
        match.gateway_of(db, "default", "east", (("version", str(number)),))  # another question each time
        match.gateway_of(db, "default", "west", ())  # and one that is in use
        n_memos.append(db.n_memos)
    assert max(n_memos) <= 2 * CHANGES_MAX + 10
    assert n_memos[-1] < 1.5 * CHANGES_MAX
    assert db.runs["match.gateway_of"] == len(n_memos) + 1
