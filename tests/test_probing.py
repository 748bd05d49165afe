"""Probing: reports of proxies become states of inbounds, written once for each change."""

import asyncio
import json
from typing import Any

import pytest

from koguma.fleet import probing
from koguma.model.errors import Forbidden, NotFound, Unauthenticated
from koguma.xds.contract import ConnectRequest
from tests.build import dataplane, inbound
from tests.control_plane import LocalControlPlane

WEB = "/meshes/default/dataplanes/web-1"
PROBE = "_kuma_probe_10080"
OURS = ["feature-access-log-pipe"]


@pytest.fixture
def plane(tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "CHANGE_SECONDS", 0)
    with LocalControlPlane(tmp_path) as running:
        yield running


def probed(**fields: Any) -> dict[str, Any]:
    """A Dataplane whose inbound has a probe."""
    served = {"servicePort": 8080, "serviceProbe": {"tcp": {}}, **fields}
    return dataplane(inbound=[inbound(protocol="", **served)])


def hello(
    plane: LocalControlPlane, name: str = "web-1", shown: str | None = None, **metadata: Any
) -> ConnectRequest:
    if shown is None:
        shown = plane.dataplane_token(name="web-1", tags={"kuma.io/service": ["web"]})
    return ConnectRequest("default", name, shown, {"features": OURS, **metadata}, "1.40.0")


def let_in(plane: LocalControlPlane, said: ConnectRequest) -> Any:
    side = plane.plane._proxies
    return plane.run(side.hds_gate.connect(said))


def write(plane: LocalControlPlane, document: dict[str, Any]) -> None:
    answer = plane("PUT", WEB, document)
    assert answer.status in (200, 201), answer.body


def state(plane: LocalControlPlane) -> tuple[Any, Any]:
    (inbound,) = plane("GET", WEB).json["networking"]["inbound"]
    return inbound.get("state"), (inbound.get("health") or {}).get("ready")


def revision(plane: LocalControlPlane) -> int:
    return plane.plane.store.state.revision


def test_an_inbound_is_not_ready_until_its_application_answers(plane):
    write(plane, probed())
    assert state(plane) == ("NotReady", False)
    proxy = let_in(plane, hello(plane))
    plane.run(proxy.report({}))
    assert state(plane) == ("NotReady", False)
    plane.run(proxy.report({PROBE: True}))
    assert state(plane) == ("Ready", True)
    plane.run(proxy.report({PROBE: False}))
    assert state(plane) == ("NotReady", False)


def test_a_report_that_says_the_same_again_writes_nothing(plane):
    write(plane, probed())
    proxy = let_in(plane, hello(plane))
    plane.run(proxy.report({PROBE: True}))
    before = plane.plane.store.state.named("Dataplane", "default", "web-1").revision
    for _ in range(3):
        plane.run(proxy.report({PROBE: True}))
    assert plane.plane.store.state.named("Dataplane", "default", "web-1").revision == before


def test_writing_the_dataplane_again_leaves_the_state_that_was_found(plane):
    write(plane, probed())
    proxy = let_in(plane, hello(plane))
    plane.run(proxy.report({PROBE: True}))
    before = revision(plane)
    write(plane, probed())
    assert state(plane) == ("Ready", True)
    applied = plane("POST", "/_apply", [probed()]).json
    assert [each["action"] for each in applied["results"]] == ["unchanged"]
    write(plane, probed(servicePort=8081))
    assert state(plane) == ("Ready", True)
    assert revision(plane) > before


def test_a_proxy_that_comes_back_finds_its_dataplane_as_it_was_reported(plane):
    fleet = plane.plane._proxies.fleet
    brought = {"dataplane.resource": json.dumps(probed())}
    plane.run(fleet.connect(hello(plane, **brought)))
    assert state(plane) == ("NotReady", False)
    proxy = let_in(plane, hello(plane))
    plane.run(proxy.report({PROBE: True}))
    plane.run(fleet.connect(hello(plane, **brought)))
    assert state(plane) == ("Ready", True)
    later = {**probed(), "labels": {"koguma.io/instance": "another-run"}}
    plane.run(fleet.connect(hello(plane, **{"dataplane.resource": json.dumps(later)})))
    assert state(plane) == ("NotReady", False), "what an earlier run found says nothing about this one"


