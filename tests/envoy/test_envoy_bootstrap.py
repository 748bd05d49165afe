"""Bootstrap: what Envoy reads at its start says who it is, whom it trusts, and keeps names whole."""

import asyncio
import contextlib
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web

from koguma.envoy import bootstrap, names
from koguma.envoy.bootstrap import AdsEndpoint, AdsServer, BootstrapNode
from koguma.identity import certificates
from koguma.model.redacted import Redacted

ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
TOKEN = "header.body.signature"
DOTTED = "kri_msvc_mesh-1_us-east-2_kuma-demo_backend.v1.example_httpport"
NODE = BootstrapNode("default.web-1", "web", {"features": ["feature-embedded-dns"], "ipv6Enabled": True})
SECONDS = 60


@pytest.fixture(scope="module")
def authority():
    return certificates.make_authority(certificates.make_key(), datetime.now(UTC))


def built(host="127.0.0.1", port=5679, ca="CA", directory="/run/web-1", **source: Any):
    return bootstrap.bootstrap(NODE, AdsServer(host, port, Redacted(TOKEN), ca, **source), directory)


def ads_cluster(data):
    (cluster,) = data["static_resources"]["clusters"]
    return cluster


def tls(data):
    return ads_cluster(data)["transport_socket"]["typed_config"]


def test_the_node_says_who_it_is():
    assert built()["node"] == {
        "id": "default.web-1",
        "cluster": "web",
        "metadata": {"features": ["feature-embedded-dns"], "ipv6Enabled": True},
    }


@pytest.mark.parametrize(("delta", "word"), [(True, "DELTA_GRPC"), (False, "GRPC")])
def test_configuration_comes_over_one_stream_with_the_token(delta, word):
    dynamic = built(delta=delta)["dynamic_resources"]
    assert dynamic["ads_config"]["api_type"] == word
    assert dynamic["ads_config"]["set_node_on_first_message_only"] is True
    (service,) = dynamic["ads_config"]["grpc_services"]
    assert service["envoy_grpc"]["cluster_name"] == names.ADS
    assert service["initial_metadata"] == [{"key": "authorization", "value": TOKEN}]
    for part in ("lds_config", "cds_config"):
        assert dynamic[part]["initial_fetch_timeout"] == "0s", "not ready before there is a configuration"


@pytest.mark.parametrize(
    ("host", "discovery", "san_type", "sni"),
    [
        ("127.0.0.1", "STATIC", "IP_ADDRESS", None),
        ("::1", "STATIC", "IP_ADDRESS", None),
        ("localhost", "STRICT_DNS", "DNS", "localhost"),
        ("cp.example.com", "STRICT_DNS", "DNS", "cp.example.com"),
    ],
)
def test_the_control_plane_is_verified_for_the_host_that_was_used(host, discovery, san_type, sni):
    data = built(host=host, ca="PEM")
    assert ads_cluster(data)["type"] == discovery
    assert tls(data).get("sni") == sni
    context = tls(data)["common_tls_context"]["validation_context"]
    assert context["trusted_ca"] == {"inline_string": "PEM"}
    assert context["match_typed_subject_alt_names"] == [{"san_type": san_type, "matcher": {"exact": host}}]


OTHERS = (AdsEndpoint("127.0.0.1", 6679), AdsEndpoint("cp.example.com", 5679), AdsEndpoint("::1", 5679))


def test_of_several_control_planes_each_is_verified_for_its_own_host():
    cluster = ads_cluster(built(ca="PEM", others=OTHERS, may_move=True))
    assert cluster["type"] == "STRICT_DNS", "it takes addresses and names"
    (locality,) = cluster["load_assignment"]["endpoints"]
    hosts = [
        each["metadata"]["filter_metadata"]["envoy.transport_socket_match"]["host"]
        for each in locality["lb_endpoints"]
    ]
    assert hosts == ["127.0.0.1", "127.0.0.1", "cp.example.com", "::1"]
    assert "transport_socket" not in cluster
    verified = {
        match["match"]["host"]: match["transport_socket"]["typed_config"]["common_tls_context"][
            "validation_context"
        ]["match_typed_subject_alt_names"]
        for match in cluster["transport_socket_matches"]
    }
    assert verified == {
        "127.0.0.1": [{"san_type": "IP_ADDRESS", "matcher": {"exact": "127.0.0.1"}}],
        "cp.example.com": [{"san_type": "DNS", "matcher": {"exact": "cp.example.com"}}],
        "::1": [{"san_type": "IP_ADDRESS", "matcher": {"exact": "::1"}}],
    }


def test_addresses_alone_need_no_resolver_and_are_named_once():
    others = (AdsEndpoint("127.0.0.1", 6679), AdsEndpoint("127.0.0.1", 5679))
    cluster = ads_cluster(built(others=others, may_move=True))
    assert cluster["type"] == "STATIC"
    (locality,) = cluster["load_assignment"]["endpoints"]
    assert len(locality["lb_endpoints"]) == 2
    assert "transport_socket" in cluster


