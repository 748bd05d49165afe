"""A transparent proxy on real machines: services that know nothing of it, and two Envoys between them.

    web ──── hub ──── backend

Each is a network namespace. The control plane runs on hub, and whatever the mesh does not know; web only
calls. Nobody binds a service's address or has a port for an outbound: the kernel redirects.
"""

import contextlib
import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import build
from tests.authority import Authority
from tests.hub_mesh import HUB, PROXY, HubMesh
from tests.live_mesh import KOGUMA, Sidecar
from tests.netns import Network
from tests.waiting import until

pytestmark = pytest.mark.slow

EXCLUDED = 4321
HUB6, WEB = "fd09:1::1", "10.9.1.2"
BACKEND, BACKEND6 = "10.9.2.2", "fd09:2::2"
SERVED, UNDESCRIBED, UNREDIRECTED = 8080, 9090, 9091
BY_NAME, BY_TAG = "backend.svc.mesh.local", "backend.mesh"
STRICT = {"mtls": build.builtin_mtls("ca-1")}


TLS_SERVER = """
import ssl, socket, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
server = socket.create_server(("0.0.0.0", 443))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    try:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(b"secure")
    except OSError:
        pass
"""
TLS_CLIENT = """
import ssl, socket, sys
context = ssl._create_unverified_context()
try:
    connection = socket.create_connection((sys.argv[1], 443), 10)
    with context.wrap_socket(connection, server_hostname=sys.argv[2]) as secure:
        print(secure.recv(100).decode())
except OSError:
    print("closed")
"""


