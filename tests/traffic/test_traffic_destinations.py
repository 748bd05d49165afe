"""Services by name and virtual address, and which of their proxies get the calls."""

import asyncio
import http.client
import ipaddress
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from koguma.dp.dns import DnsServer
from tests.http_client import Response, call, joined_headers
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

VIPS = ipaddress.ip_network("127.241.0.0/16")  # of the loopback, so that no address has to be given to it


class NameServer:
    """A name server of the outside world."""

    def __init__(self, records: Mapping[str, list[str]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = DnsServer([])
        self._server.set_records(records)
        self.port = self._do(self._server.start("127.0.0.1", 0))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self._do(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def resolved(port: int, name: str) -> list[str]:
    """The IPv4 addresses of a name, asked with a packet by hand; empty where there are none."""
    question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    packet = struct.pack(">6H", 0x4B55, 0x0100, 1, 0, 0, 0) + question + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(60)
        asking.sendto(packet, ("127.0.0.1", port))
        answer = asking.recv(4096)
    number, _, _, n_answers, _, _ = struct.unpack(">6H", answer[:12])
    assert number == 0x4B55
    # Every record is a pointer to the name, ten bytes of facts, and the address.
    records = answer[len(packet) :]
    return [str(ipaddress.ip_address(records[at + 12 : at + 16])) for at in range(0, 16 * n_answers, 16)]


def get(address: str, port: int, path: str = "/") -> Response:
    """One request to an address."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request("GET", path, headers={"host": "backend.svc.mesh.local"})
        response = connection.getresponse()
        return Response(response.status, joined_headers(response.getheaders()), response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def outside() -> Iterator[NameServer]:
    server = NameServer({"www.example.com": ["203.0.113.7"]})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    with LiveMesh(tmp_path_factory.mktemp("vips"), mesh_service_cidr=str(VIPS)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def services(mesh: LiveMesh) -> dict[str, Sidecar]:
    found = {name: mesh.sidecar(f"{name}-1", name, wait=False) for name in ("backend", "other")}
    for each in found.values():
        each.wait_for_output("is ready")
    return found


def caller(mesh: LiveMesh, outside: NameServer, name: str, service: str = "") -> tuple[Sidecar, int]:
    """A proxy for a program that only calls, with its port for DNS."""
    port = free_port()
    flags = ("--bind-outbounds", "--dns", "--dns-port", str(port))
    upstream = ("--dns-upstream", f"127.0.0.1:{outside.port}")
    return mesh.sidecar(name, service, serves=False, flags=(*flags, *upstream)), port


@pytest.fixture(scope="module")
def web(mesh: LiveMesh, services: dict[str, Sidecar], outside: NameServer) -> tuple[Sidecar, int]:
    return caller(mesh, outside, "web-1", "web")


def test_a_service_is_called_by_its_name(mesh: LiveMesh, web: tuple[Sidecar, int]) -> None:
    proxy, dns = web
    (vip,) = until(lambda: resolved(dns, "backend.svc.mesh.local"), "the name is known")
    assert ipaddress.ip_address(vip) in VIPS
    shown = mesh.request("GET", "/meshes/default/meshservices/backend").json
    assert shown["status"]["vips"] == [{"ip": vip}]
    (port,) = shown["spec"]["ports"]
    answer = until(lambda: get(vip, port["port"]), "the address answers")
    assert (answer.status, answer.json["name"]) == (200, "backend-1")
    assert list(proxy.stats(r"^cluster\.kri_msvc_.*_backend_http\.upstream_rq_total$").values()) == [1]
    assert resolved(dns, "BACKEND.svc.mesh.local") == [vip]


def test_all_other_names_are_asked_for_outside(web: tuple[Sidecar, int]) -> None:
    assert resolved(web[1], "www.example.com") == ["203.0.113.7"]
    assert resolved(web[1], "nobody.svc.mesh.local") == []


def test_new_services_and_new_sorts_of_names_are_known_at_once(
    mesh: LiveMesh, web: tuple[Sidecar, int]
) -> None:
    proxy, dns = web
    generator = {
        "type": "HostnameGenerator",
        "name": "shop",
        "spec": {"selector": {"meshService": {}}, "template": "{{ .DisplayName }}.shop"},
    }
    assert mesh.request("PUT", "/hostnamegenerators/shop", generator).status == 201
    late = mesh.sidecar("late-1", "late")
    (address,) = until(lambda: resolved(dns, "late.shop"), "a new service has a name of the new kind")
    assert until(lambda: get(address, late.inbound), "it answers").json["name"] == "late-1"
    assert resolved(dns, "backend.shop") == resolved(dns, "backend.svc.mesh.local") != []
    assert mesh.request("DELETE", "/hostnamegenerators/shop").status == 200
    until(lambda: not resolved(dns, "late.shop"), "the name is gone")
    late.stop()
    proxy.stop()  # the next one listens on the same addresses


def test_a_proxy_knows_only_what_it_may_reach(
    mesh: LiveMesh, services: dict[str, Sidecar], outside: NameServer
) -> None:
    mesh.apply(narrow("backend"))
    proxy, dns = caller(mesh, outside, "narrow")
    (vip,) = until(lambda: resolved(dns, "backend.svc.mesh.local"), "what is reachable is known")
    assert get(vip, services["backend"].inbound).status == 200
    (other,) = mesh.request("GET", "/meshes/default/meshservices/other").json["status"]["vips"]
    assert resolved(dns, "other.svc.mesh.local") == []
    with pytest.raises(ConnectionRefusedError):
        get(other["ip"], services["other"].inbound)
    assert "_other_" not in proxy.admin("/clusters")
    mesh.apply(narrow("backend", "other"))
    until(lambda: resolved(dns, "other.svc.mesh.local") == [other["ip"]], "it may reach more now")
    assert get(other["ip"], services["other"].inbound).json["name"] == "other-1"
    proxy.stop()


def narrow(*services: str) -> dict[str, Any]:
    refs = [{"kind": "MeshService", "name": name} for name in services]
    proxying = {"reachableBackends": {"refs": refs}}
    return {
        "type": "Dataplane",
        "name": "narrow",
        "labels": {"kuma.io/workload": "narrow"},
        "networking": {"address": "127.0.0.1", "transparentProxying": proxying},
    }


class Pair:
    """A service of two proxies in two racks, whose Dataplanes a test writes."""

    def __init__(self, mesh: LiveMesh) -> None:
        self._mesh = mesh
        self._echoes = {name: Echo(name=name) for name in ("near", "far")}
        self._ports = {name: free_port() for name in self._echoes}
        self.is_ready(near=True, far=True)
        port = {"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}
        selector = {"dataplaneTags": {"kuma.io/service": "pair"}}
        mesh.apply({"type": "MeshService", "name": "pair", "spec": {"selector": selector, "ports": [port]}})
        started = [mesh.sidecar(name, serves=False, wait=False) for name in self._echoes]
        for each in started:
            each.wait_for_output("is ready")

    def is_ready(self, **ready: bool) -> None:
        """Say whether the services are ready for calls."""
        self._mesh.apply(*(self._dataplane(name, ready=is_ready) for name, is_ready in ready.items()))

    def _dataplane(self, name: str, *, ready: bool) -> dict[str, Any]:
        inbound = {
            "name": "http",
            "port": self._ports[name],
            "servicePort": self._echoes[name].port,
            "state": "Ready" if ready else "NotReady",
            "tags": {"kuma.io/service": "pair", "kuma.io/protocol": "http", "rack": f"{name}-rack"},
        }
        return {
            "type": "Dataplane",
            "name": name,
            "networking": {"address": "127.0.0.1", "inbound": [inbound]},
        }

    def stop(self) -> None:
        for each in self._echoes.values():
            each.stop()


@pytest.fixture(scope="module")
def pair(mesh: LiveMesh) -> Iterator[Pair]:
    found = Pair(mesh)
    yield found
    found.stop()


def test_a_proxy_that_is_not_ready_gets_no_calls_and_the_near_one_gets_most(
    mesh: LiveMesh, pair: Pair
) -> None:
    client = mesh.sidecar(
        "client", "client", serves=False, outbounds=("pair",), flags=("--label", "rack=near-rack")
    )

    def answered(n: int = 40) -> Counter[str]:
        answers = [call(client.outbounds["pair"]) for _ in range(n)]
        return Counter(each.json["name"] if each.status == 200 else str(each.status) for each in answers)

    until(lambda: answered(4) == {"near": 2, "far": 2}, "both answer in turn")
    pair.is_ready(near=False)
    until(lambda: answered(4) == {"far": 4}, "one is not ready")
    assert answered() == {"far": 40}
    pair.is_ready(far=False)
    until(lambda: set(answered(1)) == {"503"}, "none is ready")
    pair.is_ready(near=True, far=True)
    awareness = {"localityAwareness": {"localZone": {"affinityTags": [{"key": "rack"}]}}}
    to = [{"targetRef": {"kind": "MeshService", "name": "pair"}, "default": awareness}]
    mesh.apply_and_wait({"type": "MeshLoadBalancingStrategy", "name": "near-first", "spec": {"to": to}})
    assert answered(200)["near"] > 150
    pair.is_ready(near=False)
    until(lambda: answered(4) == {"far": 4}, "the far one takes over")
