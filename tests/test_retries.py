"""Retries: less and less often, until nothing is left to retry or the proxy has gone."""

import asyncio

import pytest

from koguma.fleet import retries
from koguma.fleet.retries import Retries
from koguma.model.resource import Key

WEB = Key("Dataplane", "default", "default", "", "web-1")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(retries, "SECONDS_MAX", 0.03)


class Tried:
    """Tries as often as it is of use."""

    def __init__(self, n_useful):
        self.waits = []
        self.done = asyncio.Event()
        self._n_useful = n_useful
        self._at = asyncio.get_running_loop().time()

    def __call__(self, _proxy):
        now = asyncio.get_running_loop().time()
        self.waits.append(now - self._at)
        self._at = now
        if len(self.waits) <= self._n_useful:
            return True
        self.done.set()
        return False


async def test_it_waits_longer_each_time_up_to_a_limit_and_ends_when_there_is_nothing_left():
    tried = Tried(3)
    scheduled = Retries(tried)
    scheduled.schedule(WEB)
    scheduled.schedule(WEB)
    await tried.done.wait()
    assert all(wait >= least for wait, least in zip(tried.waits, (0.01, 0.02, 0.03, 0.03), strict=True))
    tried.done.clear()
    scheduled.schedule(WEB)  # it begins anew
    await tried.done.wait()
    assert len(tried.waits) == 5


async def test_who_has_gone_is_not_tried_again():
    tried = Tried(1)
    scheduled = Retries(tried)
    scheduled.schedule(WEB)
    scheduled.forget(WEB)
    scheduled.forget(WEB)
    await asyncio.sleep(0.05)
    assert tried.waits == []
