"""What Global knows of its zones: whether they are online, how far they are, and what may be done to them."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koguma import __version__
from koguma.cli import main
from koguma.control_plane import proxy_checks
from koguma.fleet.insights import zone_insight
from koguma.fleet.proxy_state import InstanceState
from koguma.fleet.state_mirror import StateMirror
from koguma.fleet.state_writer import StateWriter
from koguma.fleet.zone_state import ZoneState
from koguma.store.proxy_states import MemoryProxyStates
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.sync.test_zones import OF_ZONE, URL, Federation, federation  # noqa: F401 - a fixture
from tests.waiting import until

START = datetime(2026, 1, 1, tzinfo=UTC)


def _overview(plane: LocalControlPlane, zone: str) -> Any:
    return plane("GET", f"/zones/{zone}/_overview").json


def _is_online(plane: LocalControlPlane, zone: str) -> bool:
    return bool((_overview(plane, zone).get("connection") or {}).get("online"))


def _table(capsys: pytest.CaptureFixture[str], plane: LocalControlPlane, *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["get", "zones", *words, "--address", plane.address]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_zone_is_shown_online_then_offline_then_deleted(
    federation: Federation,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    top = federation.top
    with federation.zone("east") as east:
        until(lambda: _is_online(top, "east"), "the zone is online")
        until(lambda: east("GET", "/meshes/default").status == 200, "the mesh comes from Global")
        assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
        assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        until(lambda: top("GET", "/meshtimeouts").json["total"] == 4, "Global has the zone's policy")
        until(
            lambda: _overview(top, "east")["connection"]["lag"] == {"changes": 0, "seconds": 0.0},
            "the zone has everything",
        )
        shown = _overview(top, "east")
        assert (shown["type"], shown["zone"]) == ("ZoneOverview", {"enabled": True})
        assert shown["connection"]["versions"] == {"zone": __version__, "global": __version__}
        (subscription,) = shown["zoneInsight"]["subscriptions"]
        assert subscription["globalInstanceId"] == top("GET", "/").json["instanceId"]
        assert subscription["zoneInstanceId"] == east("GET", "/").json["instanceId"]
        assert subscription["authTokenProvided"]
        stat = subscription["status"]["stat"]
        assert stat["Mesh"] == {"responsesSent": "1", "responsesAcknowledged": "1"}
        assert int(subscription["status"]["total"]["responsesSent"]) == sum(
            int(each["responsesSent"]) for each in stat.values()
        )
        assert json.loads(subscription["config"])["zoneName"] == "east"
        assert top("GET", "/zone-insights/east").json["subscriptions"][0]["id"] == subscription["id"]
        assert top("GET", "/global-insight").json["zones"]["controlPlanes"] == {"online": 1, "total": 1}
        header, row = _table(capsys, top)
        assert header.split("   ")[0] == "NAME"
        assert row.split()[:4] == ["east", "true", "yes", "-"]
        # It cannot be deleted, through any door.
        text = "unable to delete Zone, Zone CP is still connected, please shut it down first"
        refused = top("DELETE", "/zones/east")
        assert (refused.status, refused.fields) == (400, [("zone", text)])
        kube = top("DELETE", "/apis/kuma.io/v1alpha1/zones/east")
        assert text in kube.text
        assert kube.status >= 400
        assert top("DELETE", "/zones/east?dryRun=All").status == 400
    until(lambda: not _is_online(top, "east"), "the zone is offline")
    offline = _overview(top, "east")
    assert offline["zoneInsight"]["subscriptions"][0]["disconnectTime"]
    assert offline["connection"]["lag"] is None
    assert _table(capsys, top, "east", "-o", "wide")[1].split()[:3] == ["east", "true", "no"]
    assert top("GET", "/meshtimeouts").json["total"] == 4
    assert top("DELETE", "/zones/east").status == 200
    left = [item["kri"] for item in top("GET", "/meshtimeouts").json["items"]]
    assert len(left) == 3
    assert not [kri for kri in left if "_east_" in kri]
    # When it comes back, all of it does.
    with federation.zone("east"):
        until(lambda: top("GET", "/meshtimeouts").json["total"] == 4, "its objects are back")
        until(lambda: _is_online(top, "east"), "the zone is online")


def test_a_global_that_restarted_knows_when_a_zone_was_last_there(federation: Federation) -> None:  # noqa: F811
    with federation.zone("east"):
        until(lambda: _is_online(federation.top, "east"), "the zone is online")
        instance = federation.top("GET", "/").json["instanceId"]
    until(lambda: not _is_online(federation.top, "east"), "the zone is offline")
    until(
        lambda: "disconnectTime" in str(_overview(federation.top, "east")["zoneInsight"]), "its end is known"
    )
    federation.stack.close()
    with federation.new_global() as top:
        (subscription,) = _overview(top, "east")["zoneInsight"]["subscriptions"]
        assert subscription["globalInstanceId"] == instance
        assert subscription["disconnectTime"]
        assert top("DELETE", "/zones/east").status == 200


def test_any_global_of_a_store_knows_the_zones_of_the_others() -> None:
    table, now = MemoryProxyStates(), [START]
    writer = StateWriter(table, "global-1", lambda: now[0], beats=True)
    zones = {"east": ZoneState(zone="east", instance="global-1", connected_at=START, n_lacking=3)}
    writer.zones.report = lambda: zones
    mirror = StateMirror(
        table,
        "global-2",
        lambda: now[0],
        lambda _key: True,
        is_alone=False,
        monotonic=lambda: now[-1].timestamp(),  # noqa: PLW0108 - the moment is another each time
    )

    async def flushed() -> tuple[ZoneState, ...]:
        await writer.flush()
        await mirror.poll()
        return tuple(mirror.zone("east"))

    def shown() -> tuple[ZoneState, ...]:
        return asyncio.run(flushed())

    assert shown() == (zones["east"],)
    # Figures alone are written now and then; that it went, at once.
    zones["east"] = ZoneState(zone="east", instance="global-1", connected_at=START, n_lacking=2)
    assert shown()[0].n_lacking == 3
    now[0] += timedelta(seconds=2)
    assert shown()[0].n_lacking == 2
    zones["east"] = ZoneState(
        zone="east", instance="global-1", connected_at=START, disconnected_at=START + timedelta(seconds=2)
    )
    assert not shown()[0].is_connected
    # One of a control plane that is gone counts as offline.
    zones["east"] = ZoneState(zone="east", instance="global-1", connected_at=START)
    assert shown()[0].is_connected
    for _ in range(10):
        now[0] += timedelta(seconds=0.25)
        asyncio.run(mirror.poll())
    (gone,) = mirror.zone("east")
    assert not gone.is_connected
    assert not zone_insight.summary((gone,), "1", now[0])["online"]


def test_a_global_that_is_gone_has_no_proxies_to_miss() -> None:
    gone = InstanceState(id="old", is_gone=True, n_proxies=5, n_missing=2)
    assert list(proxy_checks.of_instances([gone], "", is_global=True)) == []
    (check,) = proxy_checks.of_instances([gone], "")
    assert "2 of its 5 proxies" in check.message