def test_only_a_proxy_that_may_move_pings_and_ejects():
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

    def http2(cluster):
        return cluster["typed_extension_protocol_options"][options]["explicit_http_config"][
            "http2_protocol_options"
        ]

    alone, moving = ads_cluster(built()), ads_cluster(built(may_move=True))
    assert http2(alone) == {}
    assert "outlier_detection" not in alone
    assert "connection_keepalive" in http2(moving)
    assert moving["outlier_detection"]["max_ejection_percent"] == 50, "one is always left"


def test_a_proxy_may_trust_its_machines_authorities():
    context = tls(built(ca="", ca_path="/etc/ssl/cas.pem"))["common_tls_context"]["validation_context"]
    assert context["trusted_ca"] == {"filename": "/etc/ssl/cas.pem"}


def test_the_admin_interface_is_a_socket_of_its_owner_and_no_port():
    assert built()["admin"]["address"] == {"pipe": {"path": "/run/web-1/envoy-admin.sock", "mode": 0o600}}
    assert "socket_address" not in json.dumps(built()["admin"])


def test_an_envoy_has_limits_of_its_own():
    limits = built()["overload_manager"]
    assert [monitor["name"] for monitor in limits["resource_monitors"]] == [
        "envoy.resource_monitors.global_downstream_max_connections"
    ]
    source = AdsServer("127.0.0.1", 5679, Redacted(TOKEN), "CA")
    limits = bootstrap.bootstrap(NODE, source, "/run/web-1", heap_bytes_max=2**29)["overload_manager"]
    _, heap = limits["resource_monitors"]
    assert heap["typed_config"]["max_heap_size_bytes"] == 2**29
    shares = {each["name"]: each["triggers"][0]["threshold"]["value"] for each in limits["actions"]}
    assert shares == {
        "envoy.overload_actions.shrink_heap": 0.95,
        "envoy.overload_actions.stop_accepting_requests": 0.98,
    }


def test_long_regular_expressions_are_read():
    (layer,) = built()["layered_runtime"]["layers"]
    assert layer["static_layer"]["re2.max_program_size.error_level"] >= 10_000


@pytest.mark.parametrize(
    ("tag", "stat", "value", "rest"),
    [
        ("envoy.cluster_name", f"cluster.{DOTTED}.upstream_rq_total", DOTTED, "cluster.upstream_rq_total"),
        ("envoy.cluster_name", "cluster._kuma_ads.assignment", "_kuma_ads", "cluster.assignment"),
        *(
            ("envoy.cluster_name", f"cluster.{name}.upstream_rq_200", name, "cluster.upstream_rq_200")
            for name in (
                "meshpassthrough_tls_*.a_1.example.com_443",
                "meshpassthrough_tcp_10.0.0.0/8_*",
                "meshpassthrough_http_localhost_80",
            )
        ),
        ("envoy.http_conn_manager_prefix", f"http.{DOTTED}.rq", DOTTED, "http.rq"),
        ("envoy.listener_address", f"listener.{DOTTED}.cx", DOTTED, "listener.cx"),
        ("envoy.listener_address", "listener.127.0.0.1_80.cx", "127.0.0.1_80", "listener.cx"),
        ("envoy.tcp_prefix", f"tcp.{DOTTED}.cx", DOTTED, "tcp.cx"),
        ("envoy.rds_route_config", f"http.a.rds.{DOTTED}.ok", DOTTED, "http.a.rds.ok"),
        ("envoy.virtual_host", f"vhost.{DOTTED}.route.r.rq", DOTTED, "vhost.route.r.rq"),
        ("envoy.route", f"vhost.v.route.{DOTTED}.rq", DOTTED, "vhost.v.route.rq"),
    ],
)
def test_a_name_with_dots_is_one_label(tag, stat, value, rest):
    regex = next(each["regex"] for each in built()["stats_config"]["stats_tags"] if each["tag_name"] == tag)
    found = re.search(regex, stat)  # Envoy takes the first group out, and the second as the label
    assert found is not None
    assert (found[2], stat[: found.start(1)] + stat[found.end(1) :]) == (value, rest)


