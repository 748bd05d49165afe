"""Traffic between zones on real Envoys: who answers, and that nothing fails while zones come and go."""

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.build import timeout
from tests.postgres import Databases
from tests.traffic.zone_mesh import RETRY, WAIT_SECONDS, ZoneMesh, until

pytestmark = pytest.mark.slow

_ALLOWED = {"spiffeID": {"type": "Exact", "value": "spiffe://default/other"}}
_TAKEN_BACK_SECONDS = 7.5  # after which Envoy has tried it again
EAST, WEST, SOUTH = "backend-east", "backend-west", "backend-south"


@pytest.fixture(scope="module")
def mesh(postgres: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZoneMesh]:
    with ZoneMesh(tmp_path_factory.mktemp("z"), postgres) as mesh:
        yield mesh


def test_a_service_of_another_zone_is_called_whatever_it_selects_by(mesh: ZoneMesh) -> None:
    for zone, name in (("west", WEST), ("south", SOUTH)):
        until(lambda zone=zone: mesh.answered(zone) == 200, f"{zone} answers")
        assert mesh.get(zone).headers["x-from"] == name


def test_the_callee_decides_about_callers_of_other_zones(mesh: ZoneMesh) -> None:
    other = build.policy("MeshTrafficPermission", "all", rules=[{"default": {"allow": [_ALLOWED]}}])
    try:
        mesh.top.apply(other)
        until(lambda: mesh.answered("west") == 403, "the callee denies it")
    finally:
        mesh.top.apply(build.allow_all())
    until(lambda: mesh.answered("west") == 200, "the callee allows it again")


def test_the_own_zone_answers_until_it_cannot_and_again_when_it_can(mesh: ZoneMesh) -> None:
    mesh.wait_for(EAST)
    with mesh.locality(crossZone={"failover": [{"to": {"type": "None"}}]}):
        mesh.wait_for_endpoints(mesh.ports["east"])
    with mesh.no_request_fails():
        mesh.kill(mesh.backends["east"])
        mesh.wait_for(WEST, SOUTH)
        for failover, answering in (
            ([{"to": {"type": "Only", "zones": ["south"]}}, {"to": {"type": "Any"}}], SOUTH),
            ([{"to": {"type": "Only", "zones": ["west"]}}], WEST),
            ([{"to": {"type": "AnyExcept", "zones": ["west"]}}], SOUTH),
            (
                [
                    {"from": {"zones": ["west"]}, "to": {"type": "Only", "zones": ["south"]}},
                    {"from": {"zones": ["east"]}, "to": {"type": "Only", "zones": ["west"]}},
                ],
                WEST,
            ),
        ):
            with mesh.locality(crossZone={"failover": failover}):
                mesh.wait_for(answering)
        mesh.start_backend("east").wait_for_output("is ready", WAIT_SECONDS)
        mesh.wait_for(EAST)


def test_zones_leave_and_come_back_in_order(mesh: ZoneMesh) -> None:
    """Switched off, without a backend, without an ingress: no request fails, and none is sent there."""
    with (
        mesh.locality(disabled=True),  # all zones take part at once
        mesh.no_request_fails(),
    ):
        mesh.wait_for(EAST, WEST, SOUTH)
        ports = {mesh.ports["east"], *mesh.ingress_ports["west"], mesh.ingress_ports["south"][0]}
        mesh.wait_for_endpoints(*ports)
        # A zone is switched off.
        mesh.switch("south", enabled=False)
        mesh.wait_for_endpoints(mesh.ports["east"], *mesh.ingress_ports["west"])
        mesh.wait_until_nobody_calls("south")
        mesh.switch("south", enabled=True)
        mesh.wait_for_endpoints(*ports)
        # Its last backend ends, in order.
        assert mesh.backends["west"].stop(30) == 0
        mesh.wait_for_endpoints(mesh.ports["east"], mesh.ingress_ports["south"][0])
        mesh.start_backend("west")
        mesh.wait_for_endpoints(*ports)
        # One of its ingresses ends, then the other.
        for number in (0, 1):
            assert mesh.ingresses["west"][number].stop(30) == 0
            left = mesh.ingress_ports["west"][number + 1 :]
            mesh.wait_for_endpoints(mesh.ports["east"], *left, mesh.ingress_ports["south"][0])
        mesh.wait_until_nobody_calls("west")
        for number in (0, 1):
            mesh.start_ingress("west", number)
        mesh.wait_for_endpoints(*ports)
        mesh.wait_for(EAST, WEST, SOUTH)


def test_a_dead_ingress_and_a_dead_zone_fail_no_request(mesh: ZoneMesh) -> None:
    with (
        mesh.locality(disabled=True),
        mesh.no_request_fails("everywhere", "west"),
    ):
        mesh.wait_for(EAST, WEST, SOUTH)
        dead, alive = mesh.ingress_ports["west"]
        own, of_south = mesh.ports["east"], mesh.ingress_ports["south"][0]
        mesh.kill(mesh.ingresses["west"][0])
        # A zone that is gone as a whole, control plane first so that nobody can say it.
        mesh.zones["south"].control_plane.kill()
        mesh.kill(mesh.ingresses["south"][0])
        mesh.kill(mesh.backends["south"])
        until(lambda: set(mesh.answering()) == {EAST, WEST}, "the others answer")
        until(lambda: not mesh.is_online("south"), "Global knows")
        assert of_south in mesh.endpoints()  # an ingress may live on without its control plane
        mesh.wait_for_endpoints(own, alive, of_south)  # of the ingress its zone has noticed it
        assert mesh.top.request("DELETE", "/zones/south").status == 200
        mesh.wait_for_endpoints(own, alive)
        until(lambda: mesh.answered("south") != 200, "nobody answers for south")
        # They come back, and all that was their own with them.
        mesh.start_ingress("west", 0)
        mesh.zones["south"].start_control_plane()
        mesh.start_backend("south")
        mesh.start_ingress("south", 0)
        mesh.wait_for_endpoints(own, alive, dead, of_south)
        mesh.wait_for(EAST, WEST, SOUTH)
        until(lambda: mesh.answered("south") == 200, "south answers again")


