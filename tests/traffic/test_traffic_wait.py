"""Waiting with real Envoys at two control planes: when it returns, each Envoy has the change."""

import json
import os
import signal
import threading

import pytest

from tests.paired_planes import PairedPlanes
from tests.ports import free_port
from tests.traffic.test_traffic_quarantine import PATCH, REFUSED, patch
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(postgres, tmp_path_factory):
    with PairedPlanes(tmp_path_factory.mktemp("pair"), postgres.database()) as planes:
        planes.sidecar("backend-1", "backend")
        web = planes.sidecar(
            "web-1",
            "web",
            outbounds=["backend"],
            flags=("--label", "app=web", "--admin-port", str(free_port())),
        )
        until(lambda: web.call("backend").status == 200, "backend answers")
        yield planes


def policy(seconds, folder):
    rules = [{"default": {"http": {"requestHeadersTimeout": f"{seconds}s"}}}]
    document = {"type": "MeshTimeout", "mesh": "default", "name": "waited", "spec": {"rules": rules}}
    file = folder / f"{seconds}.json"
    file.write_text(json.dumps(document))
    return str(file)


def timeouts(pair):
    """The timeouts in the inbound listeners of all Envoys, as these say themselves."""
    dumps = [sidecar.admin("/config_dump?resource=dynamic_listeners") for sidecar in pair.sidecars]
    return [dump.split('"request_headers_timeout": "')[1].split('"')[0] for dump in dumps]


def test_when_it_returns_every_envoy_has_it_whichever_control_plane_is_asked(pair, tmp_path):
    for number in range(6):
        plane = pair.planes[number % 2]
        done = plane.koguma("apply", "-f", policy(20 + number, tmp_path), "--wait")
        assert timeouts(pair) == [f"{20 + number}s"] * 2, done.stdout
        assert "2 of 2 proxies have it" in done.stdout
    pair.planes[0].koguma("delete", "meshtimeout", "waited", "--wait")
    assert f"{20 + number}s" not in timeouts(pair)


def test_a_plan_is_the_same_whichever_control_plane_has_the_proxies(pair, tmp_path):
    words = ("plan", "-f", policy(19, tmp_path), "-o", "json", "--envoy")
    plans = [json.loads(plane.koguma(*words, check=False).stdout) for plane in pair.planes]
    assert plans[0] == plans[1]
    assert plans[0]["changed"] == 2


def test_a_configuration_is_the_same_whichever_control_plane_has_the_proxy(pair):
    planes = pair.planes
    until(lambda: [len(plane.proxies()) for plane in planes] == [2, 2], "both know both proxies")
    for sidecar in pair.sidecars:
        words = ("inspect", "dataplane", sidecar.name, "--type", "config", "-o", "json")
        shown = [json.loads(plane.koguma(*words).stdout) for plane in planes]
        assert shown[0] == shown[1]
    assert "_kuma_readiness" in json.dumps(shown), "what is for the agent of the last one"
    calls = [plane.koguma("can", "web", "backend", "-o", "json").stdout for plane in planes]
    assert calls[0] == calls[1]
    wrong = [plane.koguma("can", "web", "nobody", check=False) for plane in planes]
    assert [(each.returncode, "nobody" in each.stderr) for each in wrong] == [(1, True)] * 2
    assert planes[0].koguma("can", "web", "backend", "-o", "json").stdout == calls[0]


def test_an_envoy_that_stands_still_is_named_and_waited_for(pair, tmp_path):
    web = pair.sidecars[1]
    pid = web.envoy_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        words = ("apply", "-f", policy(40, tmp_path), "--wait", "--timeout", "1500ms")
        late = pair.planes[0].koguma(*words, check=False)
        assert (late.returncode, "web-1" in late.stderr) == (2, True), late.stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    pair.planes[1].koguma("wait", "meshtimeout/waited")
    assert timeouts(pair) == ["40s"] * 2


def test_what_an_envoy_refuses_is_named_with_the_patch_and_its_words(pair, tmp_path):
    file = tmp_path / "patch.json"
    file.write_text(json.dumps({**patch(REFUSED), "mesh": "default"}))
    refused = pair.planes[0].koguma("apply", "-f", str(file), "--wait", check=False)
    assert refused.returncode == 2
    assert "; web-1 has refused a part of it" in refused.stderr
    assert "cluster provided LB specified" in refused.stderr
    until(lambda: PATCH in pair.planes[1].koguma("wait", "mpp/wild", check=False).stderr, "it is found out")

    def conditions():
        listed = pair.planes[0].request("GET", "/apis/kuma.io/v1alpha1/meshproxypatches").json["items"]
        (wild,) = (item for item in listed if item["metadata"]["name"].startswith("wild"))
        return [each["reason"] for each in (wild.get("status") or {}).get("conditions", ())]

    until(lambda: conditions() == ["Refused"], "it is shown, and that it has arrived is not")
    pair.planes[1].koguma("apply", "-f", policy(41, tmp_path), "--wait")
    assert timeouts(pair) == ["41s"] * 2, "what it refuses keeps no other change from arriving"
    pair.planes[0].koguma("delete", "mpp", "wild", "--wait")


def test_what_an_envoy_never_had_and_refuses_keeps_no_other_change_from_arriving(pair, tmp_path):
    cluster = {"name": "added", "type": "EDS", "connectTimeout": "1s", "edsClusterConfig": {}, **REFUSED}
    added = {**patch({}), "mesh": "default"}
    added["spec"]["default"]["appendModifications"] = [{"cluster": {"operation": "Add", "value": cluster}}]
    file = tmp_path / "patch.json"
    file.write_text(json.dumps(added))
    refused = pair.planes[0].koguma("apply", "-f", str(file), "--wait", check=False)
    assert (refused.returncode, "has refused a part of it" in refused.stderr) == (2, True), refused.stderr
    pair.planes[1].koguma("apply", "-f", policy(42, tmp_path), "--wait")
    assert timeouts(pair) == ["42s"] * 2
    until(lambda: PATCH in pair.planes[0].koguma("wait", "mpp/wild", check=False).stderr, "it stays refused")
    pair.planes[0].koguma("delete", "mpp", "wild", "--wait")


def test_it_returns_not_too_early_while_a_control_plane_is_killed(pair, tmp_path):
    first, second = pair.planes
    for number, (ending, staying) in enumerate(((first, second), (second, first))):
        seconds = 50 + number
        killer = threading.Timer(0.01 * number, pair.end, (ending, signal.SIGKILL))
        killer.start()
        staying.koguma("apply", "-f", policy(seconds, tmp_path), "--wait")
        assert timeouts(pair) == [f"{seconds}s"] * 2
        killer.join()
        pair.begin(ending, signal.SIGKILL)
        ending.koguma("wait")
        assert timeouts(pair) == [f"{seconds}s"] * 2
