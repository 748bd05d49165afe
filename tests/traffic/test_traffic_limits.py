"""Limits, health, rates and faults on real traffic: what is refused, left out, slowed down, and for whom."""

import base64
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests import build
from tests.http_client import PersistentConnection, Response
from tests.live_mesh import LiveMesh, Sidecar, TcpEcho, echoed_bytes
from tests.waiting import until

pytestmark = pytest.mark.slow

WEB = {"spiffeID": {"type": "Exact", "value": "spiffe://default/web"}}
BACKEND = {"kind": "MeshService", "name": "backend"}
OF_BACKEND = {"kind": "MeshSubset", "tags": {"kuma.io/service": "backend"}, "proxyTypes": ["Sidecar"]}
OF_DB = {"kind": "MeshSubset", "tags": {"kuma.io/service": "db"}, "proxyTypes": ["Sidecar"]}
CLUSTER = "kri_msvc_default_default__backend_http"


class FlakyService:
    """A service whose answers a test chooses; `/sleep/0.5` is slow, `/health` has a status of its own."""

    def __init__(self, name: str) -> None:
        self.status = self.health = 200
        self.checks: list[Mapping[str, str]] = []
        moody = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body waits for the headers' acknowledgement

            def do_GET(self) -> None:
                status = moody.status
                match self.path.split("/"):
                    case ["", "sleep", seconds]:
                        time.sleep(float(seconds))
                    case ["", "health"]:
                        moody.checks.append(dict(self.headers.items()))
                        status = moody.health
                body = b"x" * 2048
                self.send_response(status)
                self.send_header("x-from", name)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a proxy may have stopped waiting
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class LimitedMesh(LiveMesh):
    """A mesh with mTLS, a service of two hosts, one for bytes, and two that call both."""

    services: tuple[FlakyService, FlakyService]
    hosts: tuple[Sidecar, Sidecar]
    db: Sidecar
    web: Sidecar
    guest: Sidecar

    @contextlib.contextmanager
    def with_policies(self, *documents: Mapping[str, Any]) -> Iterator[None]:
        """Policies that are there while the block runs."""
        self.apply_only(*documents)
        try:
            yield
        finally:
            for service in self.services:
                service.status = service.health = 200
            self.apply_only()

    def statuses(self, caller: Sidecar, n_requests: int, path: str = "/") -> list[int]:
        return [caller.call("backend", path=path).status for _ in range(n_requests)]

    def at_once(self, n_requests: int, path: str) -> list[Response]:
        with ThreadPoolExecutor(n_requests) as pool:
            requests = [pool.submit(self.web.call, "backend", path=path) for _ in range(n_requests)]
            return [request.result() for request in requests]

    def served(self, n_requests: int = 10) -> Counter[str]:
        """Who answered web how often."""
        answers = [self.web.call("backend") for _ in range(n_requests)]
        return Counter(answer.headers.get("x-from", str(answer.status)) for answer in answers)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedMesh]:
    echo, services = TcpEcho(), (FlakyService("backend-1"), FlakyService("backend-2"))
    with LimitedMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        mesh.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
        mesh.apply(
            build.mesh(mtls=build.builtin_mtls("ca-1")),
            build.policy("MeshTrafficPermission", "all", rules=[{"default": {"allow": [{}]}}]),
            # Both hosts listen on a port of their own, so the service names it.
            {"type": "MeshService", "name": "backend", "spec": backend_spec()},
        )
        mesh.services = services
        first, second = (
            mesh.sidecar(f"backend-{index}", "backend", target=service.port, wait=False)
            for index, service in enumerate(services, start=1)
        )
        mesh.hosts = first, second
        mesh.db = mesh.sidecar("db-1", "db", protocol="tcp", target=echo.port, wait=False)
        mesh.web, mesh.guest = (
            mesh.sidecar(f"{name}-1", name, serves=False, outbounds=("backend", "db"), wait=False)
            for name in ("web", "guest")
        )
        for sidecar in (*mesh.hosts, mesh.db, mesh.web, mesh.guest):
            sidecar.wait_for_output("is ready")
        for sidecar in (mesh.web, mesh.guest):
            until(lambda sidecar=sidecar: sidecar.call("backend").status == 200, "backend answers")
            until(lambda sidecar=sidecar: echoed_bytes(sidecar.outbounds["db"]) == b"hello", "db answers")
        until(lambda: len(mesh.served()) == 2, "both hosts serve")
        mesh.wait_until_synced()
        yield mesh
    for sidecar in (echo, *services):
        sidecar.stop()


