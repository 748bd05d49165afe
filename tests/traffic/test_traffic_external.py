"""Calls to the outside by programs behind real Envoys: every match, destination and protocol."""

from collections.abc import Iterator

import pytest

from tests import build
from tests.hub_mesh import HUB
from tests.traffic import outside_machines
from tests.traffic.outside_machines import CERTIFIED, CLOSED, Machines, certified_port
from tests.traffic.outside_table import CA, ILLEGAL, LEGAL, NOWHERE, external_service
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with outside_machines.started(tmp_path_factory.mktemp("external")) as running:
        yield running


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
    clusters = {name.split(".")[1] for name, count in used.items() if count}
    assert clusters == {case.kri for case in LEGAL}, "one cluster per port"


@pytest.mark.expected_errors("would be this very listener")
def test_without_redirection_services_with_endpoints_are_called_on_ports_of_the_proxy(machines: Machines):
    machines.mesh.apply_only(*(case.service for case in LEGAL))
    local = {case: 26000 + number for number, case in enumerate(LEGAL)}
    regular = [case for case in LEGAL if case.destination != "passthrough"]
    (unchanged,) = [case for case in LEGAL if case.name == "domain-passthrough-http"]
    outbounds = [f"--outbound=extsvc/{case.name}:{case.port}:{local[case]}" for case in (*regular, unchanged)]
    flags = ("--service", "explicit", "--address", HUB, "--no-dns", *outbounds)
    proxy = machines.mesh.proxy(machines.hub, "explicit-1", *flags, transparent=False)
    proxy.wait_for_output("is ready")
    calls = [{**case.call, "address": "127.0.0.1", "port": local[case]} for case in (*regular, unchanged)]
    *answers, refused = machines.calls(*calls, on=machines.hub)
    shown = {
        case.name: answer.get("server") if isinstance(answer, dict) else answer
        for case, answer in zip(regular, answers, strict=True)
    }
    assert shown == {case.name: case.answered_by for case in regular}
    assert refused == "closed", "nobody listens there: it would call itself"
    (failure,) = machines.mesh.proxies()["explicit-1"]["failures"]
    assert "give the destination type Regular and endpoints" in failure["text"]
    proxy.stop()


def test_the_same_holds_through_a_zone_egress(machines: Machines):
    machines.mesh.apply({"type": "Mesh", "name": "default", **CLOSED, "mtls": build.builtin_mtls()})
    machines.mesh.apply(build.allow_all("everybody"))
    egress = machines.mesh.egress_on_hub()
    machines.mesh.apply_only(*(case.service for case in LEGAL))
    routed = {"mtls": build.builtin_mtls(), "routing": {"zoneEgress": True}}
    machines.mesh.apply_and_wait({"type": "Mesh", "name": "default", **CLOSED, **routed})
    answers = machines.calls(*(case.call for case in LEGAL))
    shown = {
        case.name: answer.get("server") if isinstance(answer, dict) else answer
        for case, answer in zip(LEGAL, answers, strict=True)
    }
    assert shown == {case.name: case.answered_by for case in LEGAL}
    used = egress.stats(r"^cluster\.kri_extsvc_.*\.upstream_cx_total$")
    carried = {case.kri for case in LEGAL if case.destination != "passthrough"}
    assert {name.split(".")[1] for name, count in used.items() if count} == carried
    (kept,) = [
        answer["headers"]["host"]
        for case, answer in zip(LEGAL, answers, strict=True)
        if case.name == "domain-regular-http"
    ]
    assert kept == "domain-regular-http.outside.test"
    machines.mesh.apply_and_wait({"type": "Mesh", "name": "default", **CLOSED})
    egress.stop()


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
