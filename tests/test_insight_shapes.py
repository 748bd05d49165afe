"""Shapes of insights, as tables: from Dataplanes and states of proxies to what Kuma's tools read."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from koguma.fleet.insights import insights as computed
from koguma.fleet.insights import proxy_health, proxy_insight, zone_insight
from koguma.fleet.insights.insights import Insights
from koguma.fleet.insights.mesh_insight import MeshCounts
from koguma.fleet.proxy_state import CertificateState, InstanceState, ProxyState, ProxyVersions
from koguma.main import all_kinds
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.resource import Key, Resource
from koguma.store.log import LogSnapshot
from koguma.store.state import State
from koguma.xds.contract import ResponseCount
from tests.build import inbound

MOMENT = datetime(2026, 11, 1, 12, 0, 0, 250_000, UTC)
READY, NOT_READY, IGNORED = {}, {"state": "NotReady"}, {"state": "Ignored"}
UNHEALTHY = {"health": {"ready": False}}


def stored(name, labels=None, **networking):
    spec = {"networking": {"address": "127.0.0.1", **networking}}
    return Resource(
        kind="Dataplane",
        mesh="default",
        zone="east",
        name=name,
        core_name=name,
        labels=labels or {},
        spec=spec,
    )


def serving(name, *states, service="web"):
    return stored(name, inbound=[inbound(service, 80 + number, **each) for number, each in enumerate(states)])


def seen(dataplane, **fields):
    return ProxyState(
        key=dataplane.key, core_name=dataplane.core_name, instance="cp-1", connected_at=MOMENT, **fields
    )


@pytest.mark.parametrize(
    ("networking", "expected"),
    [
        ({}, "online"),  # a client: Kuma calls it offline
        ({"inbound": []}, "online"),
        ({"inbound": [READY]}, "online"),
        ({"inbound": [READY, READY]}, "online"),
        ({"inbound": [READY, NOT_READY]}, "partiallyDegraded"),
        ({"inbound": [READY, UNHEALTHY]}, "partiallyDegraded"),
        ({"inbound": [NOT_READY, UNHEALTHY]}, "offline"),
        ({"inbound": [READY, IGNORED]}, "online"),
        ({"inbound": [IGNORED]}, "online"),
        ({"inbound": [NOT_READY], "listeners": [READY]}, "partiallyDegraded"),
        ({"listeners": [NOT_READY]}, "offline"),
        ({"gateway": {}, "inbound": [NOT_READY]}, "online"),
        ({"gateway": {"type": "BUILTIN"}}, "online"),
        (None, "online"),
    ],
)
def test_the_health_of_a_proxy(networking, expected):
    spec = {"networking": networking}
    assert proxy_health.of_dataplane(spec, is_connected=True).value == expected
    assert proxy_health.of_dataplane(spec, is_connected=False).value == "offline"


def test_the_insight_of_a_proxy_that_nobody_has_seen_is_empty():
    assert proxy_insight.of_dataplane(None) == {}


def test_a_subscription_has_text_for_numbers_and_nothing_for_zeros():
    dataplane = serving("web-1", READY)
    versions = ProxyVersions(
        "2.13.10", envoy="1.36.8", is_envoy_compatible=False, dependencies={"coredns": "1"}
    )
    state = seen(
        dataplane,
        subscription="s-1",
        disconnected_at=MOMENT + timedelta(hours=1),
        versions=versions,
        responses={"total": ResponseCount(12, 10, 2), "cds": ResponseCount(3, 3)},
        responses_at=MOMENT + timedelta(seconds=1),
    )
    assert proxy_insight.of_dataplane(state) == {
        "subscriptions": [
            {
                "id": "s-1",
                "controlPlaneInstanceId": "cp-1",
                "connectTime": "2026-11-01T12:00:00.250Z",
                "disconnectTime": "2026-11-01T13:00:00.250Z",
                "status": {
                    "lastUpdateTime": "2026-11-01T12:00:01.250Z",
                    "total": {"responsesSent": "12", "responsesAcknowledged": "10", "responsesRejected": "2"},
                    "cds": {"responsesSent": "3", "responsesAcknowledged": "3"},
                    "eds": {},
                    "lds": {},
                    "rds": {},
                },
                "version": {
                    "kumaDp": {"version": "2.13.10", "kumaCpCompatible": True},
                    "envoy": {"version": "1.36.8"},
                    "dependencies": {"coredns": "1"},
                },
            }
        ]
    }


def test_only_a_certificate_that_the_proxy_has_is_shown():
    dataplane = serving("web-1", READY)
    certificate = CertificateState(
        "default",
        expires_at=MOMENT + timedelta(days=1),
        issued_at=MOMENT,
        n_issued=2,
        backend="ca-1",
        backends=("ca-1", "ca-2"),
    )
    shown = proxy_insight.of_dataplane(seen(dataplane, certificates=(certificate,)))
    assert shown["mTLS"] == {
        "certificateExpirationTime": "2026-11-02T12:00:00.250Z",
        "lastCertificateRegeneration": "2026-11-01T12:00:00.250Z",
        "certificateRegenerations": 2,
        "issuedBackend": "ca-1",
        "supportedBackends": ["ca-1", "ca-2"],
    }
    for other in (
        CertificateState("default", backends=("ca-1",)),
        msgspec.structs.replace(certificate, mesh="x"),
    ):
        assert "mTLS" not in proxy_insight.of_dataplane(seen(dataplane, certificates=(other,)))


@pytest.mark.parametrize(
    ("proxies", "status", "counts"),
    [
        ([serving("a", READY), serving("b", READY)], "online", {"total": 2, "online": 2}),
        (
            [serving("a", READY), serving("b", NOT_READY)],
            "partially_degraded",
            {"total": 2, "online": 1, "offline": 1},
        ),
        ([serving("a", NOT_READY)], "offline", {"total": 1, "offline": 1}),
        ([serving("a", READY, NOT_READY)], "partially_degraded", {"total": 1}),
        ([serving("a", READY, IGNORED)], "online", {"total": 1, "online": 1}),
    ],
)
def test_the_insight_of_a_service(proxies, status, counts):
    mesh = MeshCounts()
    for dataplane in proxies:
        mesh.add(dataplane, seen(dataplane))
    assert mesh.services["web"].spec == {"status": status, "dataplanes": counts, "zones": ["east"]}


@pytest.mark.parametrize(
    ("dataplane", "services"),
    [
        (stored("a", inbound=[inbound("web", 80), inbound("admin", 81)]), {"web": None, "admin": None}),
        (stored("a", inbound=[inbound("web", 80), inbound("web", 81)]), {"web": None}),
        (stored("a", inbound=[inbound("web", 80, state="Ignored")]), {}),
        (stored("a", {"kuma.io/workload": "shop"}, inbound=[{"port": 80}]), {"shop": None}),
        (
            stored("a", {"kuma.io/workload": "shop"}, inbound=[inbound("web", 80), {"port": 81}]),
            {"web": None},
        ),
        (stored("a", inbound=[{"port": 80}]), {}),
        (stored("a", gateway={"tags": {"kuma.io/service": "edge"}}), {"edge": "gateway_delegated"}),
        (
            stored("a", gateway={"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}),
            {"edge": "gateway_builtin"},
        ),
        (
            stored("a", {"kuma.io/workload": "edge"}, gateway={"type": "DELEGATED"}),
            {"edge": "gateway_delegated"},
        ),
        (stored("a", gateway={}), {}),
    ],
)
def test_which_services_a_proxy_serves(dataplane, services):
    mesh = MeshCounts()
    mesh.add(dataplane, None)
    assert {name: each.spec.get("serviceType") for name, each in mesh.services.items()} == services
    assert {each.spec["status"] for each in mesh.services.values()} <= {"offline"}


def test_the_own_zone_is_online_while_a_control_plane_serves_it():
    here, gone = (
        InstanceState(id="cp-1", started_at=MOMENT, version="1"),
        InstanceState(id="cp-2", is_gone=True),
    )
    shown = zone_insight.of_zone("east", ControlPlaneInfo(zone="east"), (here, gone))
    assert [each["zoneInstanceId"] for each in shown["subscriptions"]] == ["cp-1"]
    assert zone_insight.is_online(shown)
    assert zone_insight.of_zone("west", ControlPlaneInfo(zone="east"), (here,)) == {}
    assert zone_insight.of_zone("east", ControlPlaneInfo(mode=Mode.GLOBAL, zone=""), (here,)) == {}
    assert not zone_insight.is_online({})


class States:
    """The states of proxies, and how often each was asked for."""

    problem = ""

    def __init__(self):
        self.asked = 0
        self.known = {}

    def of(self, key):
        self.asked += 1
        return self.known.get(key)

    def instances(self):
        return ()


def test_proxies_are_counted_once_for_all_who_ask_at_the_same_time():
    mesh = Resource(kind="Mesh", name="default", core_name="default", spec={})
    dataplanes = [serving(f"web-{number}", READY) for number in range(250)]
    state = State(LogSnapshot(1, 0, (mesh, *dataplanes)))
    states, now = States(), [0.0]
    insights = Insights(all_kinds(), ControlPlaneInfo(), lambda: state, lambda: states, lambda: now[0])

    async def asked(times=1):
        await asyncio.gather(*(insights.prepare("MeshInsight", None) for _ in range(times)))
        return insights.filled(insights.named("MeshInsight", "", "default")).spec["dataplanes"]

    assert asyncio.run(asked(5)) == {"total": 250, "offline": 250}
    assert states.asked == 250
    states.known = {each.key: seen(each) for each in dataplanes}
    now[0] += computed.FRESH_SECONDS / 2
    assert asyncio.run(asked()) == {"total": 250, "offline": 250}
    now[0] += computed.FRESH_SECONDS / 2
    assert asyncio.run(asked()) == {"total": 250, "online": 250}
    assert states.asked == 500


def test_a_key_of_a_dataplane_leads_to_its_insight():
    dataplane = serving("web-1", READY)
    states, state = States(), State(LogSnapshot(1, 0, (dataplane,)))
    states.known = {Key("Dataplane", "default", "east", "", "web-1"): seen(dataplane, subscription="s-1")}
    insights = Insights(all_kinds(), ControlPlaneInfo(), lambda: state, lambda: states, lambda: 0.0)
    (bare,) = insights.listed("DataplaneInsight", "default")
    assert bare.spec == {}
    assert insights.filled(bare).spec["subscriptions"][0]["id"] == "s-1"
    assert insights.listed("DataplaneInsight", "other") == ()
    assert states.asked == 1, "a list computes what is shown of it, and no more"
