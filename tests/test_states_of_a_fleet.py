"""States of proxies over two control planes on one PostgreSQL: one is killed, and the store is away."""

import os
import signal
import subprocess
import sys
import time
from itertools import groupby

import pytest

from koguma.fleet.registration import CONNECTED_TO
from koguma.fleet.sweep import Sweep
from koguma.model.resource import Key
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.kube_client import KubeClient
from tests.kumactl import Kumactl
from tests.proxy_connections import connect, next_offer
from tests.proxy_connections import synced as synced_with
from tests.waiting import until

pytestmark = pytest.mark.slow
KEY = Key("Dataplane", "default", "default", "", "web-1")


@pytest.fixture(scope="module")
def store(postgres):
    return postgres.database()


@pytest.fixture(scope="module")
def pair(store, tmp_path_factory):
    with (
        LocalControlPlane(tmp_path_factory.mktemp("a"), store=store) as first,
        LocalControlPlane(tmp_path_factory.mktemp("b"), store=store) as second,
    ):
        yield first, second


def shown(plane):
    answer = plane("GET", "/_proxies").json
    return {each["name"]: (each["state"], each["instance"]) for each in answer["items"]}


def metric(plane, name):
    lines = plane("GET", "/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def instance(plane):
    return plane.plane._proxies.fleet.context.about.instance_id


def states(plane):
    return plane.plane._proxies.states


async def synced(connection):
    secrets = {name: each.version for name, each in connection.offered.of_type("secret").items()}
    connection.report(synced_with(connection._offer, acked_versions={"secret": secrets}))


@pytest.fixture
def joined(pair):
    """Lets proxies connect; at the end of the test all of them are gone, and what they brought."""
    connections = []

    def joined(plane, name):
        connection = connect(plane, dataplane(name), name=name)
        connections.append((plane, connection))
        plane.run(next_offer(connection))
        plane.run(synced(connection))
        return connection

    yield joined
    for plane, connection in connections:
        plane.run(connection.close())
    for item in pair[0]("GET", "/meshes/default/dataplanes").json["items"]:
        pair[0]("DELETE", f"/meshes/default/dataplanes/{item['name']}")
    until(lambda: all(shown(plane) == {} for plane in pair))


def test_each_shows_the_proxies_of_both_and_they_follow_what_happens(pair, joined):
    first, second = pair
    one, other = joined(first, "web-1"), joined(second, "web-2")
    whole = {"web-1": ("synced", instance(first)), "web-2": ("synced", instance(second))}
    for plane in pair:
        until(lambda plane=plane: shown(plane) == whole)
    revisions = {each["revision"] for each in second("GET", "/_proxies").json["items"]}
    until(lambda: states(first).of(KEY).revision == states(second).of(KEY).revision >= max(revisions))

    def control_planes():
        checks = {each["name"]: each for each in first("GET", "/_check").json["checks"]}
        assert checks["proxies"]["message"] == "2 connected"
        return checks["control planes"]

    # On a busy machine the sign of life of the other one may be late for a moment.
    until(lambda: control_planes()["status"] == "ok")
    until(lambda: control_planes()["message"].startswith("2 on this store:"))
    assert f"{instance(second)} (" in control_planes()["message"]
    figures = ("koguma_proxies", "koguma_fleet_proxies", "koguma_fleet_control_planes", "koguma_fleet_known")
    until(lambda: [metric(first, name) for name in figures] == [1, 2, 2, 1])
    second.run(other.close())
    until(lambda: shown(first) == {"web-1": ("synced", instance(first))})
    moved = joined(second, "web-1")
    until(lambda: shown(first) == {"web-1": ("synced", instance(second))}, "the later connection counts")
    first.run(one.close())
    until(lambda: shown(first) == {"web-1": ("synced", instance(second))})
    assert "web-1" in {each["name"] for each in second("GET", "/_proxies?mesh=default").json["items"]}
    second.run(moved.close())
    until(lambda: shown(first) == {})


def test_what_a_proxy_brought_stays_when_it_has_moved_before_that_is_noted(pair, joined, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 1.0)
    monkeypatch.setattr("koguma.fleet.registration.CLAIM_SECONDS", 60.0)
    first, second = pair
    claiming = second.plane._proxies.fleet._registration._claiming
    until(lambda: claiming is None or claiming.done(), "nothing is being noted")
    before = joined(first, "web-7")
    until(lambda: second("GET", "/meshes/default/dataplanes/web-7").status == 200)
    after = joined(second, "web-7")
    until(lambda: shown(first)["web-7"][1] == instance(second))
    first.run(before.close())
    tasks = first.plane._proxies.fleet._deregistrations
    assert before.key in tasks
    until(lambda: before.key not in tasks)
    stored = second.plane.store.state.named("Dataplane", "default", "web-7")
    assert stored.annotations[CONNECTED_TO] == instance(first)
    second.run(after.close())
    until(lambda: second("GET", "/meshes/default/dataplanes/web-7").status == 404)


def test_insights_are_about_the_proxies_of_all_control_planes(pair, joined):
    connections = [joined(plane, name) for plane, name in zip(pair, ("web-1", "web-2"), strict=True)]
    own = {"web-1": instance(pair[0]), "web-2": instance(pair[1])}

    def connected_to(plane):
        insights = plane("GET", "/meshes/default/dataplane-insights").json["items"]
        return {each["name"]: each["subscriptions"][-1]["controlPlaneInstanceId"] for each in insights}

    for plane in pair:
        kumactl = Kumactl(plane)
        until(lambda kumactl=kumactl: kumactl.meshes() == {"default": "2/2"})
        until(lambda kumactl=kumactl: kumactl.services() == {"web": ("online", "2/2")})
        until(lambda kumactl=kumactl: {row["status"] for row in kumactl.dataplanes().values()} == {"Online"})
        until(lambda plane=plane: connected_to(plane) == own)
        serving = plane("GET", "/zone-insights/default").json["subscriptions"]
        assert {each["zoneInstanceId"] for each in serving} == set(own.values())
    for plane, connection in zip(pair, connections, strict=True):
        plane.run(connection.close())
    until(lambda: Kumactl(pair[0]).meshes()["default"].startswith("0/"))


def test_what_a_proxy_brought_stays_when_it_goes_and_comes_back_at_once(pair, joined, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 2.0)  # until states are known elsewhere
    monkeypatch.setattr("koguma.fleet.registration.CLAIM_SECONDS", 0.2)
    first, second = pair
    before = joined(first, "web-8")
    until(lambda: second("GET", "/meshes/default/dataplanes/web-8").status == 200)
    away = joined(second, "web-8")
    first.run(before.close())
    after = joined(first, "web-8")
    second.run(away.close())
    fleets = [plane.plane._proxies.fleet for plane in pair]
    until(lambda: not fleets[1]._deregistrations and not fleets[1]._registration._claims)
    stored = second.plane.store.state.named("Dataplane", "default", "web-8")
    assert stored.annotations[CONNECTED_TO] == instance(first), "who left it does not claim it"
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.1)
    first.run(after.close())
    until(lambda: second("GET", "/meshes/default/dataplanes/web-8").status == 404)