class Machines:
    """The machines, the mesh, and the two proxies."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.hub, self.web, self.backend = (network.namespace(each) for each in ("hub", "web", "backend"))
        network.connect(self.hub, self.web, "10.9.1", "fd09:1")
        network.connect(self.hub, self.backend, "10.9.2", "fd09:2")
        self.hub.start_service("outside", 80)
        pair = directory.parent / "pair.pem"
        pair.write_text("".join(Authority().pem))
        self.hub.start("tls", sys.executable, "-c", TLS_SERVER, str(pair), until_output="ready")
        self.hub.start_name_server("outside.test", HUB, HUB)
        self.web.use_name_servers(HUB)
        self.backend.start_service("backend", SERVED, UNDESCRIBED, UNREDIRECTED)
        self.mesh = HubMesh(directory, network, self.hub)
        self.mesh.environment["KOGUMA_VIRTUAL_IPV6_CIDR"] = "fd00:fd00::/96"

    def start(self) -> None:
        """Redirect what the machines do, and let proxies run."""
        self.mesh.start_control_plane()
        install = (KOGUMA, "dp", "install", "transparent-proxy", "--uid", str(PROXY))
        self.web.run(*install, "--exclude-outbound-uids", str(EXCLUDED))
        self.backend.run(*install, "--exclude-inbound-ports", str(UNREDIRECTED))
        served = ("--service", "backend", "--port", str(SERVED), "--protocol", "http", "--address", BACKEND)
        self.callee = self.mesh.proxy(self.backend, "backend-1", *served)
        web = ("--service", "web", "--address", WEB, "--user", str(PROXY))
        self.caller = self.mesh.proxy(self.web, "web-1", *web, uid=0)
        for each in (self.callee, self.caller):
            each.wait_for_output("is ready")
        until(lambda: self.web.get(BY_NAME, SERVED).status == 200, "backend answers by its name")

    @contextlib.contextmanager
    def with_mesh(self, **spec: Any) -> Iterator[None]:
        """What the Mesh says while the block runs."""
        self.mesh.apply_and_wait({"type": "Mesh", "name": "default", **spec})
        try:
            yield
        finally:
            self.mesh.apply_and_wait({"type": "Mesh", "name": "default"})

    def passed(self, sidecar: Sidecar, name: str) -> int:
        """How many connections went where nobody described them."""
        stat = f"tcp.{name}.downstream_cx_total"
        return sidecar.stats(f"^{stat}$").get(stat, 0)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    directory = tmp_path_factory.mktemp("transparent")
    with Network(directory) as network:
        made = Machines(network, directory / "mesh")
        made.start()
        yield made


def test_a_proxy_that_root_starts_becomes_its_user_with_its_envoy(machines: Machines):
    for pid in (machines.caller.pid, machines.caller.envoy_pid()):
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert status["Uid"].split() == [str(PROXY)] * 4
        assert status["Gid"].split() == [str(PROXY)] * 4
        assert status["Groups"].split() in ([], [str(PROXY)])
        assert (int(status["CapEff"], 16), int(status["CapPrm"], 16)) == (0, 0)


def test_a_service_is_called_by_its_name(machines: Machines):
    answer = machines.web.get(BY_NAME, SERVED)
    assert answer.json["name"] == "backend"
    assert answer.json["peer"] == "127.0.0.6", "its own proxy calls it"
    assert answer.headers["server"] == "envoy"
    address = machines.web.resolve(BY_NAME)
    assert address.startswith("241.")
    assert machines.web.get(address, SERVED).json["name"] == "backend"


def test_a_service_is_called_over_ipv6(machines: Machines):
    ipv4 = ipaddress.IPv4Address(machines.web.resolve(BY_NAME))
    found = machines.web.run("getent", "ahostsv6", BY_NAME).stdout.split()[0]
    assert found == str(ipaddress.IPv6Address("fd00:fd00::") + int(ipv4))
    answer = machines.web.get(found, SERVED)
    assert (answer.json["name"], answer.headers["server"]) == ("backend", "envoy")


def test_a_service_is_called_by_the_name_of_its_tag(machines: Machines):
    assert machines.web.resolve(BY_TAG) == machines.web.resolve(BY_NAME)
    assert machines.web.get(BY_TAG, SERVED).json["name"] == "backend"
    assert machines.web.get(BY_TAG, 80).json["name"] == "backend", "as in Kuma 2.13, whatever port it has"
    with machines.with_mesh(meshServices={"mode": "Exclusive"}):
        until(lambda: machines.web.resolve(BY_TAG) == "", "tags have no names any more")
        assert machines.web.get(BY_NAME, SERVED).json["name"] == "backend"


def test_names_of_others_are_asked_of_the_machines_own_name_server(machines: Machines):
    assert machines.web.resolve("outside.test") == HUB
    assert machines.web.resolve("nowhere.test") == ""
    before = machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4")
    assert machines.web.get("outside.test", 80).json["name"] == "outside"
    assert machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4") == before + 1


def test_what_the_mesh_does_not_know_is_reached_over_ipv6_too(machines: Machines):
    before = machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv6")
    assert machines.web.get(HUB6, 80).json["name"] == "outside"
    assert machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv6") == before + 1


def test_an_excluded_users_calls_do_not_meet_the_proxy(machines: Machines):
    before = machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4")
    assert machines.web.get(HUB, 80, uid=EXCLUDED).json["name"] == "outside"
    assert machines.web.resolve(BY_NAME, uid=EXCLUDED) == ""
    assert machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4") == before


def test_who_is_no_proxy_calls_a_service_without_mtls(machines: Machines):
    described = machines.hub.get(BACKEND, SERVED)
    assert (described.json["peer"], described.headers["server"]) == ("127.0.0.6", "envoy")
    before = machines.passed(machines.callee, "_kuma_passthrough_inbound_ipv4")
    assert machines.hub.get(BACKEND, UNDESCRIBED).json["peer"] == "127.0.0.6"
    assert machines.passed(machines.callee, "_kuma_passthrough_inbound_ipv4") == before + 1
    assert machines.hub.get(BACKEND6, UNDESCRIBED).json["peer"] == "::6"
    assert machines.hub.get(BACKEND, UNREDIRECTED).json["peer"] == "10.9.2.1", (
        "an excluded port is not redirected"
    )


def test_a_service_that_calls_itself_does_so_directly(machines: Machines):
    assert machines.backend.get(BACKEND, SERVED).json["peer"] == BACKEND
    assert machines.backend.get("127.0.0.1", SERVED).json["peer"] == "127.0.0.1"


def test_a_service_that_is_called_by_its_own_name_gets_the_call_as_from_others(machines: Machines):
    answer = machines.backend.get(machines.web.resolve(BY_NAME), SERVED)
    assert (answer.json["peer"], answer.headers["server"]) == ("127.0.0.6", "envoy")


@pytest.mark.parametrize("port", [15001, 15006])
def test_a_call_to_the_redirection_itself_is_closed_and_does_not_go_in_circles(machines: Machines, port: int):
    connections = r"^listener\._kuma_passthrough_[a-z]+_ipv4\.downstream_cx_total$"
    before = sum(machines.callee.stats(connections).values())
    assert machines.hub.get(BACKEND, port).text == "closed"
    assert machines.backend.get("127.0.0.1", port).text == "closed"
    assert sum(machines.callee.stats(connections).values()) == before + 2


def test_with_strict_mtls_nobody_gets_around_it(machines: Machines):
    machines.mesh.apply(build.allow_all("everybody"))
    with machines.with_mesh(**STRICT):
        until(
            lambda: machines.web.get(BY_NAME, SERVED).status == 200,
            "proxies call each other with certificates",
        )
        tried = {
            "described": machines.hub.get(BACKEND, SERVED),
            "undescribed": machines.hub.get(BACKEND, UNDESCRIBED),
            "described, IPv6": machines.hub.get(BACKEND6, SERVED),
            "undescribed, IPv6": machines.hub.get(BACKEND6, UNDESCRIBED),
        }
        assert {name: answer.text for name, answer in tried.items()} == dict.fromkeys(tried, "closed")
        assert machines.hub.get(BACKEND, UNREDIRECTED).status == 200, "what is not redirected is not guarded"
        assert machines.web.get(HUB, 80).json["name"] == "outside"
    until(lambda: machines.hub.get(BACKEND, UNDESCRIBED).status == 200, "without mTLS it is called again")


def test_a_strict_port_of_a_permissive_mesh_is_strict_by_every_address(machines: Machines):
    here = {"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"mode": "Strict"}}]}
    machines.mesh.apply({"type": "MeshTLS", "name": "strict", "spec": here})
    (backend,) = STRICT["mtls"]["backends"]
    with machines.with_mesh(mtls={**STRICT["mtls"], "backends": [{**backend, "mode": "PERMISSIVE"}]}):
        until(
            lambda: machines.web.get(BY_NAME, SERVED).status == 200,
            "proxies call each other with certificates",
        )
        tried = [machines.hub.get(host, SERVED).text for host in (BACKEND, BACKEND6)]
        assert tried == ["closed"] * 2
        assert machines.hub.get(BACKEND6, UNDESCRIBED).status == 200
    machines.mesh.delete_and_wait("meshtlses", "strict")
    assert machines.hub.get(BACKEND6, SERVED).status == 200


def test_a_mesh_may_keep_its_services_from_calling_what_it_does_not_know(machines: Machines):
    with machines.with_mesh(networking={"outbound": {"passthrough": False}}):
        tried = [machines.web.get(host, 80).text for host in (HUB, HUB6, "outside.test")]
        assert tried == ["closed"] * 3
        assert machines.web.get(BY_NAME, SERVED).status == 200
    assert machines.web.get(HUB, 80).json["name"] == "outside"


@contextlib.contextmanager
def passthrough(machines: Machines, mode: str | None, *matches: dict[str, Any]) -> Iterator[None]:
    """A MeshPassthrough for the calling proxy while the block runs."""
    conf = {"passthroughMode": mode} if mode else {}
    spec = {"default": {**conf, "appendMatch": list(matches)}}
    machines.mesh.apply_and_wait(
        {"type": "MeshPassthrough", "name": "outside", "mesh": "default", "spec": spec}
    )
    try:
        yield
    finally:
        machines.mesh.delete_and_wait("meshpassthroughs", "outside")


def test_a_policy_lets_nothing_out(machines: Machines):
    with passthrough(machines, "None"):
        tried = [machines.web.get(host, 80).text for host in (HUB, HUB6, "outside.test")]
        assert tried == ["closed"] * 3
        assert machines.web.get(BY_NAME, SERVED).status == 200
    assert machines.web.get(HUB, 80).json["name"] == "outside"


def test_a_policy_opens_what_the_mesh_has_closed(machines: Machines):
    with (
        machines.with_mesh(networking={"outbound": {"passthrough": False}}),
        passthrough(machines, "All"),
    ):
        assert [machines.web.get(host, 80).json["name"] for host in (HUB, HUB6)] == ["outside"] * 2


ADDRESS = {"type": "IP", "value": HUB, "port": 80, "protocol": "tcp"}
RANGE6 = {"type": "CIDR", "value": "fd09:1::/64", "protocol": "tcp"}
OTHER_PORT = {"type": "CIDR", "value": "10.9.1.0/24", "port": 81, "protocol": "tcp"}
DOMAIN = {"type": "Domain", "value": "outside.test", "port": 80, "protocol": "http"}
WILDCARD = {"type": "Domain", "value": "*.test", "port": 80, "protocol": "http"}
OTHER_DOMAIN = {"type": "Domain", "value": "elsewhere.test", "port": 80, "protocol": "http"}
TLS_DOMAIN = {"type": "Domain", "value": "safe.test", "protocol": "tls"}


@pytest.mark.parametrize(
    ("matches", "expected"),
    [
        ([ADDRESS], {HUB: "outside", HUB6: "closed", "outside.test": "outside"}),
        ([RANGE6], {HUB: "closed", HUB6: "outside", "outside.test": "closed"}),
        ([OTHER_PORT, RANGE6], {HUB: "closed", HUB6: "outside", "outside.test": "closed"}),
        ([DOMAIN], {HUB: 503, HUB6: 503, "outside.test": "outside"}),
        ([WILDCARD], {HUB: 503, "outside.test": "outside"}),
        ([OTHER_DOMAIN], {HUB: 503, "outside.test": 503}),
        # What is more specific hides nothing: by port, by address range, and by protocol.
        ([OTHER_DOMAIN, {**ADDRESS, "port": None}], {HUB: "outside", "outside.test": "outside"}),
        ([DOMAIN, {**OTHER_PORT, "port": 80, "protocol": "tls"}], {HUB: 503, "outside.test": "outside"}),
        ([TLS_DOMAIN, ADDRESS], {HUB: "outside", HUB6: "closed"}),
    ],
)
def test_a_policy_lets_out_what_it_names(
    machines: Machines, matches: list[dict[str, Any]], expected: dict[str, str | int]
):
    with passthrough(machines, None, *matches):
        answers = {host: machines.web.get(host, 80) for host in expected}
        shown = {
            host: answer.json["name"] if answer.status == 200 else answer.status or answer.text
            for host, answer in answers.items()
        }
        assert shown == expected
        assert machines.web.get(BY_NAME, SERVED).status == 200


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (TLS_DOMAIN, {"safe.test": "secure", "a.safe.test": "closed", "other.test": "closed"}),
        ({**TLS_DOMAIN, "value": "*.safe.test"}, {"safe.test": "closed", "a.safe.test": "secure"}),
        ({**TLS_DOMAIN, "value": "*"}, {"safe.test": "secure", "other.test": "secure"}),
        ({**ADDRESS, "port": 443, "protocol": "tls"}, {"other.test": "secure"}),
        ({**ADDRESS, "port": 443}, {"other.test": "secure"}),
        ({**ADDRESS, "port": 444}, {"other.test": "closed"}),
    ],
)
def test_tls_is_let_out_by_its_server_name(
    machines: Machines, match: dict[str, Any], expected: dict[str, str]
):
    with passthrough(machines, "Matched", match):
        answers = {
            name: machines.web.run(sys.executable, "-c", TLS_CLIENT, HUB, name).stdout.strip()
            for name in expected
        }
        assert answers == expected
        assert machines.web.get(HUB, 80).status != 200, "nothing else is let out"


def test_without_the_redirection_all_is_as_before(machines: Machines):
    machines.web.run(KOGUMA, "dp", "uninstall", "transparent-proxy")
    before = machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4")
    assert machines.web.resolve(BY_NAME) == ""
    assert machines.web.get(HUB, 80).json["name"] == "outside"
    assert machines.passed(machines.caller, "_kuma_passthrough_outbound_ipv4") == before
    machines.web.run(
        KOGUMA, "dp", "install", "transparent-proxy", "--uid", str(PROXY), "--backend", "iptables"
    )
    assert machines.web.get(BY_NAME, SERVED).json["name"] == "backend"