def test_a_dead_endpoint_that_is_tried_again_fails_no_request(mesh: ZoneMesh) -> None:
    """With the MeshRetry that every mesh starts with; its control plane is dead too, so that it stays one."""
    assert mesh.top.request("DELETE", "/meshes/default/meshretries/again").status == 200
    mesh.wait_for(EAST)
    until(lambda: "again" not in str(_policies(mesh)), "the zone has the change")
    mesh.zones["east"].wait_until_synced()
    mesh.zones["east"].control_plane.kill()
    with mesh.no_request_fails():
        mesh.kill(mesh.backends["east"])
        mesh.wait_for(WEST, SOUTH)
        time.sleep(_TAKEN_BACK_SECONDS)
    mesh.zones["east"].start_control_plane()
    mesh.start_backend("east")
    mesh.wait_for(EAST)
    mesh.top.apply(build.document("MeshRetry", "again", spec=RETRY))
    until(lambda: "again" in str(_policies(mesh)), "the zone has it again")


def _policies(mesh: ZoneMesh) -> Any:
    return mesh.zones["east"].request("GET", "/meshes/default/meshretries").json["items"]


@pytest.mark.parametrize("rounds", [pytest.param(1), pytest.param(30, marks=pytest.mark.soak)])
def test_no_request_fails_while_each_part_is_killed_in_turn(mesh: ZoneMesh, rounds: int) -> None:
    rounds = int(os.environ.get("KOGUMA_SOAK_ROUNDS", rounds)) if rounds > 1 else rounds
    planes = (mesh.top, *mesh.zones.values())
    with (
        mesh.locality(disabled=True),
        mesh.no_request_fails("everywhere", "west"),
    ):
        for number in range(rounds):
            for plane in planes:
                plane.control_plane.kill()
                mesh.wait_for(EAST, WEST, SOUTH)
                plane.start_control_plane(wait=rounds > 1)  # else they overlap, which is no easier
            for plane in planes:
                plane.wait_until_ready()
            mesh.kill(mesh.ingresses["west"][number % 2])
            mesh.start_ingress("west", number % 2)
            zone = ("west", "south", "east")[number % 3] if rounds > 1 else "south"
            if zone != "west":  # which has another one, and is called by itself too
                mesh.kill(mesh.backends[zone])
                mesh.start_backend(zone)
            mesh.wait_for_all(f"round-{number}")
            mesh.wait_for(EAST, WEST, SOUTH)


@pytest.mark.parametrize("seconds", [pytest.param(2), pytest.param(60, marks=pytest.mark.soak)])
def test_a_partition_with_writes_on_all_sides_ends_with_the_same_everywhere(
    mesh: ZoneMesh, seconds: int
) -> None:
    planes = {"": mesh.top, **mesh.zones}
    of_zone = {"kuma.io/origin": "zone"}
    for zone, plane in planes.items():
        labels = {"labels": of_zone} if zone else {}
        plane.apply(*(timeout(f"{each}-of-{zone or 'global'}", **labels) for each in ("old", "changed")))
    mesh.wait_for_all("before-partition")
    with mesh.no_request_fails("everywhere", "west"):
        for relay in mesh.relays.values():
            relay.cut()
        end = time.monotonic() + seconds
        for number in itertools.count(1):
            for zone, plane in planes.items():
                name, labels = zone or "global", {"labels": of_zone} if zone else {}
                changed = timeout(f"changed-of-{name}", idle=f"{number}s", **labels)
                plane.apply(changed, timeout(f"new-{number % 10}-of-{name}", **labels))
                plane.delete("meshtimeouts", f"old-of-{name}")
            if time.monotonic() > end:
                break
        until(lambda: not any(mesh.is_online(zone) for zone in mesh.zones), "Global knows")
        for relay in mesh.relays.values():
            relay.join()
        mesh.wait_for_all("after-partition")
        until(lambda: mesh.differences() == [], "all have the same")


def test_a_zone_under_another_name_is_another_zone(mesh: ZoneMesh) -> None:
    """The last test: what was south is far from now on."""
    with mesh.locality(disabled=True), mesh.no_request_fails("everywhere", "west"):
        mesh.wait_for(EAST, WEST, SOUTH)
        mesh.rename("south", "far")
        mesh.wait_for(EAST, WEST, "backend-far")
        services = mesh.zones["east"].request("GET", "/meshservices").json["items"]
        assert {each["kri"].split("_")[3] for each in services} == {"east", "west", "south", "far"}
        assert mesh.top.request("DELETE", "/zones/south").status == 200
        mesh.wait_for_endpoints(
            mesh.ports["east"], *mesh.ingress_ports["west"], *mesh.ingress_ports["far"][:1]
        )
        mesh.wait_for(EAST, WEST, "backend-far")
