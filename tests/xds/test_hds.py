"""Health discovery: a proxy is told what to check, and reports what it found, once its token lets it in."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from koguma.envoy.encode import Encoder
from koguma.envoy.health import HealthCheck
from koguma.model.errors import Forbidden, Unauthenticated
from koguma.xds import hds_stream
from koguma.xds.contract import ConnectRequest
from koguma.xds.hds import METHOD, SERVICE, HdsDecoder, HdsSession, check_encoder
from koguma.xds.hds_stream import HdsStream
from koguma.xds.limits import XdsLimits
from tests.xds.fake_gate import TOKEN, FakeGate, authority, schema, serving

NODE = "default.web-1"
CHECK = HealthCheck(name="probe", address="127.0.0.1", port=8080)
ENVOY = HealthCheck(name="envoy", address="127.0.0.1", port=9901, path="/ready", source="127.0.0.6")


class FakeHdsConnection:
    """One proxy that reports."""

    def __init__(self) -> None:
        self.refusal: Unauthenticated | None = None  # why it may not stay
        self.to_check: tuple[HealthCheck, ...] = (CHECK,)
        self.reports: asyncio.Queue[Mapping[str, bool]] = asyncio.Queue()

    def check_access(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def checks(self) -> tuple[HealthCheck, ...]:
        return self.to_check

    async def report(self, healthy: Mapping[str, bool]) -> None:
        await self.reports.put(healthy)

    async def next_report(self) -> Mapping[str, bool]:
        async with asyncio.timeout(60):
            return await self.reports.get()


class FakeHdsGate:
    """Admits proxies with one token."""

    def __init__(self) -> None:
        self.connection = FakeHdsConnection()
        self.requests: list[ConnectRequest] = []

    def authenticate(self, token: str) -> None:
        if token != TOKEN:
            raise Unauthenticated("token is not valid")

    async def connect(self, request: ConnectRequest) -> FakeHdsConnection:
        if request.token != TOKEN:
            raise Unauthenticated("token is not valid")
        if request.name == "stranger":
            raise Forbidden("this token is for another proxy")
        self.requests.append(request)
        return self.connection


class Reporter:
    """A stream, as an Envoy would open it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, **message: Any) -> None:
        name = "envoy.service.health.v3.HealthCheckRequestOrEndpointHealthResponse"
        made = json_format.ParseDict(message, schema().message_class(name)())
        await self.write(made.SerializeToString())

    async def write(self, data: bytes) -> None:
        await self._call.write(data)

    async def begin(self, node: str = NODE) -> Any:
        """Send the node; the health checks that come back."""
        await self.send(health_check_request={"node": {"id": node, "metadata": {"workdir": "somewhere"}}})
        return await self.receive()

    async def report(self, **found: str) -> None:
        clusters = [
            {
                "cluster_name": name,
                "locality_endpoints_health": [{"endpoints_health": [{"health_status": status}]}],
            }
            for name, status in found.items()
        ]
        await self.send(endpoint_health_response={"cluster_endpoints_health": clusters})

    async def receive(self) -> Any:
        async with asyncio.timeout(60):
            data = await self._call.read()
        assert data is not grpc.aio.EOF, await self.end()
        made = schema().message_class("envoy.service.health.v3.HealthCheckSpecifier").FromString(data)
        return json_format.MessageToDict(made, preserving_proto_field_name=True)

    async def end(self) -> tuple[str, str]:
        async with asyncio.timeout(60):
            return (await self._call.code()).name, await self._call.details()


@asynccontextmanager
async def reporter(port: int, token: str = TOKEN) -> AsyncIterator[Reporter]:
    credentials = grpc.ssl_channel_credentials(authority().certificate.encode())
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        yield Reporter(channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=(("authorization", token),)))


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeHdsGate, int]]:
    gate = FakeHdsGate()
    async with serving(FakeGate(), XdsLimits(first_request_seconds=0.2), health=gate) as (_, port):
        yield gate, port


def names(specifier: Any) -> list[str]:
    return [each["cluster_name"] for each in specifier["cluster_health_checks"]]


async def test_a_proxy_is_told_what_to_check_and_reports_what_it_found(served):
    gate, port = served
    gate.connection.to_check = (ENVOY, CHECK)
    async with reporter(port) as proxy:
        assert await proxy.begin() == {
            "interval": "5s",
            "cluster_health_checks": [
                {
                    "cluster_name": "envoy",
                    "locality_endpoints": [
                        {
                            "endpoints": [
                                {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 9901}}}
                            ]
                        }
                    ],
                    "health_checks": [
                        {
                            "timeout": "2s",
                            "interval": "1s",
                            "no_traffic_interval": "1s",
                            "healthy_threshold": 1,
                            "unhealthy_threshold": 1,
                            "http_health_check": {"path": "/ready"},
                        }
                    ],
                    "upstream_bind_config": {"source_address": {"address": "127.0.0.6", "port_value": 0}},
                },
                {
                    "cluster_name": "probe",
                    "locality_endpoints": [
                        {
                            "endpoints": [
                                {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 8080}}}
                            ]
                        }
                    ],
                    "health_checks": [
                        {
                            "timeout": "2s",
                            "interval": "1s",
                            "no_traffic_interval": "1s",
                            "healthy_threshold": 1,
                            "unhealthy_threshold": 1,
                            "tcp_health_check": {},
                        }
                    ],
                },
            ],
        }
        assert (gate.requests[0].mesh, gate.requests[0].name) == ("default", "web-1")
        assert gate.requests[0].metadata == {"workdir": "somewhere"}
        await proxy.report(envoy="HEALTHY", probe="TIMEOUT")
        assert await gate.connection.next_report() == {"envoy": True, "probe": False}


