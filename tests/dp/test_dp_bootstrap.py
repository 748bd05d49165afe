"""What a proxy says to the control plane, and what it makes of the answers."""

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator

import pytest
from stand_in import TOKEN, StandIn, packed

from koguma.cli import dp_options
from koguma.dp import bootstrap, control_plane, machine
from koguma.dp.bootstrap import BootstrapParameters, EnvoyBuild
from koguma.dp.control_plane import ControlPlaneClient, ControlPlaneDenied, ControlPlaneUnavailable
from koguma.dp.dataplane import DataplaneProxy
from koguma.fleet import bootstrap_request, node_metadata
from koguma.fleet.bootstrap_request import BootstrapRequest
from koguma.model.redacted import Redacted

ENVOY = EnvoyBuild("1.40.0", "9e55/1.40.0/Clean/RELEASE/BoringSSL")
RESOURCE = {"type": "Dataplane", "mesh": "shop", "name": "web-1", "networking": {"address": "127.0.0.1"}}


def test_the_request_says_what_the_control_plane_needs_and_nothing_empty():
    setup = BootstrapParameters(
        workdir="/run/k", envoy=ENVOY, bind_outbounds=True, dns_port=15053, system_ca="/ca.pem"
    )
    body = bootstrap.request(DataplaneProxy("shop", "web-1", RESOURCE), setup, "a CA", Redacted(TOKEN))
    assert (body["mesh"], body["name"], body["proxyType"]) == ("shop", "web-1", "dataplane")
    assert body["dataplaneToken"] == TOKEN
    assert json.loads(body["dataplaneResource"]) == RESOURCE
    assert body["features"] == [
        "feature-readiness-unix-socket",
        "feature-access-log-pipe",
        "feature-token-file",
        "feature-admin-channel",
        "feature-embedded-dns",
        "feature-bind-outbounds",
    ]
    assert body["version"]["envoy"] == {
        "version": "1.40.0",
        "build": "9e55/1.40.0/Clean/RELEASE/BoringSSL",
        "kumaDpCompatible": True,
    }
    assert (body["caCert"], body["dnsPort"], body["workdir"]) == ("a CA", 15053, "/run/k")
    assert "readinessPort" not in body
    assert body["accessLogDirectories"] == ["/var/log/koguma"]


def test_the_request_says_what_policies_may_do_on_the_machine():
    setup = BootstrapParameters(workdir="/run/k", log_directories=("/srv/logs",), allows_data_sources=True)
    body = bootstrap.request(DataplaneProxy("shop", "web-1"), setup, "", None)
    assert body["accessLogDirectories"] == ["/srv/logs"]
    assert "feature-proxy-data-sources" in body["features"]
    read = bootstrap_request.of(json.dumps(body).encode(), BootstrapRequest)
    expected = bootstrap_request.metadata(read, {}, None)
    node = node_metadata.node_metadata_of(expected)
    assert node.log_directories == ("/srv/logs",)
    assert node.allows_data_sources


def test_a_proxy_of_a_stored_dataplane_does_not_register_one():
    body = bootstrap.request(DataplaneProxy("shop", "web-1"), BootstrapParameters(workdir="/run/k"), "", None)
    assert {"dataplaneResource", "dataplaneToken", "dnsPort", "readinessPort"}.isdisjoint(body)


def test_the_control_plane_reads_what_a_proxy_writes():
    setup = BootstrapParameters(workdir="/run/k", envoy=ENVOY, dns_port=15053, is_ipv6=True)
    body = bootstrap.request(DataplaneProxy("shop", "web-1", RESOURCE), setup, "a CA", Redacted(TOKEN))
    read = bootstrap_request.of(json.dumps(body).encode(), BootstrapRequest)
    assert list(bootstrap_request.violations(read)) == []
    assert bootstrap_request.brought(read) == RESOURCE
    assert (read.mesh, read.name, read.proxy_type) == ("shop", "web-1", "dataplane")
    assert (read.dataplane_token, read.ca_cert, read.workdir) == (TOKEN, "a CA", "/run/k")
    assert (read.dns_port, read.ipv6_enabled, list(read.features)) == (15053, True, setup.features)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("\nenvoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL\n\n", ENVOY),
        (
            "envoy  version: ab/1.41.0-dev/Modified/DEBUG/BoringSSL",
            EnvoyBuild("1.41.0-dev", "ab/1.41.0-dev/Modified/DEBUG/BoringSSL"),
        ),
        ("curl 8.1.0", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_envoy_prints(printed, version):
    assert bootstrap.read_version(printed) == version


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"bootstrap": "%"}, {"bootstrap": 5}, {"bootstrap": base64.b64encode(b"[]").decode()}],
)
def test_an_answer_without_a_bootstrap_is_refused(answer):
    with pytest.raises(ControlPlaneDenied, match="there is no bootstrap in its answer"):
        bootstrap.content(answer)