def test_what_others_write_meanwhile_is_not_lost(plane):
    write(plane, probed())
    proxy = let_in(plane, hello(plane))
    store = plane.plane.store
    write_once, times = store.write, []

    async def late(transaction):
        if not times:
            times.append(1)
            labelled = {**probed(), "labels": {"team": "blue"}}
            await asyncio.to_thread(write, plane, labelled)
        return await write_once(transaction)

    store.write = late
    try:
        plane.run(proxy.report({PROBE: True}))
    finally:
        store.write = write_once
    assert state(plane) == ("Ready", True)
    assert plane("GET", WEB).json["labels"]["team"] == "blue"


def test_nobody_reports_for_another_or_without_a_token(plane):
    write(plane, probed())
    with pytest.raises(Unauthenticated):
        let_in(plane, hello(plane, shown="rubbish"))
    with pytest.raises(Unauthenticated):
        let_in(plane, hello(plane, shown=""))
    with pytest.raises(Forbidden):
        let_in(plane, hello(plane, name="web-2"))
    shown = plane.dataplane_token(tags={"kuma.io/service": ["shop"]})
    with pytest.raises(Forbidden):
        let_in(plane, hello(plane, shown=shown))


def test_a_dataplane_that_comes_on_the_other_stream_is_waited_for(plane, monkeypatch):
    said = hello(plane, **{"dataplane.resource": json.dumps(probed())})
    side = plane.plane._proxies

    async def both() -> Any:
        waiting = asyncio.create_task(side.hds_gate.connect(said))
        await asyncio.sleep(0)
        await side.fleet.connect(said)
        return await waiting

    assert [each.name for each in plane.run(both()).checks()] == [PROBE]
    plane("DELETE", WEB)
    monkeypatch.setattr(probing, "REGISTRATION_SECONDS", 0.05)
    with pytest.raises(NotFound):
        let_in(plane, said)
    with pytest.raises(NotFound):
        let_in(plane, hello(plane))


def test_envoy_itself_is_checked_where_its_agent_is_kumas(plane):
    write(plane, probed())
    ours = let_in(plane, hello(plane, **{"dataplane.admin.port": "9901"}))
    assert [each.name for each in ours.checks()] == [PROBE]
    kumas = let_in(plane, hello(plane, features=[], **{"dataplane.admin.port": "9901"}))
    envoy, probe = kumas.checks()
    assert (envoy.name, envoy.address, envoy.port) == ("_kuma_envoy_admin", "127.0.0.1", 9901)
    assert (envoy.path, probe.name) == ("/ready", PROBE)
    plane.run(kumas.report({PROBE: True, envoy.name: False}))
    assert state(plane) == ("NotReady", False)
    plane.run(kumas.report({PROBE: True, envoy.name: True}))
    assert state(plane) == ("Ready", True)


def test_people_hear_of_an_inbound_that_is_not_ready(plane):
    brought = {"dataplane.resource": json.dumps(probed())}
    plane.run(plane.plane._proxies.fleet.connect(hello(plane, **brought)))
    (proxy,) = plane("GET", "/_proxies").json["items"]
    (text,) = proxy["notReady"]
    assert text.startswith("inbound[port=10080,svc=web] is not ready: its application has not answered on")
    (port,) = plane("GET", f"{WEB}/_layout").json["inbounds"]
    assert port["state"] == "NotReady"
    plane.run(let_in(plane, hello(plane)).report({PROBE: True}))
    assert plane("GET", "/_proxies").json["items"][0]["notReady"] == []