def written(directory: Path, data: Any) -> Path:
    path = directory / "bootstrap.json"
    path.write_text(json.dumps(data))
    return path


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An Envoy for as long as the block lasts."""
    process = await asyncio.create_subprocess_exec(
        *(ENVOY, "--config-path", str(path), "--disable-hot-restart"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
@pytest.mark.parametrize("source", [{}, {"delta": False}, {"others": OTHERS, "may_move": True}])
async def test_envoy_accepts_it(tmp_path, authority, host, source):
    path = written(tmp_path, built(host, ca=authority.certificate, directory=str(tmp_path), **source))
    process = await asyncio.create_subprocess_exec(
        *(ENVOY, "--mode", "validate", "--config-path", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert not re.search(r"\[(warning|error|critical)\]", output.decode())


@contextlib.asynccontextmanager
async def ads_server(
    authority, name: str
) -> AsyncIterator[tuple[int, asyncio.Queue[tuple[str, str, bytes]]]]:
    """An xDS server on 127.0.0.1 that only listens: method, token and first message of each stream."""
    heard: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()

    def method(word: str) -> Any:
        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            sent = dict(context.invocation_metadata())
            async for message in requests:
                await heard.put((word, sent["authorization"], message))
                await asyncio.Event().wait()  # until the stream ends
                yield b""

        return grpc.stream_stream_rpc_method_handler(stream)

    words = ("StreamAggregatedResources", "DeltaAggregatedResources")
    pair = certificates.make_server(authority, [name], datetime.now(UTC))
    server = grpc.aio.server()
    handlers = {word: method(word) for word in words}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADS, handlers),))
    keys = [(pair.key.reveal().encode(), pair.certificate.encode())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(keys))
    await server.start()
    try:
        yield port, heard
    finally:
        await server.stop(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "delta", "word"),
    [
        ("127.0.0.1", True, "DeltaAggregatedResources"),
        ("127.0.0.1", False, "StreamAggregatedResources"),
        ("localhost", True, "DeltaAggregatedResources"),  # ::1 is tried too, and nobody is there
    ],
)
async def test_envoy_introduces_itself_over_tls(tmp_path, authority, host, delta, word):
    async with ads_server(authority, host) as (port, heard):
        data = built(host, port, authority.certificate, str(tmp_path), delta=delta)
        async with running(written(tmp_path, data)), asyncio.timeout(SECONDS):
            method, authorization, message = await heard.get()
    assert (method, authorization) == (word, TOKEN)
    assert b"default.web-1" in message
    assert b"feature-embedded-dns" in message


@pytest.mark.slow
async def test_envoy_tells_its_token_to_no_other_server(tmp_path, authority):
    async with ads_server(authority, "other.example.com") as (port, heard):
        data = built("localhost", port, authority.certificate, str(tmp_path))
        async with running(written(tmp_path, data)), admin(tmp_path) as ask:
            await ask("/stats", r"ssl\.fail_verify_san: [1-9]")
        assert heard.empty()


@pytest.mark.slow
async def test_envoy_tells_its_token_only_to_who_is_verified_for_the_host_of_its_address(tmp_path, authority):
    """The one at 127.0.0.1 has the certificate of another of the given hosts, which is not enough."""
    async with (
        ads_server(authority, "localhost") as (wrong_port, wrong),
        ads_server(authority, "localhost") as (right_port, right),
    ):
        others = (AdsEndpoint("localhost", right_port),)
        data = built(
            "127.0.0.1", wrong_port, authority.certificate, str(tmp_path), others=others, may_move=True
        )
        async with running(written(tmp_path, data)), asyncio.timeout(SECONDS):
            await right.get()
        assert wrong.empty()


@contextlib.asynccontextmanager
async def admin(directory: Path) -> AsyncIterator[Any]:
    """A question to Envoy's admin interface, asked until there is an answer that fits."""
    path = directory / bootstrap.ADMIN_SOCKET
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
    ):

        async def ask(url: str, pattern: str = "") -> str:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://admin{url}") as response:
                        if re.search(pattern, text := await response.text()):
                            return text
                await asyncio.sleep(0.05)

        yield ask


def with_one_service(data: Any, upstream: int) -> Any:
    """The bootstrap with a listener and a cluster whose name has dots, and without a control plane."""
    del data["dynamic_resources"]
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": DOTTED,
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": DOTTED,
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": DOTTED}}],
                }
            ]
        },
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    local = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    service = {"socket_address": {"address": "127.0.0.1", "port_value": upstream}}
    data["static_resources"] = {
        "listeners": [
            {"name": DOTTED, "stat_prefix": DOTTED, "address": local, "filter_chains": [{"filters": filters}]}
        ],
        "clusters": [
            {
                "name": DOTTED,
                "type": "STATIC",
                "load_assignment": {
                    "cluster_name": DOTTED,
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": service}}]}],
                },
            }
        ],
    }
    return data


@contextlib.asynccontextmanager
async def web_server() -> AsyncIterator[int]:
    async def hello(_: web.BaseRequest) -> web.Response:
        return web.Response(text="hello")

    runner = web.ServerRunner(web.Server(hello))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_envoy_counts_under_whole_names(tmp_path):
    async with web_server() as upstream:
        path = written(tmp_path, with_one_service(built(directory=str(tmp_path)), upstream))
        async with running(path), admin(tmp_path) as ask:
            (status,) = json.loads(await ask("/listeners?format=json", "port_value"))["listener_statuses"]
            port = status["local_address"]["socket_address"]["port_value"]
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/") as response,
            ):
                assert await response.text() == "hello"
            assert (tmp_path / bootstrap.ADMIN_SOCKET).stat().st_mode & 0o777 == 0o600
            metrics = await ask("/stats/prometheus?usedonly")
    assert f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="{DOTTED}"}} 1\n' in metrics
    assert f'envoy_http_downstream_rq_total{{envoy_http_conn_manager_prefix="{DOTTED}"}} 1\n' in metrics
    assert f'envoy_listener_downstream_cx_total{{envoy_listener_address="{DOTTED}"}} 1\n' in metrics
    assert "v1_example" not in metrics