def backend_spec() -> Mapping[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}]
    return {"selector": {"dataplaneTags": {"kuma.io/service": "backend"}}, "ports": ports}


def to(kind: str, target: Mapping[str, Any] = BACKEND, **default: Any) -> Mapping[str, Any]:
    """A policy for calls to a service."""
    return {"type": kind, "name": kind.lower(), "spec": {"to": [{"targetRef": target, "default": default}]}}


def rules(
    kind: str, *entries: tuple[list[Any], Mapping[str, Any]], of: Mapping[str, Any] = OF_BACKEND
) -> Mapping[str, Any]:
    """A policy for calls that arrive; each entry with the callers that it is for."""
    rules = [
        {**({"matches": matches} if matches else {}), "default": default} for matches, default in entries
    ]
    return {"type": kind, "name": kind.lower(), "spec": {"targetRef": of, "rules": rules}}


def outliers(**more: Any) -> Mapping[str, Any]:
    detection = {"interval": "0.2s", "baseEjectionTime": "30s", **more}
    return to("MeshCircuitBreaker", outlierDetection=detection)


def test_a_host_that_fails_again_and_again_is_left_out(mesh: LimitedMesh):
    with mesh.with_policies(outliers(detectors={"totalFailures": {"consecutive": 3}})):
        mesh.services[1].status = 500
        until(lambda: mesh.served() == {"backend-1": 10}, "only the first host is asked")
        assert mesh.web.stats(f"cluster.{CLUSTER}.outlier_detection.ejections_active") == {
            f"cluster.{CLUSTER}.outlier_detection.ejections_active": 1
        }


def test_failures_of_a_sort_that_nobody_watches_leave_no_host_out(mesh: LimitedMesh):
    with mesh.with_policies(outliers(detectors={"gatewayFailures": {"consecutive": 3}})):
        mesh.services[1].status = 500
        mesh.served(30)
        time.sleep(0.3)
        assert set(mesh.served()) == {"backend-1", "backend-2"}


LIMITED = {
    "by the caller": to("MeshCircuitBreaker", connectionLimits={"maxRequests": 1}),
    "by the called": rules(
        "MeshCircuitBreaker", ([], {"connectionLimits": {"maxConnections": 1, "maxPendingRequests": 1}})
    ),
}


@pytest.mark.parametrize("where", LIMITED)
def test_requests_beyond_a_limit_are_refused_at_once(mesh: LimitedMesh, where: str):
    with mesh.with_policies(LIMITED[where]):
        answers = mesh.at_once(8, "/sleep/0.5")
    refused = [answer for answer in answers if answer.status == 503]
    assert 0 < len(refused) < len(answers)
    assert all("overflow" in answer.text for answer in refused)
    assert {answer.headers["x-envoy-overloaded"] for answer in refused} == {"true"}


def test_a_host_that_is_not_well_gets_no_requests_until_it_is(mesh: LimitedMesh):
    headers = {"set": [{"name": "x-check", "value": "koguma"}]}
    often = {"interval": "0.2s", "noTrafficInterval": "0.2s", "timeout": "1s", "unhealthyThreshold": 1}
    http = {"path": "/health", "expectedStatuses": [200], "requestHeadersToAdd": headers}
    mesh.services[1].health = 503
    with mesh.with_policies(to("MeshHealthCheck", **often, http=http)):
        mesh.services[1].health = 503
        until(lambda: mesh.served() == {"backend-1": 10}, "only the first host is asked")
        assert mesh.services[1].checks[-1]["x-check"] == "koguma"
        mesh.services[1].health = 200
        until(lambda: len(mesh.served()) == 2, "both hosts are asked again")


