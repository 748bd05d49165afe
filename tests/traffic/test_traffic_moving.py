"""Proxies that move between the control planes of a store, under traffic that goes through them."""

import itertools
import os
import signal

import pytest

from koguma import __version__
from tests.build import allow_all, timeout
from tests.live_mesh import LiveMesh, steady_traffic
from tests.other_release import other_release
from tests.paired_planes import PairedPlanes
from tests.waiting import until

pytestmark = pytest.mark.slow

MTLS = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP)


@pytest.fixture(scope="module")
def pair(postgres, tmp_path_factory):
    with PairedPlanes(tmp_path_factory.mktemp("pair"), postgres.database()) as planes:
        planes.planes[0].apply({"type": "Mesh", "name": "default", "mtls": MTLS}, allow_all())
        planes.sidecar("backend-1", "backend")
        web = planes.sidecar("web-1", "web", outbounds=["backend"])
        until(lambda: web.call("backend").status == 200, "backend answers")
        yield planes


@pytest.mark.parametrize("times", [pytest.param(8), pytest.param(1000, marks=pytest.mark.soak)])
def test_no_request_fails_while_control_planes_end_in_turns(pair, times):
    times = int(os.environ.get("KOGUMA_SOAK_KILLS", times)) if times > 8 else times
    first, second = pair.planes
    web = pair.sidecars[1]
    registered = set(dataplanes(first))
    with steady_traffic(web.outbounds["backend"], pause=0.01) as counts:
        for number, how in zip(range(times), itertools.cycle(ENDS), strict=False):
            ending, staying = (first, second) if number % 2 == 0 else (second, first)
            settle(pair)
            before = pair.updates()
            pair.end(ending, how)
            pair.wait_until_at(staying)
            assert pair.updates() == before, "nothing was sent that they have"
            revision = staying.apply(timeout("moved", idle=f"{number + 10}s"))
            staying.wait_until_synced(revision)
            pair.begin(ending, how)
            assert dataplanes(staying) == registered
            until(lambda: pair.connected(staying, asked=ending) == registered, "it knows where all are")  # noqa: B023
    assert set(counts) == {"200"}, counts
    assert counts["200"] > times


def settle(pair):
    """Wait until nothing is on its way: both have the same revision, and the proxies have it."""
    one, other = pair.planes
    until(lambda: one.revision() == other.revision(), "both have all changes")
    for plane in pair.planes:
        if plane.proxies():
            plane.wait_until_synced(plane.revision())


def dataplanes(plane):
    return {each["name"] for each in plane.request("GET", "/meshes/default/dataplanes").json["items"]}


def test_a_rolling_upgrade_fails_no_request_and_each_gets_its_share(pair, tmp_path):
    """One release ahead beside this one, then alone, then one behind; the last to start has no proxies."""
    first, second = pair.planes
    web = pair.sidecars[1]
    ahead = other_release(tmp_path, "0.2.0", adds="later")
    with steady_traffic(web.outbounds["backend"], pause=0.01) as counts:
        for plane in (first, second):
            restart(pair, plane, ahead, "0.2.0")
            for other in pair.planes:
                name = f"by-{other.api}"
                assert (
                    other.request("PUT", f"/meshes/default/meshtimeouts/{name}", timeout(name)).status < 300
                )
            settle(pair)
        first.settings["proxy_stay"] = second.settings["proxy_stay"] = "1s"
        restart(pair, second, ahead, "0.2.0")
        restart(pair, first, {"PYTHONPATH": ""}, __version__)
        until(lambda: [len(pair.connected(plane)) for plane in pair.planes] == [1, 1], "each has one")
    assert set(counts) == {"200"}, counts
    assert pair.connected(first) | pair.connected(second) == {"backend-1", "web-1"}


def restart(pair, plane, environment, version):
    pair.end(plane, signal.SIGTERM)
    plane.environment |= environment
    pair.begin(plane, signal.SIGTERM)
    assert plane.request("GET", "/").json["version"].endswith(f"koguma-{version}")


def test_a_release_that_is_too_old_for_a_store_says_which_one_it_needs(tmp_path):
    newer = LiveMesh(tmp_path / "cp")
    newer.environment |= other_release(tmp_path / "newer", "0.9.0", store_format=2)
    with newer:
        assert newer.request("GET", "/").json["version"].endswith("koguma-0.9.0")
    newer.environment["PYTHONPATH"] = ""
    older = newer.koguma("cp", "run", check=False)
    assert older.returncode == 1
    needed = "koguma.db has store format 2, which Koguma 0.9.0 and later can read; this is Koguma"
    assert needed in older.stderr
    assert "start 0.9.0 or a later one" in older.stderr
