"""External services beside policies and each other: on one port, under load, and where they overlap."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hub_mesh import HUB
from tests.netns import ROOT
from tests.traffic import outside_machines
from tests.traffic.outside_machines import Machines, certified_port, on_domain, policy
from tests.traffic.outside_table import CA, NOWHERE, endpoint, external_service
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with outside_machines.started(tmp_path_factory.mktemp("external")) as running:
        yield running


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
    line.kill()


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


def test_what_no_service_matches_passes_as_the_mesh_and_its_policies_say(machines: Machines):
    other = {"type": "Domain", "value": "other.outside.test", "port": 80, "protocol": "http"}
    services = [
        on_domain("taken"),
        on_domain("on-a-port-of-grpc", endpoint("regular", "grpc")),
        external_service(
            "kafka",
            {"match": [{"type": "Domain", "value": "*.outside.test", "port": 9092, "protocol": "tls"}]},
        ),
    ]
    calls = {
        "the service": {"host": "taken.outside.test"},
        "another host": {"host": "other.outside.test"},
        "a third host": {"host": "third.outside.test"},
        "over HTTP/2": {
            "protocol": "grpc",
            "host": "third.outside.test",
            "port": endpoint("regular", "grpc"),
        },
        "another port": {"host": "", "port": 8000},
        "over TLS": {"host": "a.elsewhere.test", "protocol": "tls", "port": 9092},
    }
    asked = [{"protocol": "http", "address": HUB, "port": 80, **call} for call in calls.values()]

    def answers() -> dict[str, Any]:
        found = dict(zip(calls, machines.calls(*asked), strict=True))
        return {name: each["server"] if isinstance(each, dict) else each for name, each in found.items()}

    machines.mesh.apply_only(*services)
    got = answers()
    assert got.pop("over HTTP/2").startswith("UNAVAILABLE")
    assert got == {
        "the service": "second",
        "another host": 503,
        "a third host": 503,
        "another port": "closed",
        "over TLS": "closed",
    }
    matched = {"default": {"appendMatch": [other]}}
    passthrough = {"type": "MeshPassthrough", "mesh": "default", "name": "some", "spec": matched}
    machines.mesh.apply_only(*services, passthrough)
    got = answers()
    assert (got["the service"], got["another host"], got["a third host"]) == ("second", "outside", 503)

    everything = {**passthrough, "spec": {"default": {"passthroughMode": "All"}}}
    machines.mesh.apply_only(*services, everything)
    assert answers() == {
        "the service": "second",
        "another host": "outside",
        "a third host": "outside",
        "over HTTP/2": "regular-grpc",
        "another port": "second",
        "over TLS": "kafka",
    }


@pytest.mark.expected_errors("bad_80|rejected|quarantine")
def test_a_service_that_envoy_refuses_takes_no_other_away(machines: Machines):
    junk = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    bad = on_domain(
        "bad",
        type="Regular",
        endpoints=[{"address": HUB, "port": 8000}],
        tls={"enabled": True, "caCert": {"inlineString": junk}},
    )
    machines.mesh.apply_only(on_domain("good"))
    machines.mesh.apply(bad, on_domain("late"))
    hosts = [f"{name}.outside.test" for name in ("good", "late", "bad")]
    asked = [{"protocol": "http", "address": HUB, "port": 80, "host": host} for host in hosts]

    def answers() -> list[Any]:
        return [each["server"] if isinstance(each, dict) else each for each in machines.calls(*asked)]

    until(lambda: answers() == ["second", "second", 503], "the others are called, it is not")
    machines.restart_proxy()
    until(lambda: answers() == ["second", "second", 503], "so they are by an Envoy that starts anew")
    assert "kri_extsvc_default_default__bad_80" in str(machines.mesh.proxies()["web-1"]["rejections"])
    for name in ("bad", "late"):
        machines.mesh.delete_and_wait("meshexternalservices", name)


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
    shown = {each["type"]: each.get("message", "") for each in status.get("conditions") or ()}
    shown.pop("Programmed", None)  # in the Kubernetes form: that proxies have it
    return shown