@pytest.mark.parametrize(("answer", "gets"), [(b"pi", b"hello"), (b"pong", b"")])
def test_a_port_for_bytes_is_asked_with_bytes(mesh: LimitedMesh, answer: bytes, gets: bytes):
    often = {"interval": "0.2s", "noTrafficInterval": "0.2s", "timeout": "0.5s", "unhealthyThreshold": 1}
    exchange = {"send": base64.b64encode(b"ping").decode(), "receive": [base64.b64encode(answer).decode()]}
    check = to(
        "MeshHealthCheck",
        {"kind": "MeshService", "name": "db"},
        **often,
        tcp=exchange,
        healthyPanicThreshold=0,
    )
    with mesh.with_policies(check):
        until(lambda: echoed_bytes(mesh.web.outbounds["db"]) == gets, f"{gets!r} comes back")
        assert [echoed_bytes(mesh.web.outbounds["db"]) for _ in range(3)] == [gets] * 3


def rate(num: int, interval: str = "60s", **answer: Any) -> Mapping[str, Any]:
    more = {"onRateLimit": answer} if answer else {}
    return {"local": {"http": {"requestRate": {"num": num, "interval": interval}, **more}}}


def test_requests_beyond_a_rate_are_answered_as_the_policy_says(mesh: LimitedMesh):
    headers = {"set": [{"name": "x-slow-down", "value": "please"}]}
    answered = {"status": 503, "headers": headers}
    with mesh.with_policies(rules("MeshRateLimit", ([], rate(2, **answered)))):
        answers = [mesh.web.call("backend") for _ in range(12)]
        assert Counter(answer.status for answer in answers) == {200: 4, 503: 8}  # each host counts on its own
        limited = [answer.headers for answer in answers if answer.status == 503]
        assert {each["x-slow-down"] for each in limited} == {"please"}


def test_a_rate_is_429_by_default_and_fills_up_again(mesh: LimitedMesh):
    with mesh.with_policies(rules("MeshRateLimit", ([], rate(1, "1s")))):
        assert 429 in mesh.statuses(mesh.web, 5)
        time.sleep(1.2)
        assert mesh.statuses(mesh.web, 1) == [200]


def test_some_callers_have_a_rate_of_their_own_which_others_do_not_use_up(mesh: LimitedMesh):
    with mesh.with_policies(rules("MeshRateLimit", ([WEB], rate(1)), ([], rate(3)))):
        assert Counter(mesh.statuses(mesh.guest, 12)) == {200: 6, 429: 6}
        assert Counter(mesh.statuses(mesh.web, 6)) == {200: 2, 429: 4}


def test_some_callers_can_be_taken_out_of_a_rate(mesh: LimitedMesh):
    free = {"local": {"http": {"disabled": True}}}
    with mesh.with_policies(rules("MeshRateLimit", ([WEB], free), ([], rate(1)))):
        assert set(mesh.statuses(mesh.web, 8)) == {200}
        assert 429 in mesh.statuses(mesh.guest, 4)


def modified(*sidecars: Sidecar) -> int:
    """How often the listeners of proxies were changed."""
    return sum(sum(each.stats(r"^listener_manager\.listener_modified$").values()) for each in sidecars)


def test_rates_and_faults_come_and_go_and_no_connection_is_touched(mesh: LimitedMesh):
    before = modified(*mesh.hosts, mesh.db)
    with contextlib.closing(PersistentConnection(mesh.web.outbounds["backend"])) as kept:
        assert kept.call().status == 200
        mesh_side = connections(mesh.web)
        abort = {"http": [{"abort": {"httpStatus": 418, "percentage": 100}}]}
        for policy, status in (
            (rules("MeshRateLimit", ([], rate(1000))), 200),
            (rules("MeshRateLimit", ([WEB], rate(1)), ([], rate(1000))), 429),
            (rules("MeshFaultInjection", ([], abort)), 418),
            (rules("MeshFaultInjection", ([WEB], abort)), 418),
        ):
            with mesh.with_policies(policy):
                assert status in {kept.call().status for _ in range(6)}
        assert kept.call().status == 200
        assert connections(mesh.web) == mesh_side
    assert modified(*mesh.hosts, mesh.db) == before


