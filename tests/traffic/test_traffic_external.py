"""Calls to the outside by programs behind real Envoys: every match, destination and protocol.

    web ──── hub

The control plane runs on hub, and all servers of the outside. The mesh lets nothing out but what
MeshExternalServices match. A program on web knows nothing of all that: it calls addresses, and names hosts.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.core.external_servers import AUTHORITY, STRANGER, Pair, made
from tests.hub_mesh import HUB, PROXY, HubMesh
from tests.live_mesh import KOGUMA
from tests.netns import ROOT, Network
from tests.waiting import until

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HUB6 = "fd09:1::1"
NOWHERE, NOWHERE6 = "198.51.100.7", "2001:db8:7::7"  # nobody is there: only a proxy can answer
PROTOCOLS = ("tcp", "tls", "http", "http2", "grpc")
CA = {"inlineString": AUTHORITY.pem}


# The table.


class Case(NamedTuple):
    """A match, a destination and a protocol, on a port of its own."""

    match: str
    destination: str
    protocol: str
    port: int

    @property
    def name(self) -> str:
        return f"{self.match}-{self.destination}-{self.protocol}".lower()

    @property
    def host(self) -> str:
        """What a program names; nothing where it has an address only."""
        if self.match in ("InternalVIP", "Domain", "wildcard"):
            return f"{'a.' if self.match == 'wildcard' else ''}{self.name}.outside.test"
        return ""

    @property
    def address(self) -> str:
        """What a program calls."""
        if self.match == "InternalVIP":
            return self.host
        v4, v6 = (HUB, HUB6) if self.destination == "passthrough" else (NOWHERE, NOWHERE6)
        return v6 if self.match.endswith("6") else v4

    @property
    def value(self) -> str:
        match self.match:
            case "wildcard":
                return f"*.{self.name}.outside.test"
            case "CIDR" | "CIDR6":
                return f"{self.address}/{120 if self.match == 'CIDR6' else 24}"
            case "IP" | "IP6":
                return self.address
        return self.host

    @property
    def service(self) -> dict[str, Any]:
        type_ = "Domain" if self.match == "wildcard" else self.match.removesuffix("6")
        match = {"type": type_, "value": self.value, "port": self.port, "protocol": self.protocol}
        spec: dict[str, Any] = {"match": [match]}
        if self.destination != "passthrough":
            port = endpoint(self.destination, self.protocol)
            tls = {"tls": {"enabled": True, "caCert": CA}} if self.destination == "secure" else {}
            spec["destination"] = {
                "type": "Regular",
                "endpoints": [{"address": HUB, "port": port}],
                **tls,
            }
        return external_service(self.name, spec)

    @property
    def refused_at(self) -> str:
        """The field for which a service is refused; empty where it is legal."""
        if self.match == "wildcard" and self.destination != "passthrough":
            return "spec.match[0].value"
        if self.match == "InternalVIP" and self.destination == "passthrough":
            return "spec.match[0].type"
        if self.destination == "secure" and self.protocol == "tls":
            return "spec.match[0].protocol"
        return ""

    @property
    def call(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "address": self.address, "port": self.port, "host": self.host}

    @property
    def answered_by(self) -> str:
        if self.destination == "passthrough":
            return self.name
        return f"{self.destination}-{self.protocol}"


def endpoint(destination: str, protocol: str) -> int:
    """The port of the server to which services of a destination and protocol lead."""
    return (21000 if destination == "regular" else 22000) + PROTOCOLS.index(protocol)


def external_service(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"type": "MeshExternalService", "mesh": "default", "name": name, "spec": spec}


MATCHES = ("InternalVIP", "Domain", "wildcard", "CIDR", "CIDR6", "IP", "IP6")
TABLE = [
    Case(match, destination, protocol, 23000 + number)
    for number, (match, destination, protocol) in enumerate(
        (match, destination, protocol)
        for match in MATCHES
        for destination in ("regular", "secure", "passthrough")
        for protocol in PROTOCOLS
    )
]
LEGAL = [case for case in TABLE if not case.refused_at]
ILLEGAL = [case for case in TABLE if case.refused_at]


# The outside.


class Certified(NamedTuple):
    """A server with TLS, and what comes of calls to it by a service that trusts the CA of the test."""

    certificate: Pair
    status: int = 200
    server: Mapping[str, Any] = MappingProxyType({})
    tls: Mapping[str, Any] = MappingProxyType({})


CLIENT = made("client", (), AUTHORITY)
OWN_CERTIFICATE = {
    "clientCert": {"inlineString": CLIENT.pem},
    "clientKey": {"inlineString": CLIENT.key_pem},
}
GOOD = made("good", (HUB, "good.outside.test"), AUTHORITY)
CERTIFIED = {
    "good": Certified(GOOD),
    "by-name": Certified(GOOD, tls={"verification": {"subjectAltNames": ["good.outside.test"]}}),
    "wrong-name": Certified(made("wrong", ("wrong.outside.test",), AUTHORITY), 503),
    "wrong-name-skipped": Certified(
        made("wrong", ("wrong.outside.test",), AUTHORITY), tls={"verification": {"skip": True}}
    ),
    "strange-ca": Certified(made("strange", (HUB,), STRANGER), 503),
    "strange-ca-names-skipped": Certified(
        made("strange", (HUB,), STRANGER), 503, tls={"verification": {"skip": True}}
    ),
    "expired": Certified(made("expired", (HUB,), AUTHORITY, is_expired=True), 503),
    "asks": Certified(GOOD, server={"asks": True}, tls=OWN_CERTIFICATE),
    "asks-in-vain": Certified(GOOD, 503, {"asks": True}),
    "only-1-2": Certified(GOOD, server={"version": "1.2"}),
    "only-1-3": Certified(GOOD, server={"version": "1.3"}),
    "only-1-3-too-new": Certified(GOOD, 503, {"version": "1.3"}, {"version": {"max": "TLSv1_2"}}),
}


def certified_port(name: str) -> int:
    return 24000 + list(CERTIFIED).index(name)


def servers(socket: Path) -> list[dict[str, Any]]:
    """All servers of the outside."""
    found = [
        {"name": case.answered_by, "protocol": case.protocol, "port": case.port}
        for case in LEGAL
        if case.destination == "passthrough"
    ]
    for destination in ("regular", "secure"):
        for protocol in PROTOCOLS:
            port = endpoint(destination, protocol)
            found.append({"name": f"{destination}-{protocol}", "protocol": protocol, "port": port})
    for each in found:
        if each["protocol"] == "tls" or each["name"].startswith("secure-"):
            each["certificate"] = "good.pem"
    found += [
        {
            "name": name,
            "protocol": "http",
            "port": certified_port(name),
            "certificate": f"{name}.pem",
            **each.server,
        }
        for name, each in CERTIFIED.items()
    ]
    found.append({"name": "kafka", "protocol": "tls", "port": 9092, "certificate": "good.pem"})
    found.append({"name": "outside", "protocol": "http", "port": 80})
    found.append({"name": "second", "protocol": "http", "port": 8000})
    found.append({"name": "on-a-socket", "protocol": "http", "path": str(socket)})
    return found


# The machines.


class Machines:
    """A machine with a proxy, one with all of the outside, and the mesh."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.hub, self.web = network.namespace("hub"), network.namespace("web")
        network.connect(self.hub, self.web, "10.9.1", "fd09:1")
        for number in range(1, 4):  # brokers of a many-host service
            self.hub.run("ip", "address", "add", f"10.9.7.{number}/32", "dev", "lo")
        self.socket = network.home(PROXY) / "outside.sock"
        outside = directory.parent / "outside"
        outside.mkdir()
        (outside / "ca.pem").write_text(AUTHORITY.pem)
        for name, each in CERTIFIED.items():
            (outside / f"{name}.pem").write_text(each.certificate.pem + each.certificate.key_pem)
        (outside / "servers.json").write_text(json.dumps(servers(self.socket)))
        script = str(HERE / "outside_servers.py")
        self.hub.start("outside", sys.executable, script, str(outside), until_output="serves")
        self.hub.start_name_server("outside.test", HUB, HUB)
        self.web.use_name_servers(HUB)
        self.mesh = HubMesh(directory, network, self.hub)
        self.mesh.start_control_plane()
        self.mesh.apply({"type": "Mesh", "name": "default", **CLOSED})
        self.web.run(KOGUMA, "dp", "install", "transparent-proxy", "--uid", str(PROXY))
        self.logs = network.home(PROXY)
        web = ("--service", "web", "--address", "10.9.1.2", "--user", str(PROXY))
        web += ("--access-log-dir", str(self.logs))
        self.proxy = self.mesh.proxy(self.web, "web-1", *web, uid=0)
        self.proxy.wait_for_output("is ready")

    def calls(self, *calls: dict[str, Any]) -> list[Any]:
        """What programs on web get."""
        words = (sys.executable, str(HERE / "outside_callers.py"))
        return json.loads(self.web.run(*words, stdin=json.dumps(calls)).stdout)

    def call(self, **call: Any) -> Any:
        (answer,) = self.calls({"protocol": "http", "port": 80, "host": "", "address": HUB, **call})
        return answer