def test_a_service_counts_the_proxies_of_all_control_planes(pair, joined):
    first, second = pair
    connections = [joined(first, "web-1"), joined(second, "web-2")]

    def counts(plane):
        service = plane("GET", "/meshes/default/meshservices/web").json
        return (service.get("status") or {}).get("dataplaneProxies")

    both = {"connected": 2, "healthy": 2, "total": 2}
    until(lambda: counts(first) == both)
    time.sleep(1.5)  # longer than counts are kept back: nobody writes another one
    assert counts(first) == both
    second.run(connections[1].close())
    until(lambda: counts(first) and counts(first)["connected"] == 1)


@pytest.mark.expected_errors("store")
def test_while_the_database_is_away_the_last_known_states_are_shown_with_a_warning(pair, joined, postgres):
    first, second = pair
    connections = [joined(first, "web-1"), joined(second, "web-2")]
    until(lambda: set(shown(first)) == {"web-1", "web-2"})
    postgres.stop(at_once=True)
    try:
        until(lambda: "warning" in first("GET", "/_proxies").json)
        answer = first("GET", "/_proxies").json
        assert {each["name"] for each in answer["items"]} == {"web-1", "web-2"}
        assert "proxies of other control planes are shown as they were then" in answer["warning"]
        assert not states(first).is_known
        checks = {each["name"]: each for each in first("GET", "/_check").json["checks"]}
        assert checks["control planes"]["message"] == answer["warning"]
        assert metric(first, "koguma_fleet_known") == 0
    finally:
        postgres.start()
    until(lambda: "warning" not in first("GET", "/_proxies").json)
    second.run(connections[1].close())
    until(lambda: set(shown(first)) == {"web-1"})


