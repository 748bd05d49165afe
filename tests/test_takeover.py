"""Takeover: a proxy gets nobody else's Dataplane, through none of the ways in."""

import asyncio
import http.client
import json
import ssl
from contextlib import closing

import pytest
from msgspec.structs import replace

from koguma.model.errors import Conflict, Forbidden, Invalid
from koguma.model.labels import REGISTERED_BY
from koguma.store.contract import Put, Transaction
from koguma.xds.contract import ConnectRequest
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.waiting import until

SERVICE = "kuma.io/service"
PAY = "/meshes/default/dataplanes/pay-1"


@pytest.fixture
def plane(tmp_path, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.05)
    with LocalControlPlane(tmp_path) as running:
        yield running


def token(plane, service, **claims):
    return plane.dataplane_token(tags={SERVICE: [service]}, **claims)


def payments(service="payments", **fields):
    return dataplane("pay-1", service, **fields)


def said_hello(shown, brings=None):
    metadata = {"dataplane.resource": json.dumps(brings)} if brings else {}
    return ConnectRequest("default", "pay-1", shown, metadata, "1.40.0")


def connect(plane, shown, brings=None):
    return plane.run(plane.plane._proxies.fleet.connect(said_hello(shown, brings)))


def check(plane, shown, brings=None):
    return plane.run(plane.plane._proxies.hds_gate.connect(said_hello(shown, brings)))


def bootstrap(plane, shown, brings=None):
    asked = {"mesh": "default", "name": "pay-1", "workdir": "/run/x", "dataplaneToken": shown}
    if brings:
        asked["dataplaneResource"] = json.dumps(brings)
    trusted = ssl.create_default_context(cafile=str(plane.data_dir / "ca.pem"))
    port = plane.plane.ports["dp"]
    with closing(http.client.HTTPSConnection("127.0.0.1", port, context=trusted)) as connection:
        connection.request("POST", "/bootstrap", json.dumps(asked), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def stored(plane):
    return plane.plane.store.state.named("Dataplane", "default", "pay-1")


def write(plane, document):
    answer = plane("PUT", PAY, document)
    assert answer.status in (200, 201), answer.body


def settled(plane):
    """Whatever leaving proxies start has been done by then."""

    async def wait():
        fleet = plane.plane._proxies.fleet
        await asyncio.gather(*fleet._deregistrations.values(), return_exceptions=True)

    plane.run(wait())


def test_a_token_for_tags_takes_over_no_dataplane_of_an_operator(plane):
    write(plane, payments())
    before, owner = stored(plane), connect(plane, token(plane, "payments"))
    attacker = token(plane, "web")
    for attempt in (connect, check):
        with pytest.raises(Forbidden):
            attempt(plane, attacker, payments("web"))
    assert bootstrap(plane, attacker, payments("web"))[0] == 403
    assert stored(plane) == before
    assert plane.plane._proxies.fleet.roster.get(owner.key) is owner


def test_a_token_for_tags_takes_over_no_dataplane_of_another_proxy(plane):
    owner = connect(plane, token(plane, "payments"), payments())
    before, attacker = stored(plane), token(plane, "web")
    with pytest.raises(Forbidden) as refused:
        connect(plane, attacker, payments("web"))
    assert 'the Dataplane "pay-1" that is stored in mesh "default" belongs to another' in str(refused.value)
    assert "koguma delete dataplane pay-1 -m default" in str(refused.value)
    with pytest.raises(Forbidden):
        check(plane, attacker, payments("web"))
    status, text = bootstrap(plane, attacker, payments("web"))
    assert (status, "belongs to another" in text) == (403, True)
    assert stored(plane) == before
    assert plane.plane._proxies.fleet.roster.get(owner.key) is owner


def test_an_operators_dataplane_is_not_replaced_by_its_own_proxy_either(plane):
    write(plane, payments())
    before, shown = stored(plane), token(plane, "payments")
    with pytest.raises(Invalid) as refused:
        connect(plane, shown, payments(port=10081))
    assert 'an operator wrote the Dataplane "pay-1" of mesh "default"' in str(refused.value)
    assert "start the proxy with --name pay-1 alone" in str(refused.value)
    status, text = bootstrap(plane, shown, payments(port=10081))
    assert (status, "an operator wrote the Dataplane" in text) == (422, True)
    assert stored(plane) == before


def test_a_proxy_that_brings_what_an_operator_wrote_comes_in_and_leaves_it_there(plane):
    write(plane, payments(labels={"team": "pay"}))
    before, shown = stored(plane), token(plane, "payments")
    brought = payments(labels={"koguma.io/instance": "run-1"})
    assert bootstrap(plane, shown, brought)[0] == 200
    connection = connect(plane, shown, brought)
    assert not connection.registered
    assert stored(plane) == before
    assert REGISTERED_BY not in stored(plane).labels
    plane.run(connection.close())
    settled(plane)
    assert stored(plane) == before


def test_what_an_operator_writes_while_a_proxy_registers_stays_the_operators(plane):
    """The store is written between the look and the write: the second look must ask the same questions."""
    shown, fleet = token(plane, "payments"), plane.plane._proxies.fleet
    theirs = connect(plane, shown, payments())
    plane.run(theirs.close())
    until(lambda: stored(plane) is None)
    write_, times = plane.plane.store.write, []

    async def late(transaction):
        if transaction.reason == "proxy connected" and not times:
            times.append(1)
            (put,) = (each for each in transaction.ops if isinstance(each, Put))
            own = {name: value for name, value in put.resource.labels.items() if name != REGISTERED_BY}
            moved = {**put.resource.spec["networking"], "address": "10.0.0.9"}
            changed = {**put.resource.spec, "networking": moved}
            await write_(Transaction((Put(replace(put.resource, labels=own, spec=changed)),), "operator"))
            raise Conflict("somebody wrote first")
        return await write_(transaction)

    plane.plane.store.write = late
    with pytest.raises(Invalid):
        connect(plane, shown, payments())
    assert times
    assert fleet.roster.get(stored(plane).key) is None
    assert REGISTERED_BY not in stored(plane).labels