CLOSED = {"networking": {"outbound": {"passthrough": False}}}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    directory = tmp_path_factory.mktemp("external")
    with Network(directory) as network:
        yield Machines(network, directory / "mesh")


def kri(name: str, port: int) -> str:
    return f"kri_extsvc_default_default__{name}_{port}"


def test_every_legal_match_destination_and_protocol_carries_traffic(machines: Machines):
    machines.mesh.apply_only(*(case.service for case in LEGAL))
    by_name = next(case for case in LEGAL if case.match == "InternalVIP")
    until(lambda: machines.web.resolve(by_name.host) != "", "virtual addresses have names")
    answers = machines.calls(*(case.call for case in LEGAL))
    shown = {
        case.name: answer.get("server") if isinstance(answer, dict) else answer
        for case, answer in zip(LEGAL, answers, strict=True)
    }
    assert shown == {case.name: case.answered_by for case in LEGAL}
    used = machines.proxy.stats(r"^cluster\.kri_extsvc_.*\.upstream_cx_total$")
    stats = {f"cluster.{kri(case.name, case.port)}.upstream_cx_total" for case in LEGAL}
    assert {name for name, count in used.items() if count} == stats, "one cluster per port, named by KRI"


def test_what_is_illegal_is_refused_with_the_path_of_the_field(machines: Machines):
    for case in ILLEGAL:
        path = f"/meshes/default/meshexternalservices/{case.name}"
        answer = machines.mesh.request("PUT", path, case.service)
        assert answer.status == 400, case.name
        assert case.refused_at in [each["field"] for each in answer.json["invalid_parameters"]], case.name