def test_control_planes_do_not_contradict_each_other_about_the_proxies_of_a_gateway(pair):
    first, second = pair
    gateways = KubeClient(first, "edge", "gateway.networking.k8s.io/v1", "Gateway")
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    assert gateways.create("edge", spec={"gatewayClassName": "koguma", "listeners": listeners}).status == 201

    def programmed(resource):
        conditions = (resource.status or {}).get("conditions") or ()
        return next((each["status"] for each in conditions if each["type"] == "Programmed"), "")

    def stored():
        return next(each for each in first.plane.store.state.listed("Gateway.gateway.networking.k8s.io"))

    until(lambda: programmed(stored()) == "False")
    own = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge_edge_svc"}}
    proxy = {"type": "Dataplane", "mesh": "default", "name": "edge-1"}
    brought = {**proxy, "networking": {"address": "192.0.2.7", "gateway": own}}
    token = second.dataplane_token(tags={"kuma.io/service": ["edge_edge_svc"]})
    connection = connect(second, brought, name="edge-1", shown=token)
    until(lambda: programmed(stored()) == "True")
    until(lambda: "edge-1" in shown(first))
    second.run(connection.close())
    until(lambda: programmed(stored()) == "False")
    changes = first.run(first.plane.store.history(stored().key))
    said = [programmed(change.resource) for change in reversed(changes)]
    assert [word for word, _ in groupby(said) if word] == ["Unknown", "False", "True", "False"]
    assert first("DELETE", "/meshes/default/dataplanes/edge-1").status in (200, 404)


KILLED = """
import sys
from pathlib import Path
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect
with LocalControlPlane(Path(sys.argv[1]), store=sys.argv[2]) as plane:
    connect(plane, dataplane("web-9"), name="web-9")
    print("connected", flush=True)
    sys.stdin.read()
"""


def test_the_proxies_of_a_control_plane_that_is_killed_are_disconnected_soon(pair, store, tmp_path):
    first, _ = pair
    command = [sys.executable, "-c", KILLED, str(tmp_path), store]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"connected\n"
        until(lambda: "web-9" in shown(first))
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    until(lambda: "web-9" not in shown(first))
    warnings = [each["message"] for each in first("GET", "/_check").json["checks"] if each["status"] != "ok"]
    assert any("1 of its 1 proxies are connected to no other control plane" in text for text in warnings)
    state = states(first).of(KEY._replace(name="web-9"))
    (gone,) = [each for each in states(first).instances() if each.id == state.instance]
    assert (gone.is_gone, gone.n_proxies) == (True, 1)
    assert state.disconnected_at >= state.connected_at
    fleet, times = first.plane._proxies.fleet, iter((0.0, 91.0))
    sweep = Sweep(fleet._registration, fleet.states, lambda: next(times))
    first.run(sweep.round())
    assert first("GET", "/meshes/default/dataplanes/web-9").status == 200, "it may come back"
    states(first)._mirror.instances[state.instance].is_remembered = False  # as after a minute
    first.run(sweep.round())
    assert first("GET", "/meshes/default/dataplanes/web-9").status == 404


def test_whoever_decides_about_cas_counts_the_proxies_of_the_other_control_plane(pair, joined):
    first, second = pair
    mesh = first("GET", "/meshes/default").json
    backends = [{"name": "ca-1", "type": "builtin"}]
    connections = [joined(first, "web-1"), joined(second, "web-2")]
    with_mtls = {**mesh, "mtls": {"enabledBackend": "ca-1", "backends": backends}}
    assert first("PUT", "/meshes/default", with_mtls).status == 200
    until(lambda: all(each.offered.of_type("secret") for each in connections))

    def counted(plane):
        holders = states(plane).ca_holders("default")
        return holders.n_proxies, list(holders.n_trusting.values()), list(holders.n_presenting.values())

    until(lambda: counted(first) == (1, [], [1]))
    service = "/meshes/default/meshservices/web"

    def tls_status():
        return (first("GET", service).json.get("status") or {}).get("tls")

    until(lambda: tls_status() == {"status": "NotReady"})
    first.run(synced(connections[0]))
    second.run(synced(connections[1]))
    until(lambda: counted(first) == counted(second) == (1, [1], [1]))
    until(lambda: tls_status() == {"status": "Ready"})
    assert first("PUT", "/meshes/default", mesh).status == 200
