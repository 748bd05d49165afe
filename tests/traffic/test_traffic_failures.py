"""Things end, crash, are refused and change, while calls go on.

The tests share one mesh and run in order: what one of them has killed, a later one finds gone.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import build
from tests.http_client import call
from tests.live_mesh import KOGUMA, LiveMesh, Sidecar, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

CALLED = ("backend", "spare")
TAKEN = r"\.update_success$|listener_(added|modified|removed)$|cluster_(added|modified|removed)$"


class RestartedMesh(LiveMesh):
    """Two services of two proxies each, and one that calls them."""

    web: Sidecar
    called: dict[str, Sidecar]
    old_token: str

    def names(self, service: str) -> set[str]:
        """Who answers for a service."""
        return {self.web.call(service).json["name"] for _ in range(10)}

    def is_called(self, service: str) -> bool:
        """Whether Envoy has sent a request to a service, also one that is gone by now."""
        return any(self.web.stats(rf"^cluster\.kri_msvc_.*_{service}_http\.upstream_rq_total$").values())

    def dataplanes(self) -> set[str]:
        items = self.request("GET", f"/meshes/{self.name}/dataplanes").json["items"]
        return {item["name"] for item in items}

    def run_proxy(self, *words: str, token: str) -> subprocess.CompletedProcess[str]:
        """Start a proxy that is not expected to run."""
        file = self.directory / "given.token"
        file.touch(0o600)
        file.write_text(token)
        where = ("--cp-address", f"https://127.0.0.1:{self.dp}", "--dataplane-token-file", str(file))
        command = [KOGUMA, "dp", "run", *where, "--no-dns", *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedMesh]:
    with RestartedMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        mesh.old_token = mesh.token(name="late", validFor="1s")
        mesh.apply(
            build.mesh(mtls=build.builtin_mtls("ca-1")),
            build.allow_all(),
            *(_service(name, name) for name in CALLED),
        )
        mesh.called = {
            f"{service}-{n}": mesh.sidecar(f"{service}-{n}", service, tags={"version": f"v{n}"}, wait=False)
            for service in CALLED
            for n in (1, 2)
        }
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=CALLED, wait=False)
        for sidecar in (*mesh.called.values(), mesh.web):
            sidecar.wait_for_output("is ready")
        for service in CALLED:
            until(lambda: mesh.names(service) == {f"{service}-1", f"{service}-2"}, f"{service} answers")  # noqa: B023 - asked at once
            until(lambda: _is_settled(mesh, service), f"what is known of {service} is stored")  # noqa: B023 - asked at once
        mesh.wait_until_synced(mesh.revision())
        yield mesh


def _is_settled(mesh: LiveMesh, service: str) -> bool:
    """Whether the control plane has nothing more to write about the proxies of a service, which came."""
    status = mesh.request("GET", f"/meshes/{mesh.name}/meshservices/{service}").json.get("status") or {}
    counts = {"connected": 2, "healthy": 2, "total": 2}
    return status.get("dataplaneProxies") == counts and status.get("tls") == {"status": "Ready"}


def _service(name: str, of: str) -> dict[str, Any]:
    """A service over all ports that are named http, whatever their numbers: these proxies share a machine."""
    selector = {"dataplaneTags": {"kuma.io/service": of}}
    return build.mesh_service(name, build.port(name="http", targetPort="http"), selector=selector)


def _timeout(seconds: int) -> dict[str, Any]:
    return build.policy("MeshTimeout", "a-timeout", (build.ANY, {"http": {"requestTimeout": f"{seconds}s"}}))


def _route(name: str, path: str, **weights: int) -> dict[str, Any]:
    refs = [build.service_ref(service, port=80, weight=weight) for service, weight in weights.items()]
    return build.http_route(name, build.http_rule(path, backends=refs))


def test_a_control_plane_may_be_killed_and_nothing_is_sent_twice(mesh: RestartedMesh) -> None:
    proxies = (mesh.web, mesh.called["backend-1"])
    before = [each.stats(TAKEN) for each in proxies]
    assert all(before)
    with steady_traffic(mesh.web.outbounds["backend"]) as counts:
        mesh.control_plane.kill()
        mesh.start_control_plane()
        until(lambda: len(mesh.proxies()) == len(mesh.called) + 1, "all proxies come back")
        mesh.wait_until_synced(mesh.revision())
        time.sleep(0.3)
        assert [each.stats(TAKEN) for each in proxies] == before
        mesh.apply_and_wait(_timeout(7))
        assert '"timeout": "7s"' in mesh.web.admin("/config_dump?resource=dynamic_route_configs")
    assert counts.keys() == {"200"}, counts
    assert counts["200"] > 100


def test_a_killed_agent_takes_its_envoy_along_and_others_answer(mesh: RestartedMesh) -> None:
    agent = mesh.called["spare-2"]
    envoy = Path(f"/proc/{agent.envoy_pid()}/stat")
    agent.kill()
    assert "spare-2" in mesh.dataplanes(), "it may come back"
    until(lambda: not envoy.exists() or ") Z " in envoy.read_text(), "Envoy ends too")
    statuses = [mesh.web.call("spare").status for _ in range(20)]
    assert statuses.count(200) >= 18, statuses  # calls are tried again, and maybe hit the dead one each time
    until(lambda: "spare-2" not in mesh.proxies(), "it is not connected any more")


def test_no_request_fails_because_of_changes(mesh: RestartedMesh) -> None:
    mesh.delete_and_wait("meshretries", "mesh-retry-all-default")  # from here on nothing is tried again
    with steady_traffic(mesh.web.outbounds["backend"], path="/shop/list") as counts:
        for n in range(10):
            mesh.apply(_route("split", "/shop", backend=10 + n, extra=90 - n), _service("extra", "backend"))
            mesh.apply_and_wait(_timeout(5 + n))
            mesh.apply_and_wait(
                _service(f"new-{n}", "backend"), _route("new", "/shop/list", **{f"new-{n}": 1})
            )
            until(lambda: mesh.is_called(f"new-{n}"), "it is called")  # noqa: B023 - asked at once
            mesh.delete("meshhttproutes", "new")
            mesh.delete_and_wait("meshservices", f"new-{n}")
        until(lambda: mesh.is_called("extra"), "it is called")
        mesh.delete("meshhttproutes", "split")
        mesh.delete_and_wait("meshservices", "extra")
        time.sleep(0.3)
    assert counts.keys() == {"200"}, counts
    assert counts["200"] > 100
    assert not any(mesh.web.stats(r"update_rejected$").values())


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_a_crashed_envoy_is_started_again(mesh: RestartedMesh) -> None:
    backend = mesh.called["backend-2"]
    before = mesh.proxies()["backend-2"]["connectedAt"]
    time.sleep(1)  # the time is told in seconds
    os.kill(backend.envoy_pid(), 9)
    backend.wait_for_output("Envoy was ended by SIGKILL")
    backend.wait_for_output("is ready again")
    until(lambda: mesh.names("backend") == {"backend-1", "backend-2"}, "it answers again")
    assert mesh.proxies()["backend-2"]["connectedAt"] > before
    mesh.wait_until_synced(mesh.revision())
    (line,) = [each for each in mesh.koguma("get", "proxies").stdout.splitlines() if "backend-2" in each]
    assert "synced" in line


def test_proxies_join_and_leave_without_a_failed_request(mesh: RestartedMesh) -> None:
    leaving = mesh.called["backend-2"]
    with steady_traffic(mesh.web.outbounds["backend"], path="/sleep/0.02") as counts:
        joining = mesh.sidecar("backend-3", "backend")
        until(lambda: "backend-3" in mesh.names("backend"), "it answers")
        assert leaving.stop() == 0
        assert "backend-2" not in mesh.dataplanes()
        time.sleep(0.3)
    assert counts.keys() == {"200"}, counts
    assert counts["200"] > 40
    assert "could not deregister" not in leaving.output
    until(lambda: mesh.names("backend") == {"backend-1", "backend-3"}, "both answer, and no other")
    joining.stop()


LATE = ("--name", "late", "--service", "late", "--port", "18080", "--service-port", "18081")


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ({"name": "early"}, "answers 403: proxy name from requestor: late is different than in token: early"),
        ({"tags": {"kuma.io/service": ["web"]}}, "answers 403: "),
        (
            {"mesh": "second"},
            "answers 401: authentication failed: could not parse token: signature is invalid",
        ),
        ("old", "answers 401: authentication failed: token is expired"),
        ("rubbish", "answers 401: authentication failed: could not parse token: it is not a signed JWT"),
    ],
)
def test_a_proxy_with_a_wrong_token_does_not_run(mesh: RestartedMesh, token: Any, words: str) -> None:
    if isinstance(token, dict):
        assert mesh.request("PUT", "/meshes/second", {"type": "Mesh", "name": "second"}).status in (200, 201)
        given = mesh.token(**token)
    else:
        given = mesh.old_token if token == "old" else token
    ended = mesh.run_proxy(*LATE, token=given)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert given not in ended.stderr
    assert "late" not in mesh.dataplanes()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tag", "a key=1"), 'networking.inbound[0].tags["a key"]: '),
        (("--address", "no address"), "networking.address: "),
        (("--mesh", "nowhere"), 'mesh "nowhere" does not exist'),
    ],
)
def test_a_dataplane_that_is_not_legal_is_refused_with_the_place(
    mesh: RestartedMesh, flags: Any, words: str
) -> None:
    ended = mesh.run_proxy(*LATE, *flags, token=mesh.service_token("late", "late"))
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "late" not in mesh.dataplanes()


def test_a_later_run_of_a_proxy_takes_the_place_of_an_earlier_one_for_good(mesh: RestartedMesh) -> None:
    first = mesh.sidecar("twin", "twin")
    second = mesh.sidecar("twin", "twin")
    first.wait_for_output('a later run of proxy \\"twin\\" has taken the place of this one')
    connected_at = mesh.proxies()["twin"]["connectedAt"]
    (inbound,) = mesh.request("GET", "/meshes/default/dataplanes/twin").json["networking"]["inbound"]
    assert inbound["port"] == second.inbound
    assert first.stop() == 0
    assert "twin" in mesh.dataplanes(), "an earlier run took a later one out of the mesh"
    assert mesh.proxies()["twin"]["connectedAt"] == connected_at
    assert "took its place" not in second.output
    second.stop()


@pytest.mark.expected_errors("Address already in use")
def test_a_refused_listener_is_shown_and_leaves_the_rest_working(mesh: RestartedMesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, good = other.getsockname()[1], free_port()
        mesh.apply(_caller(taken, good))
        caller = mesh.sidecar("caller", serves=False, wait=False)
        caller.wait_for_output(f"is not ready: it cannot listen on 127.0.0.1:{taken}: Address already in use")
        proxy = until(lambda: _nacked(mesh), "the proxy refuses")
        (rejection,) = proxy["quarantined"]
        assert (rejection["name"], rejection["has"]) == ("kri_msvc_default_default__backend_http", "none")
        assert f"cannot bind '127.0.0.1:{taken}': Address already in use" in rejection["text"]
        shown = mesh.koguma("get", "proxies").stdout
        assert "NACK" in shown
        assert "caller refused listener kri_msvc_default_default__backend_http:\n" in shown
        assert rejection["text"].strip() in shown
        until(lambda: call(good).status == 200, "the rest works")
        assert " is ready" not in caller.output
        mesh.apply(_caller(free := free_port(), good))
        until(lambda: mesh.proxies()["caller"]["state"] == "synced", "it is content")
        assert call(free).json["name"] == "backend-1"
        assert mesh.proxies()["caller"]["rejections"] == []
        caller.wait_for_output("is ready: reaches backend at ")
    assert caller.stop() == 0
    assert "caller" in mesh.dataplanes(), "what a user wrote is not taken away"


def _nacked(mesh: LiveMesh) -> Any:
    found = mesh.proxies().get("caller")
    return found if found and found["state"] == "nack" else None


def _caller(*ports: int) -> dict[str, Any]:
    outbound = [
        {"port": port, "backendRef": {"kind": "MeshService", "name": service, "port": 80}}
        for port, service in zip(ports, CALLED, strict=True)
    ]
    networking = {"address": "127.0.0.1", "outbound": outbound}
    labels = {"kuma.io/workload": "caller"}
    return {"type": "Dataplane", "name": "caller", "labels": labels, "networking": networking}


def test_what_a_killed_agent_registered_is_gone_after_a_while(mesh: RestartedMesh) -> None:
    until(lambda: "spare-2" not in mesh.dataplanes(), "it is deregistered")
    mesh.wait_until_synced(mesh.revision())
    assert [mesh.web.call("spare").status for _ in range(20)] == [200] * 20