def test_nothing_else_is_let_out(machines: Machines):
    machines.mesh.apply_only(*(case.service for case in LEGAL))
    chosen = {(case.match, case.protocol): case for case in LEGAL if case.destination == "passthrough"}
    domain, ranged = chosen["Domain", "http"], chosen["IP", "tcp"]
    calls = {
        "another host": {**domain.call, "host": "b.outside.test"},
        "the same host on another port": {**domain.call, "port": 80},
        "another server name": {**chosen["wildcard", "tls"].call, "host": "b.outside.test"},
        "the wildcard without anything": {
            **chosen["wildcard", "tls"].call,
            "host": chosen["wildcard", "tls"].host[2:],
        },
        "another address": {**ranged.call, "address": "10.9.7.1"},
        "another protocol": {**domain.call, "protocol": "tcp"},
    }
    answers = dict(zip(calls, machines.calls(*calls.values()), strict=True))
    assert answers == {**dict.fromkeys(calls, "closed"), "another host": 503}


def test_tls_that_the_proxy_starts_is_checked(machines: Machines):
    services = [
        external_service(
            name,
            {
                "match": [
                    {"type": "Domain", "value": f"{name}.outside.test", "port": 80, "protocol": "http"}
                ],
                "destination": {
                    "type": "Regular",
                    "endpoints": [{"address": HUB, "port": certified_port(name)}],
                    "tls": {"enabled": True, "caCert": CA, **each.tls},
                },
            },
        )
        for name, each in CERTIFIED.items()
    ]
    machines.mesh.apply_only(*services)
    call = {"protocol": "http", "address": NOWHERE, "port": 80}
    answers = machines.calls(*({**call, "host": f"{name}.outside.test"} for name in CERTIFIED))
    shown = {
        name: 200 if isinstance(answer, dict) and answer["server"] == name else answer
        for name, answer in zip(CERTIFIED, answers, strict=True)
    }
    assert shown == {name: each.status for name, each in CERTIFIED.items()}


def test_a_unix_socket_is_called_by_a_domain(machines: Machines):
    destination = {"type": "Regular", "endpoints": [{"address": f"unix://{machines.socket}"}]}
    match = {"type": "Domain", "value": "socket.outside.test", "port": 80, "protocol": "http"}
    machines.mesh.apply_only(external_service("on-a-socket", {"match": [match], "destination": destination}))
    assert machines.call(host="socket.outside.test", address=NOWHERE)["server"] == "on-a-socket"


def test_a_thick_client_finds_each_of_many_hosts_behind_a_wildcard(machines: Machines):
    match = {"type": "Domain", "value": "*.kafka.outside.test", "port": 9092, "protocol": "tls"}
    machines.mesh.apply_only(external_service("kafka", {"match": [match]}))
    brokers = {f"b{number}.kafka.outside.test": f"10.9.7.{number}" for number in range(1, 4)}
    answers = machines.calls(
        *({"protocol": "tls", "address": at, "port": 9092, "host": host} for host, at in brokers.items())
    )
    assert [(each["sni"], each["at"]) for each in answers] == list(brokers.items())
    (other,) = machines.calls(
        {"protocol": "tls", "address": "10.9.7.1", "port": 9092, "host": "b.kafka.elsewhere.test"}
    )
    assert other == "closed"


