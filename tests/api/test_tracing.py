"""Traces of requests: a real control plane sends to a real collector, which the test runs."""

import asyncio
import gzip
import queue
import subprocess
import sys
import threading
import time

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from koguma.api import tracing
from koguma.model.errors import Invalid, KogumaError
from koguma.runtime import settings
from tests.build import timeout
from tests.control_plane import LocalControlPlane

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
pytestmark = pytest.mark.expected_errors(
    "meshtimeouts/slow.*request failed"
)  # one of the requests is made to fail

SERVER_KIND = 2
ERROR_STATUS = 2


class Collector:
    """Takes what an OTLP/HTTP exporter sends, and keeps spans by name."""

    def __init__(self):
        self._arrived = queue.Queue()
        self.spans = []
        self.headers = {}
        self.resource = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_):
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _start(self):
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _take(self, request):
        data = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        message = ExportTraceServiceRequest.FromString(data)
        self._arrived.put((dict(request.headers), message))
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def drained(self):
        """Everything that has arrived, as plain values."""
        while not self._arrived.empty():
            self.headers, message = self._arrived.get()
            for group in message.resource_spans:
                self.resource = attributes(group.resource)
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return self.spans

    def named(self, name):
        return [span for span in self.drained() if span.name == name]


def attributes(thing):
    values = {}
    for pair in thing.attributes:
        value = pair.value
        values[pair.key] = getattr(value, value.WhichOneof("value"))
    return values


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A collector, and all spans of some requests to a control plane that has stopped since."""
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=s3cret")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        flags = {"traces_endpoint": collector.address, "localhost_is_admin": True}
        with LocalControlPlane(tmp_path_factory.mktemp("traced"), **flags) as plane:
            ask(plane)
            config = plane("GET", "/config").body.decode()
        collector.drained()
        yield collector, config


def ask(plane):
    """One request of each sort."""
    plane("PUT", "/meshes/default/meshtimeouts/slow", timeout())
    plane("GET", "/meshes/default/meshtimeouts/slow?word=s3cret", traceparent=f"00-{TRACE}-{PARENT}-01")
    plane("GET", "/meshes", traceparent=f"00-{TRACE}-{PARENT}-00")
    plane("POST", "/_apply", {"objects": [timeout("other")]})
    plane("GET", "/nowhere")
    plane("PROPFIND", "/meshes")
    plane("GET", "/meshes/none/meshtimeouts", Authorization="Bearer nonsense")
    with plane.watch("/meshes?watch=true") as lines:
        lines.next()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plane.plane.store, "preview", None)
        plane("PUT", "/meshes/default/meshtimeouts/slow?dryRun=All", timeout())


def test_a_request_is_a_span_with_what_an_operator_asks_for(traced):
    collector, _ = traced
    (span,) = [span for span in collector.named("PUT item") if not span.status.code]
    found = attributes(span)
    request_id = found.pop("koguma.request_id")
    assert found == {
        "http.request.method": "PUT",
        "url.path": "/meshes/default/meshtimeouts/slow",
        "url.scheme": "http",
        "http.response.status_code": 201,
        "enduser.id": "mesh-system:admin",
    }
    assert "-" in request_id
    assert span.kind == SERVER_KIND
    assert span.parent_span_id == b""
    assert span.end_time_unix_nano > span.start_time_unix_nano


def test_the_resource_says_which_control_plane_it_is(traced):
    collector, _ = traced
    assert collector.resource["service.name"] == "koguma"
    assert collector.resource["koguma.zone"] == "default"
    assert collector.resource["deployment.environment.name"] == "test"
    assert collector.headers["x-api-key"] == "s3cret"


def test_the_trace_of_a_caller_is_continued(traced):
    collector, _ = traced
    (span,) = collector.named("GET item")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)


def test_what_a_caller_does_not_record_is_not_recorded_here(traced):
    collector, _ = traced
    assert collector.named("GET list") != []  # the refused one below
    assert [span for span in collector.named("GET list") if span.trace_id.hex() == TRACE] == []


@pytest.mark.parametrize("name", ["PUT item", "POST apply"])
def test_the_write_to_the_store_is_a_part_of_the_span(traced, name):
    collector, _ = traced
    (above,) = [span for span in collector.named(name) if not span.status.code]
    (write,) = [span for span in collector.named("store write") if span.parent_span_id == above.span_id]
    assert write.trace_id == above.trace_id
    assert above.start_time_unix_nano <= write.start_time_unix_nano
    assert write.end_time_unix_nano <= above.end_time_unix_nano


@pytest.mark.parametrize(
    ("name", "status", "user"),
    [
        ("GET none", 404, "mesh-system:anonymous"),
        ("_OTHER list", 405, "mesh-system:admin"),
        ("GET list", 401, "mesh-system:anonymous"),
    ],
)
def test_the_fault_of_a_caller_is_no_error(traced, name, status, user):
    collector, _ = traced
    (span,) = collector.named(name)
    found = attributes(span)
    assert (found["http.response.status_code"], found["enduser.id"]) == (status, user)
    assert span.status.code == 0


def test_a_fault_of_ours_is_an_error(traced):
    collector, _ = traced
    (span,) = [span for span in collector.named("PUT item") if span.status.code]
    assert span.status.code == ERROR_STATUS
    assert attributes(span)["error.type"] == "500"


def test_a_watch_that_its_client_left_has_ended_too(traced):
    collector, _ = traced
    (span,) = collector.named("GET watch")
    assert attributes(span)["url.path"] == "/meshes"


def test_no_secret_is_in_a_span_or_in_the_settings_that_are_shown(traced):
    collector, config = traced
    assert "s3cret" not in str(collector.drained())
    assert "s3cret" not in config
    assert collector.address in config


def test_a_ratio_of_zero_traces_only_what_callers_trace(tmp_path):
    with Collector() as collector:
        with LocalControlPlane(tmp_path, traces_endpoint=collector.address, traces_ratio="0") as plane:
            plane("GET", "/meshes")
            plane("GET", "/who-am-i", traceparent=f"00-{TRACE}-{PARENT}-01")
        assert [span.name for span in collector.drained()] == ["GET who-am-i"]


@pytest.mark.slow
def test_a_collector_that_is_away_holds_up_nobody(tmp_path):
    with LocalControlPlane(tmp_path, traces_endpoint="http://127.0.0.1:9") as plane:
        assert plane("GET", "/meshes").status == 200
        started = time.monotonic()
    assert time.monotonic() - started < 20


def test_without_the_packages_the_start_fails_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(KogumaError) as raised:
        tracing.tracer("http://127.0.0.1:4318/v1/traces", 1, {})
    assert (
        "opentelemetry.sdk.trace is not installed; run `pip install 'koguma[traces]'`" in raised.value.detail
    )


@pytest.mark.slow
def test_a_control_plane_without_traces_imports_nothing_for_them():
    code = "import sys, koguma.main; print([name for name in sys.modules if 'opentelemetry' in name])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# Which address it is.

BASE, FULL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ADDRESSES = [
    ({}, {}, ""),
    ({"traces_endpoint": "http://c:4318"}, {}, "http://c:4318/v1/traces"),
    ({"traces_endpoint": "http://c:4318/"}, {}, "http://c:4318/v1/traces"),
    ({"traces_endpoint": "https://c/otel/x"}, {}, "https://c/otel/x"),
    ({}, {BASE: "http://c:4318"}, "http://c:4318/v1/traces"),
    ({}, {BASE: "http://c/otel/"}, "http://c/otel/v1/traces"),
    ({}, {BASE: "http://c:4318", FULL: "http://d/x"}, "http://d/x"),
    ({"traces_endpoint": "http://e"}, {BASE: "http://c:4318"}, "http://e/v1/traces"),
    ({}, {BASE: " "}, ""),
]


@pytest.mark.parametrize(("flags", "environment", "address"), ADDRESSES)
def test_the_address_comes_from_our_setting_or_from_the_usual_variables(flags, environment, address):
    found = settings.load(None, {"KOGUMA_DATA_DIR": "data", **environment}, flags)
    assert found.traces_url == address


@pytest.mark.parametrize(
    ("flags", "environment", "field"),
    [
        ({"traces_endpoint": "collector:4318"}, {}, "--traces-endpoint"),
        ({"traces_endpoint": "http://"}, {}, "--traces-endpoint"),
        ({"traces_endpoint": "http://x:y"}, {}, "--traces-endpoint"),
        ({}, {BASE: "grpc://c:4317"}, BASE),
        ({"traces_ratio": "1.5"}, {}, "--traces-ratio"),
        ({"traces_ratio": "half"}, {}, "--traces-ratio"),
        ({}, {"KOGUMA_TRACES_RATIO": "-1"}, "KOGUMA_TRACES_RATIO"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_source(flags, environment, field):
    with pytest.raises(Invalid) as raised:
        settings.load(None, {"KOGUMA_DATA_DIR": "data", **environment}, flags)
    assert [violation.field for violation in raised.value.violations] == [field]


def test_a_ratio_comes_from_a_variable_or_a_flag():
    found = settings.load(None, {"KOGUMA_DATA_DIR": "data", "KOGUMA_TRACES_RATIO": "0.25"}, {})
    assert found.traces_ratio == 0.25
    assert settings.load(None, {"KOGUMA_DATA_DIR": "data"}, {"traces_ratio": ".5"}).traces_ratio == 0.5


def test_a_password_in_the_address_is_masked_where_settings_are_shown():
    flags = {"traces_endpoint": "https://me:s3cret@collector.example"}
    found = settings.load(None, {"KOGUMA_DATA_DIR": "data"}, flags)
    assert found.shown()["tracesEndpoint"] == "https://me:*****@collector.example"