def connections(sidecar: Sidecar) -> int:
    """How many connections to backend were ever made."""
    return sum(sidecar.stats(rf"^cluster\.{CLUSTER}\.upstream_cx_total$").values())


def test_connections_beyond_a_rate_are_closed_and_open_ones_stay(mesh: LimitedMesh):
    port, before = mesh.web.outbounds["db"], modified(mesh.db)
    three = {"local": {"tcp": {"connectionRate": {"num": 3, "interval": "60s"}}}}
    with socket.create_connection(("127.0.0.1", port), 60) as opened:
        opened.sendall(b"before")
        assert opened.recv(64) == b"before"
        with mesh.with_policies(rules("MeshRateLimit", ([], three), of=OF_DB)):
            assert Counter(echoed_bytes(port) for _ in range(8)) == {b"hello": 3, b"": 5}
        assert {echoed_bytes(port) for _ in range(8)} == {b"hello"}
        opened.sendall(b"after")
        assert opened.recv(64) == b"after"
    assert modified(mesh.db) == before


def fault(**sorts: Any) -> Mapping[str, Any]:
    return {"http": [{name: {"percentage": 100, **body} for name, body in sorts.items()}]}


def seconds(sidecar: Sidecar) -> float:
    began_at = time.monotonic()
    assert sidecar.call("backend").status == 200
    return time.monotonic() - began_at


def test_a_fault_meets_only_the_callers_that_it_is_for(mesh: LimitedMesh):
    with mesh.with_policies(rules("MeshFaultInjection", ([WEB], fault(delay={"value": "2s"})))):
        assert seconds(mesh.web) > 1.9
        assert seconds(mesh.guest) < 1.9


def test_an_answer_is_slow_where_its_bandwidth_is_small(mesh: LimitedMesh):
    slow = fault(responseBandwidth={"limit": "2 kbps"})
    with mesh.with_policies(rules("MeshFaultInjection", ([], slow))):
        assert seconds(mesh.web) > 0.7  # two KiB at two in a second


def test_a_share_of_requests_is_answered_with_an_error(mesh: LimitedMesh):
    n_requests, share = 400, 0.25
    some = fault(abort={"httpStatus": 418, "percentage": "25.0"})
    with mesh.with_policies(rules("MeshFaultInjection", ([], some))):
        counts = Counter(mesh.statuses(mesh.guest, n_requests))
    assert set(counts) == {200, 418}
    bound = 5 * (n_requests * share * (1 - share)) ** 0.5
    assert abs(counts[418] - n_requests * share) <= bound, counts


def test_faults_of_a_list_come_one_after_the_other(mesh: LimitedMesh):
    several = {
        "http": [
            {"abort": {"httpStatus": 418, "percentage": 0}},
            {"delay": {"value": "0.4s", "percentage": 100}},
            {"abort": {"httpStatus": 404, "percentage": 100}},
        ]
    }
    for_web = rules("MeshFaultInjection", ([WEB], several), ([], fault(abort={"httpStatus": 410})))
    with mesh.with_policies(for_web):
        began_at = time.monotonic()
        assert mesh.web.call("backend").status == 404
        assert time.monotonic() - began_at > 0.35
        assert mesh.guest.call("backend").status == 410


def test_callers_of_faults_can_be_named_by_their_tags(mesh: LimitedMesh):
    entries = [
        {"targetRef": {"kind": "Mesh"}, "default": fault(abort={"httpStatus": 410})},
        {"targetRef": {"kind": "MeshService", "name": "web"}, "default": fault(abort={"httpStatus": 411})},
    ]
    spec = {"targetRef": OF_BACKEND, "from": entries}
    with mesh.with_policies({"type": "MeshFaultInjection", "name": "by-tags", "spec": spec}):
        assert mesh.statuses(mesh.web, 3) == [411] * 3
        assert mesh.statuses(mesh.guest, 3) == [410] * 3