def test_pauses_double_up_to_a_limit():
    assert list(itertools.islice(bootstrap.delays(0.5, 30), 8)) == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("no such mesh\n", "no such mesh"),
        ("mesh: is missing\nname: is odd", "mesh: is missing; name: is odd"),
        ("", "without a word"),
        ('{"title": "Denied", "detail": "no token"}', "Denied; no token"),
        (
            '{"invalid_parameters": [{"field": "mesh", "reason": "gone"}, {"reason": "odd"}]}',
            "mesh: gone; odd",
        ),
        ('["odd"]', '["odd"]'),
        ("{}", "{}"),
    ],
)
def test_an_error_is_told_in_the_words_of_whoever_wrote_it(body, expected):
    assert control_plane.words(body) == expected


@pytest.fixture
def plane(tmp_path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "cp") as body:
        yield body


def client(plane: StandIn, ca_file: str | None = None, address: str = "") -> ControlPlaneClient:
    return ControlPlaneClient(
        [address or plane.address], plane.ca_file if ca_file is None else ca_file, lambda: Redacted(TOKEN)
    )


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((404, b""), ControlPlaneUnavailable, "does not know this proxy yet"),
        ((503, b"starting"), ControlPlaneUnavailable, "answers 503: starting"),
        ((429, b"slowly"), ControlPlaneUnavailable, "answers 429: slowly"),
        ((404, b"404: Page Not Found"), ControlPlaneDenied, "not the port for proxies"),
        ((404, b"elsewhere"), ControlPlaneDenied, "answers 404: elsewhere"),
        ((401, b"who are you"), ControlPlaneDenied, "answers 401: who are you"),
        ((302, b""), ControlPlaneDenied, "answers 302"),
        ((200, b"<html>"), ControlPlaneDenied, "its answer is no JSON"),
    ],
)
async def test_answers_are_a_reason_to_wait_or_to_give_up(plane, answer, error, words):
    plane.answer = lambda _asked: answer
    with pytest.raises(error, match=words):
        await client(plane).post("/bootstrap", lambda _address: {})


async def test_only_a_control_plane_that_the_ca_vouches_for_is_told_the_token(plane, tmp_path):
    with (
        StandIn(tmp_path / "other") as other,
        pytest.raises(ControlPlaneDenied, match="is not trusted by the CA in"),
    ):
        await client(plane, other.ca_file).post("/bootstrap", lambda _address: {})
    with pytest.raises(ControlPlaneDenied, match="is not trusted by the system's CAs"):
        await client(plane, "").post("/bootstrap", lambda _address: {})
    assert plane.asked == []


async def test_a_ca_that_cannot_be_used_is_named(plane, tmp_path):
    with pytest.raises(ControlPlaneDenied, match=r"nowhere.pem cannot be read: No such file"):
        await client(plane, str(tmp_path / "nowhere.pem")).post("/bootstrap", lambda _address: {})
    (tmp_path / "odd.pem").write_text("no certificate")
    with pytest.raises(ControlPlaneDenied, match=r"odd.pem cannot be used"):
        await client(plane, str(tmp_path / "odd.pem")).post("/bootstrap", lambda _address: {})


async def test_what_speaks_no_tls_is_no_control_plane(plane):
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(ControlPlaneDenied, match="does not speak TLS as a control plane does"):
            await client(plane, address=address).post("/bootstrap", lambda _address: {})


async def test_nobody_at_the_address_is_a_reason_to_wait(plane):
    with pytest.raises(ControlPlaneUnavailable, match="Connection refused"):
        await client(plane, address="https://127.0.0.1:1").post("/bootstrap", lambda _address: {})