def on_domain(name: str, port: int = 80, protocol: str = "http", **destination: Any) -> dict[str, Any]:
    """A service that takes calls to a domain, and sends them to the second server unless told otherwise."""
    match = {"type": "Domain", "value": f"{name}.outside.test", "port": port, "protocol": protocol}
    regular = {"type": "Regular", "endpoints": [{"address": HUB, "port": 8000}]}
    return external_service(name, {"match": [match], "destination": destination or regular})


def policy(kind: str, service: str, conf: dict[str, Any], **spec: Any) -> dict[str, Any]:
    to = {"targetRef": {"kind": "MeshExternalService", "name": service}}
    to |= {"rules": conf["rules"]} if "rules" in conf else {"default": conf}
    return {
        "type": kind,
        "mesh": "default",
        "name": f"{kind}-{service}".lower(),
        "spec": {**spec, "to": [to]},
    }


def test_policies_act_on_one_of_several_services_that_share_a_port(machines: Machines):
    log = machines.logs / "hasty.log"
    format_ = {"type": "Plain", "plain": "%REQ(:AUTHORITY)% %RESPONSE_CODE%"}
    to_second = {"kind": "MeshExternalService", "name": "second", "port": 8000}
    machines.mesh.apply_only(
        on_domain("hasty"),
        on_domain("patient", type="Passthrough"),
        on_domain("second", 8000),
        external_service(
            "lines",
            {"match": [{"type": "CIDR", "value": "198.51.100.0/24", "port": 5432, "protocol": "tcp"}]},
        ),
        policy("MeshTimeout", "hasty", {"http": {"requestTimeout": "1s"}}),
        policy("MeshTimeout", "patient", {"http": {"requestTimeout": "0s"}}),
        policy(
            "MeshAccessLog",
            "hasty",
            {"backends": [{"type": "File", "file": {"path": str(log), "format": format_}}]},
        ),
        policy(
            "MeshHTTPRoute",
            "patient",
            {
                "rules": [
                    {
                        "matches": [{"path": {"type": "PathPrefix", "value": "/other"}}],
                        "default": {"backendRefs": [to_second]},
                    }
                ]
            },
        ),
        policy(
            "MeshTCPRoute",
            "lines",
            {
                "rules": [
                    {"default": {"backendRefs": [{**to_second, "name": "regular-lines", "port": 21000}]}}
                ]
            },
        ),
        external_service(
            "regular-lines",
            {
                "match": [{"type": "IP", "value": "198.51.100.9", "port": 21000, "protocol": "tcp"}],
                "destination": {"type": "Regular", "endpoints": [{"address": HUB}]},
            },
        ),
    )
    call = {"protocol": "http", "address": HUB, "port": 80}
    hasty, patient = "hasty.outside.test", "patient.outside.test"
    answers = machines.calls(
        {**call, "host": hasty, "path": "/sleep/2"},
        {**call, "host": patient, "path": "/sleep/2"},
        {**call, "host": patient, "path": "/other"},
        {**call, "protocol": "tcp", "address": NOWHERE, "port": 5432},
    )
    assert answers[0] == 504, "its own timeout"
    assert [each["server"] for each in answers[1:]] == ["outside", "second", "regular-tcp"]
    unchanged = {"Host": patient, "Accept-Encoding": "identity"}
    assert answers[1]["headers"] == {**unchanged, "x-forwarded-proto": "http"}, "nothing else was added"
    until(lambda: log.exists() and log.read_text() != "", "the call is logged")
    assert log.read_text().splitlines() == [f"{hasty} 504"]


