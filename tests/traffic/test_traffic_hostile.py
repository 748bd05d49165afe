"""A hostile client in front of a proxy's HTTP port: what its spellings, headers and slowness get it."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any, Self

import pytest

from tests.live_mesh import LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

# Spellings of one path that differ for a proxy and are the same for some applications.
SPELLINGS = (
    *("/admin", "//admin", "/./admin", "/x/../admin", "/x/..//admin", "/%2fadmin", "/%2Fadmin"),
    *("/x/%2e%2e/admin", "/x/.%2e/admin", "/x%2f..%2fadmin", "/x/..%2fadmin", "/%5cadmin", "/x/..\\admin"),
    *("/admin/", "/admin;a=b", "/ADMIN", "/admin%00", "/admin%20", "/admin?x=/../y", "/a/../../admin"),
)
IDENTITY = "spiffe://default/web"


class Raw:
    """One connection that sends exactly the bytes that it is told."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> bytes:
        """All that comes back until the other side closes."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := self._socket.recv(65536):
                found += data
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def asked(port: int, path: str, *headers: str) -> tuple[int, Any]:
    """A request with these header lines as they are; status, and what the service saw if it was reached."""
    lines = (f"GET {path} HTTP/1.1", "host: backend", "connection: close", *headers, "", "")
    with Raw(port) as raw:
        raw.send("\r\n".join(lines).encode("latin-1"))
        answer = raw.answer()
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d+)", head)
    status = int(found.group(1)) if found else 0
    if b"chunked" in head:
        body = body.partition(b"\r\n")[2].partition(b"\r\n0\r\n")[0]
    return status, json.loads(body) if b"x-from" in head else None


class HostileMesh(LiveMesh):
    """A mesh with a service, and somebody who calls it."""

    backend: Sidecar
    web: Sidecar

    def secured(self, *, is_on: bool) -> None:
        """mTLS on or off."""
        backends = [{"name": "ca-1", "type": "builtin"}]
        fields = {"mtls": {"enabledBackend": "ca-1", "backends": backends}} if is_on else {}
        self.apply_and_wait({"type": "Mesh", "name": self.name, **fields})


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileMesh]:
    with HostileMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        mesh.delete("meshretries", "mesh-retry-all-default")
        limit = ("--memory-limit", "256Mi")
        mesh.backend = mesh.sidecar("backend-1", "backend", wait=False, flags=limit)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend",), wait=False)
        for sidecar in (mesh.backend, mesh.web):
            sidecar.wait_for_output("is ready")
        until(lambda: mesh.web.call("backend").status == 200, "backend answers")
        mesh.wait_until_synced()
        yield mesh


def n_reached(mesh: HostileMesh, mark: str) -> int:
    """How many requests with this text in their path reached the service."""
    assert mesh.backend.service is not None
    return sum(mark in each["path"] for each in mesh.backend.service.seen)


# Permissions and what else holds for a port hold for every spelling of a path.


def test_no_spelling_of_a_path_passes_a_permission(mesh: HostileMesh) -> None:
    mesh.secured(is_on=True)
    try:
        statuses = {path: asked(mesh.web.outbounds["backend"], path)[0] for path in SPELLINGS}
        assert set(statuses.values()) <= {400, 403}, statuses
        assert statuses["/admin"] == statuses["//admin"] == statuses["/%2fadmin"] == 403
    finally:
        mesh.secured(is_on=False)


def test_no_spelling_of_a_path_passes_a_fault_or_a_limit(mesh: HostileMesh) -> None:
    fault = {"http": [{"abort": {"httpStatus": 418, "percentage": 100}}]}
    mesh.apply_and_wait(
        {"type": "MeshFaultInjection", "name": "teapot", "spec": {"rules": [{"default": fault}]}}
    )
    try:
        statuses = {path: asked(mesh.backend.inbound, path)[0] for path in SPELLINGS}
        assert set(statuses.values()) <= {400, 418}, statuses
    finally:
        mesh.delete_and_wait("meshfaultinjections", "teapot")


def test_dots_are_resolved_and_slashes_reach_the_service_as_they_were_sent(mesh: HostileMesh) -> None:
    port = mesh.backend.inbound
    for path in ("/x/../admin", "/x/%2e%2e/admin", "/./admin"):
        assert asked(port, path)[1]["path"] == "/admin", path
    for path in ("/x//admin", "/%2fadmin", "/a%2Fb"):
        assert asked(port, path)[1]["path"] == path
    assert asked(port, "/../../etc/passwd")[1]["path"] == "/etc/passwd"  # nothing leads above the root


def test_no_spelling_leads_from_metrics_to_the_rest_of_envoys_admin(mesh: HostileMesh) -> None:
    port = free_port()
    backend = {"type": "Prometheus", "prometheus": {"port": port, "tls": {"mode": "Disabled"}}}
    target = {"kind": "Dataplane", "name": "backend-1"}  # two of one machine cannot have one port
    spec = {"targetRef": target, "default": {"backends": [backend]}}
    mesh.apply_and_wait({"type": "MeshMetric", "name": "scraped", "spec": spec})
    try:
        until(lambda: asked(port, "/metrics")[0] == 200, "metrics are there")
        others = ("/config_dump", "/metrics/../config_dump", "/metrics/%2e%2e/config_dump", "//metrics")
        others += ("/metrics/", "/metrics%2f..%2fconfig_dump", "/metrics;/../quitquitquit", "/METRICS")
        assert {path: asked(port, path)[0] for path in others} == dict.fromkeys(others, 404)
    finally:
        mesh.delete_and_wait("meshmetrics", "scraped")


# What a caller says about itself.


@pytest.mark.parametrize("origin", [(), ("x-forwarded-for: 127.0.0.1",), ("x-forwarded-for: ::1",)])
def test_headers_that_steer_envoy_do_nothing_from_outside(mesh: HostileMesh, origin: tuple[str, ...]) -> None:
    port, mark = mesh.backend.inbound, f"steered-{len(''.join(origin))}"
    steering = (
        *("x-envoy-retry-on: 5xx,gateway-error", "x-envoy-max-retries: 5", "x-envoy-internal: true"),
        *("x-envoy-upstream-alt-stat-name: mine", "x-envoy-force-trace: 1", "x-envoy-ip-tags: a"),
    )
    status, _ = asked(port, f"/status/503?{mark}", *origin, *steering)
    assert (status, n_reached(mesh, mark)) == (503, 1)
    status, response = asked(port, "/sleep/0.6", *origin, "x-envoy-upstream-rq-timeout-ms: 100")
    assert status == 200
    status, response = asked(port, "/", *origin, *steering)
    assert not {"x-envoy-internal", "x-envoy-retry-on", "x-envoy-force-trace"} & response["headers"].keys()
    assert not mesh.backend.stats(r"\.mine\.")


def test_an_identity_is_never_taken_from_the_caller(mesh: HostileMesh) -> None:
    """Many servers take `_` for `-` in header names, so that both spellings are one to an application."""
    spelled = ("x-forwarded-client-cert", "X_Forwarded_Client_Cert", "x-forwarded_client-cert")
    for name in spelled:
        _, response = asked(mesh.backend.inbound, "/", f"{name}: URI={IDENTITY}")
        assert IDENTITY not in json.dumps(response["headers"]), name
    _, response = asked(mesh.backend.inbound, "/", "client_id: 7", "x_team: red")
    assert (response["headers"]["client_id"], response["headers"]["x_team"]) == ("7", "red")


def test_addresses_that_a_caller_names_pass_through_and_count_for_nothing(mesh: HostileMesh) -> None:
    _, response = asked(mesh.backend.inbound, "/", "x-forwarded-for: 10.1.2.3, 127.0.0.1")
    assert response["headers"]["x-forwarded-for"].startswith("10.1.2.3")
    assert "x-envoy-internal" not in response["headers"]
    assert "x-envoy-external-address" not in response["headers"]


# Slowness and masses.


def test_a_client_that_sends_headers_drop_by_drop_is_closed(mesh: HostileMesh) -> None:
    """After ten seconds unless a policy says otherwise, as this one does, so that nobody waits."""
    assert '"request_headers_timeout": "10s"' in mesh.backend.admin("/config_dump?resource=dynamic_listeners")
    conf = {"http": {"requestHeadersTimeout": "300ms"}}
    mesh.apply_and_wait({"type": "MeshTimeout", "name": "short", "spec": {"rules": [{"default": conf}]}})
    try:
        with Raw(mesh.backend.inbound) as raw:
            raw.send(b"GET / HTTP/1.1\r\nhost: backend\r\nx-slow: ")
            assert b"408" in raw.answer()
    finally:
        mesh.delete_and_wait("meshtimeouts", "short")


def test_headers_have_a_limit(mesh: HostileMesh) -> None:
    assert asked(mesh.backend.inbound, "/", "x-large: " + "a" * 100_000)[0] == 431
    assert asked(mesh.backend.inbound, "/", *(f"x-{n}: 1" for n in range(1_000)))[0] == 431


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 5", "transfer-encoding: chunked"),
        ("content-length: 5", "content-length: 6"),
        ("transfer-encoding: xchunked",),
        ("transfer-encoding : chunked",),
        ("bad\x01name: 1",),
    ],
)
def test_a_request_that_two_servers_could_read_differently_is_refused(
    mesh: HostileMesh, lines: tuple[str, ...]
) -> None:
    assert asked(mesh.backend.inbound, "/smuggled", *lines)[0] in (400, 501)
    assert n_reached(mesh, "/smuggled") == 0


def test_the_proxy_has_limits_of_its_own(mesh: HostileMesh) -> None:
    stats = mesh.backend.stats(r"^overload\.|global_downstream_max_connections")
    assert any("global_downstream_max_connections" in name for name in stats), stats
    until(
        lambda: 0 < mesh.backend.stats(r"fixed_heap\.pressure$").popitem()[1] < 100, "its memory is watched"
    )