@pytest.mark.parametrize(
    ("status", "report"),
    [
        ("HEALTHY", {"probe": True}),
        ("DEGRADED", {"probe": True}),
        ("UNHEALTHY", {"probe": False}),
        ("DRAINING", {"probe": False}),
        ("UNKNOWN", {}),
    ],
)
async def test_what_was_not_found_out_yet_is_not_reported(served, status, report):
    gate, port = served
    async with reporter(port) as proxy:
        await proxy.begin()
        await proxy.report(probe=status, another="UNHEALTHY")
        assert await gate.connection.next_report() == report


async def test_a_proxy_is_told_again_when_it_is_to_check_something_else(served):
    gate, port = served
    async with reporter(port) as proxy:
        assert names(await proxy.begin()) == ["probe"]
        await proxy.report(probe="HEALTHY")
        await gate.connection.next_report()
        gate.connection.to_check = (ENVOY,)
        await proxy.report(probe="HEALTHY")
        assert await gate.connection.next_report() == {"probe": True}
        assert names(await proxy.receive()) == ["envoy"]
        await proxy.report(probe="HEALTHY", envoy="HEALTHY")
        assert await gate.connection.next_report() == {"envoy": True}, (
            "what was to be checked before counts no more"
        )


@pytest.mark.parametrize(
    ("node", "token", "code", "text"),
    [
        (NODE, "wrong", "UNAUTHENTICATED", "authentication failed: token is not valid"),
        ("default.stranger", TOKEN, "PERMISSION_DENIED", "this token is for another proxy"),
        ("web", TOKEN, "INVALID_ARGUMENT", "request must have a valid Proxy ID: the name should be"),
    ],
)
async def test_who_may_not_report_is_told_why(served, node, token, code, text):
    gate, port = served
    async with reporter(port, token) as proxy:
        await proxy.send(health_check_request={"node": {"id": node}})
        end = await proxy.end()
        assert (end[0], end[1].startswith(text)) == (code, True), end
        assert not gate.requests


async def test_a_stream_that_says_nothing_ends(served):
    _, port = served
    async with reporter(port) as proxy:
        assert await proxy.end() == ("INVALID_ARGUMENT", "no request within 0.2 seconds")


async def test_a_stream_that_says_nothing_more_ends(served, monkeypatch):
    monkeypatch.setattr(hds_stream, "REPORT_SECONDS_MAX", 0.1)
    _, port = served
    async with reporter(port) as proxy:
        await proxy.begin()
        assert await proxy.end() == ("DEADLINE_EXCEEDED", "no report within 0.1 seconds")


async def test_a_stream_that_makes_no_sense_ends(served):
    _, port = served
    async with reporter(port) as proxy:
        await proxy.begin()
        await proxy.write(b"\xff\xff")
        code, text = await proxy.end()
        assert (code, text.startswith("the report cannot be read: ")) == ("INVALID_ARGUMENT", True)


async def test_a_newer_stream_of_a_proxy_takes_the_place_of_an_older_one(served):
    gate, port = served
    async with reporter(port) as older, reporter(port) as newer:
        await older.begin()
        await newer.begin()
        assert await older.end() == ("ABORTED", "a newer stream of the same proxy took its place")
        await newer.report(probe="HEALTHY")
        assert await gate.connection.next_report() == {"probe": True}


async def test_a_server_that_stops_ends_the_streams():
    async with serving(FakeGate(), health=FakeHdsGate()) as (server, port), reporter(port) as proxy:
        await proxy.begin()
        await server.stop(5)
        assert await proxy.end() == ("UNAVAILABLE", "the control plane is stopping")


class SlowCall:
    """A call whose message is written when its reader lets it."""

    def __init__(self) -> None:
        self.is_begun, self.is_written = asyncio.Event(), asyncio.Event()
        self.is_cut = False

    async def write(self, _message: bytes) -> None:
        self.is_begun.set()
        try:
            await self.is_written.wait()
        except asyncio.CancelledError:
            self.is_cut = True
            raise

    async def read(self) -> Any:
        await asyncio.Event().wait()

    def peer(self) -> str:
        return "127.0.0.1:1"


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_stream_ends_after_a_write_in_progress_or_is_cut_off(is_read):
    """gRPC sends no status while a message is being written."""
    call, request = SlowCall(), ConnectRequest("default", "web-1", TOKEN, {})
    session = HdsSession(check_encoder(Encoder(schema())))
    connection = FakeHdsConnection()
    stream = HdsStream(call, HdsDecoder(schema()), session, connection, request, 60 if is_read else 0.01)
    running = asyncio.create_task(stream.run())
    await call.is_begun.wait()
    stream.end(grpc.StatusCode.UNAVAILABLE, "the control plane is stopping")
    if is_read:
        await asyncio.sleep(0)
        call.is_written.set()
    status = await running
    assert (status.code, status.details) == (grpc.StatusCode.UNAVAILABLE, "the control plane is stopping")
    assert (stream.is_cut_off, call.is_cut) == (not is_read, not is_read)


async def test_a_server_without_that_door_does_not_know_the_service():
    async with serving(FakeGate()) as (_, port), reporter(port) as proxy:
        await proxy.send(health_check_request={"node": {"id": NODE}})
        assert (await proxy.end())[0] == "UNIMPLEMENTED"