async def test_of_several_control_planes_the_next_is_asked_where_one_does_not_answer(plane, tmp_path):
    nobody = "https://127.0.0.1:1"
    with StandIn(tmp_path / "other") as other:  # which our CA does not vouch for
        addresses = [nobody, other.address, plane.address]
        planes = ControlPlaneClient(addresses, plane.ca_file, lambda: Redacted(TOKEN))
        plane.answer = lambda _asked: (200, {})
        asked: list[str] = []
        await planes.post("/bootstrap", lambda address: asked.append(address) or {})
        assert asked[-1] == plane.address
        asked.clear()
        await planes.post("/bootstrap", lambda address: asked.append(address) or {})
        assert asked == [plane.address], "who answered is asked first from then on"
        assert other.asked == []
        plane.answer = lambda _asked: (401, b"who are you")
        with pytest.raises(ControlPlaneDenied, match="who are you"):
            await planes.post("/bootstrap", lambda _address: {})
        plane.answer = lambda _asked: (503, b"starting")
        with pytest.raises(ControlPlaneUnavailable) as failed:
            await planes.post("/bootstrap", lambda _address: {})
        text = str(failed.value)
        assert "https://127.0.0.1:1: Connection refused" in text
        assert "starting" in text
        assert "is not trusted by the CA" in text
        untrusted = ControlPlaneClient([other.address], plane.ca_file, lambda: None)
        with pytest.raises(ControlPlaneDenied, match="is not trusted"):
            await untrusted.post("/bootstrap", lambda _address: {})


async def test_the_ports_of_others_are_asked_where_they_differ(plane):
    planes = ControlPlaneClient(
        [plane.address, "https://cp.example:5678", "https://[::1]:1"], plane.ca_file, lambda: None
    )
    assert planes.others(plane.address) == [("::1", 0), ("cp.example", 0)]
    plane.answer = lambda _asked: (200, {"xds": 6679})
    await planes.learn_ports()
    assert planes.others("https://cp.example:5678") == [("127.0.0.1", 6679), ("::1", 0)]
    (asked,) = plane.asked
    assert (asked.path, asked.authorization) == ("/ports", ""), "without the token"
    same = ControlPlaneClient([plane.address, f"https://a.example:{plane.port}"], plane.ca_file, lambda: None)
    await same.learn_ports()
    assert len(plane.asked) == 1, "who has the same port for proxies has the same one for xDS"


def test_the_request_names_the_others():
    proxy, setup = DataplaneProxy("shop", "web-1"), BootstrapParameters(workdir="/run/k")
    body = bootstrap.request(proxy, setup, "", None, [control_plane.OtherControlPlane("10.0.0.9", 0)])
    assert body["controlPlanes"] == [{"host": "10.0.0.9"}]
    assert "controlPlanes" not in bootstrap.request(proxy, setup, "", None)


async def test_the_bootstrap_is_fetched_when_the_control_plane_has_one(plane):
    answers = iter([(503, b""), packed({"node": {"id": "shop.web-1"}})])
    plane.answer = lambda _asked: next(answers)
    fetched = await bootstrap.fetch(client(plane), lambda _address: {"mesh": "shop"})
    assert json.loads(fetched.reveal()) == {"node": {"id": "shop.web-1"}}
    assert [request.authorization for request in plane.asked] == [f"Bearer {TOKEN}"] * 2


def test_memory_has_the_smallest_limit_on_the_way_to_the_root(tmp_path):
    own, group = tmp_path / "own", tmp_path / "cgroup" / "shop.slice" / "web.service"
    group.mkdir(parents=True)
    own.write_text("12:pids:/other\n0::/shop.slice/web.service\n")
    fetched = lambda: machine.memory_bytes_max(tmp_path / "cgroup", own)  # noqa: E731
    assert fetched() == 0
    (group / "memory.max").write_text("max\n")
    assert fetched() == 0
    (group.parent / "memory.max").write_text("536870912\n")
    assert fetched() == 536_870_912
    (group / "memory.max").write_text("268435456\n")
    assert fetched() == 268_435_456
    assert machine.memory_bytes_max(tmp_path / "nowhere", tmp_path / "none") == 0


def test_a_memory_limit_is_written_as_people_do():
    assert [dp_options.size(text) for text in ("512Mi", "2Gi", "33554432")] == [2**29, 2**31, 2**25]
    for text in ("", "Mi", "1Mi", "512M", "-512Mi", "5.5Gi", "512MiMi"):
        with pytest.raises(ValueError, match="at least 16Mi"):
            dp_options.size(text)


@pytest.mark.parametrize(
    ("resources", "limit"),
    [
        ({"maxHeapSizeBytes": 2**29}, 2**29),
        ({"maxHeapSizeBytes": 0}, 0),
        ({"maxHeapSizeBytes": 1}, 0),
        ({"maxHeapSizeBytes": -1}, 0),
        ({"maxHeapSizeBytes": 2**70}, 0),
        ({"maxHeapSizeBytes": True}, 0),
        ({"maxHeapSizeBytes": "512Mi"}, 0),
        ({}, 0),
    ],
)
def test_a_limit_that_no_envoy_can_have_is_none(resources, limit):
    request = bootstrap_request.of(json.dumps({"resources": resources}).encode(), BootstrapRequest)
    assert bootstrap_request.heap_bytes_max(request) == limit
