"""Proxies that become ready are stored: one at once, many together, and none is lost."""

import asyncio

import msgspec
import pytest

from koguma.fleet.ready_writer import REASON
from koguma.model import labels
from koguma.store.contract import Put, Transaction
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer, synced
from tests.waiting import until

NAMES = [f"web-{number}" for number in range(6)]


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        yield running


@pytest.fixture
def connections(plane):
    brought = [dataplane(name, port=10080 + number) for number, name in enumerate(NAMES)]
    return [connect(plane, each, each["name"]) for each in brought]


def stored(plane, name):
    return plane.plane.store.state.named("Dataplane", "default", name)


def are_ready(plane):
    return all(labels.READY in stored(plane, name).annotations for name in NAMES)


async def acknowledge(connections):
    """All of them acknowledge what they are offered, in the same moment."""
    offers = [await next_offer(connection) for connection in connections]
    for connection, offer in zip(connections, offers, strict=True):
        connection.report(synced(offer))


def transactions_since(plane, revision):
    async def read():
        return await plane.plane.store.watch(frozenset({"Dataplane"}), revision).next_batch(0)

    return {change.transaction for change in plane.run(read()) if change.reason == REASON}


def test_those_that_become_ready_together_are_stored_together(plane, connections):
    revision = plane.plane.store.state.revision
    plane.run(acknowledge(connections))
    until(lambda: are_ready(plane))
    assert len(transactions_since(plane, revision)) == 1


def test_where_one_was_changed_in_between_all_are_stored(plane, connections):
    store = plane.plane.store

    async def acknowledge_after_a_write():
        offers = [await next_offer(connection) for connection in connections]
        web = stored(plane, NAMES[0])
        changed = msgspec.structs.replace(web, annotations={**web.annotations, "team": "a"})
        write = asyncio.create_task(store.write(Transaction((Put(changed, web.revision),), "somebody")))
        for connection, offer in zip(connections, offers, strict=True):
            connection.report(synced(offer))
        await write

    revision = store.state.revision
    plane.run(acknowledge_after_a_write())
    until(lambda: are_ready(plane))
    assert stored(plane, NAMES[0]).annotations["team"] == "a"
    assert len(transactions_since(plane, revision)) == len(NAMES)  # one by one


def test_one_that_left_meanwhile_is_not_stored(plane, connections):
    async def acknowledge_and_leave():
        await acknowledge(connections)
        await connections[0].close()

    plane.run(acknowledge_and_leave())
    until(lambda: all(labels.READY in stored(plane, name).annotations for name in NAMES[1:]))
    assert labels.READY not in stored(plane, NAMES[0]).annotations