def edits() -> list[list[dict[str, Any]]]:
    """What an operator may make of a service, step by step, without making it unreachable."""
    domain = {"type": "Domain", "value": "edited.outside.test", "port": 80, "protocol": "http"}
    address = {"type": "IP", "value": "10.9.7.3", "port": 80, "protocol": "http"}
    second, other = {"address": HUB, "port": 8000}, {"address": HUB, "port": 80}

    def edited(*matches: dict[str, Any], **destination: Any) -> dict[str, Any]:
        return external_service("edited", {"match": list(matches), "destination": destination})

    secure = {
        "type": "Regular",
        "endpoints": [{"address": HUB, "port": certified_port("good")}],
        "tls": {"enabled": True, "caCert": CA},
    }
    regular = edited(domain, type="Regular", endpoints=[second])
    timeout = policy("MeshTimeout", "edited", {"connectionTimeout": "4s", "http": {"requestTimeout": "9s"}})
    by_tls = external_service(
        "by-tls", {"match": [{"type": "Domain", "value": "*.test", "port": 443, "protocol": "tls"}]}
    )
    by_tcp = external_service(
        "by-tcp", {"match": [{"type": "CIDR", "value": "10.9.7.0/24", "port": 80, "protocol": "tcp"}]}
    )
    lines = external_service(
        "lines",
        {
            "match": [{"type": "IP", "value": NOWHERE, "port": 5432, "protocol": "tcp"}],
            "destination": {"type": "Regular", "endpoints": [{"address": HUB, "port": 21000}]},
        },
    )
    steps = [
        [edited(domain, type="Regular", endpoints=[second, other])],
        [edited(domain, address, type="Regular", endpoints=[other])],
        [regular, timeout],
        [regular, timeout, on_domain("neighbour")],
        [regular, on_domain("neighbour"), by_tls],
        [regular, by_tls, by_tcp],
        [edited(domain, **secure), by_tcp],
        [edited(domain, type="Passthrough")],
        [edited({**domain, "value": "*.outside.test"}, type="Passthrough")],
        [edited({**address, "value": "10.9.0.0/16", "type": "CIDR"}, **secure), timeout],
        [regular],
    ]
    return [[*step, lines] for step in steps]


def test_no_request_fails_while_a_service_is_edited_under_load(machines: Machines):
    *_, last = edits()
    machines.mesh.apply_only(*last)
    words = ("-m", "tests.traffic.load_generator", "80", "500", HUB, "edited.outside.test")
    load = machines.web.start("load", "env", f"PYTHONPATH={ROOT}", sys.executable, *words, until_output="")
    line = machines.web.start("line", sys.executable, "-c", LINE, NOWHERE, until_output="1")
    for step in edits():
        machines.mesh.apply_only(*step)
    load.stop()
    counts = json.loads(load.output)
    assert counts.keys() == {"200"}
    assert counts["200"] >= 500
    before = line.output
    until(lambda: line.output != before, "a connection of another service has stayed open all the time")


# One connection, over which it asks again and again; prints how often it was answered.
LINE = """
import itertools, socket, sys, time
connection = socket.create_connection((sys.argv[1], 5432))
lines = connection.makefile("rb")
for number in itertools.count(1):
    connection.sendall(b"hello\\n")
    assert lines.readline(), "closed"
    print(number, flush=True)
    time.sleep(0.05)
"""


OVERLAP = "first and second have overlapping IPs 10.9.7.1, which can disrupt your traffic."


def test_what_may_disrupt_traffic_is_said_everywhere(machines: Machines):
    first, second, tcp = (
        {"type": "CIDR", "value": "10.9.7.0/24", "port": 9092, "protocol": "tls"},
        {"type": "IP", "value": "10.9.7.1", "port": 9092, "protocol": "tls"},
        {"type": "Domain", "value": "db.outside.test", "port": 5432, "protocol": "tcp"},
    )
    warnings = machines.mesh.apply_only(
        external_service("first", {"match": [first]}),
        external_service("second", {"match": [second, tcp]}),
    )
    takes = "takes all traffic on port 5432"
    assert sum(OVERLAP in text for text in warnings) == 1, "once for both"
    assert sum(takes in text for text in warnings) == 1
    linted = machines.mesh.koguma_on_hub("lint", "--live")
    assert (linted.count(OVERLAP), linted.count(takes)) == (1, 1)
    plain = "/meshes/default/meshexternalservices"
    kube = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshexternalservices"
    for path in (plain, kube):
        for name, expected in (("first", {"Overlapping"}), ("second", {"Overlapping", "WholePortTaken"})):
            until(lambda at=f"{path}/{name}", of=expected: conditions(machines, at).keys() == of, name)
            assert conditions(machines, f"{path}/{name}")["Overlapping"] == OVERLAP
    logged = [line for line in machines.mesh.control_plane.output.splitlines() if OVERLAP in line]
    assert len(logged) == 1, "once, and not in every round"
    machines.mesh.apply_only(external_service("second", {"match": [second]}))
    until(lambda: not conditions(machines, f"{plain}/second"), "what is corrected is said no longer")


def conditions(machines: Machines, path: str) -> dict[str, str]:
    status = machines.mesh.request("GET", path).json.get("status") or {}
    return {each["type"]: each["message"] for each in status.get("conditions") or ()}
