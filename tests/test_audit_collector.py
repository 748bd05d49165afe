"""The audit log at a collector: real requests over OTLP/HTTP, read by OpenTelemetry's own messages."""

import http.server
import threading
import time
from collections.abc import Iterator

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from koguma.control_plane.checks import audit_checks
from koguma.model.errors import Invalid, KogumaError
from koguma.runtime import settings
from koguma.runtime.audit_collector import AuditCollector
from koguma.runtime.audit_log import AuditLog
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.waiting import until

pytestmark = pytest.mark.slow
TIME = "2026-11-18T03:12:40.123+00:00"


class Collector:
    """Takes log records over HTTP, or answers with another status."""

    def __init__(self) -> None:
        self.status = 200
        self.n_requests = 0
        self.requests: list[ExportLogsServiceRequest] = []
        self.headers: dict[str, str] = {}
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.n_requests += 1
                if collector.status == 200 and self.path == "/v1/logs":
                    collector.headers = {name.lower(): text for name, text in self.headers.items()}
                    collector.requests.append(json_format.Parse(body, ExportLogsServiceRequest()))
                self.send_response(collector.status)
                if collector.status == 307:
                    self.send_header("Location", collector.address + "/elsewhere")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def records(self) -> list[LogRecord]:
        return [
            record
            for request in list(self.requests)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


def plain(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case "kvlist_value":
            return {each.key: plain(each.value) for each in value.kvlist_value.values}
        case "array_value":
            return [plain(each) for each in value.array_value.values]
        case name:
            return getattr(value, name)


def log_to(collector: Collector, environment: dict[str, str] | None = None, **more: int) -> AuditLog:
    return AuditLog(AuditCollector(f"{collector.address}/v1/logs", {}, environment or {}), **more)


def test_each_request_is_a_record_with_who_and_what(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=s3cret%20word")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    flags = {"audit_log": collector.address, "localhost_is_admin": True}
    with LocalControlPlane(tmp_path, **flags) as plane:
        assert plane("PUT", "/meshes/default/meshtimeouts/slow", timeout()).status == 201
        assert plane("GET", "/meshes/default", Authorization="Bearer hush").status == 401
        until(lambda: len(collector.records()) == 2, "both are there")
        (check,) = [each for each in plane("GET", "/_check").json["checks"] if each["name"] == "audit"]
        assert check["message"] == f"audit log {collector.address}/v1/logs: 2 events"
    (resource,) = {str(each.resource_logs[0].resource) for each in collector.requests}
    assert all(word in resource for word in ("service.instance.id", "deployment.environment.name"))
    assert collector.headers["x-api-key"] == "s3cret word"
    written, refused = collector.records()
    body = plain(written.body)
    assert (body["user"], body["verb"], body["name"], body["code"], body["allowed"]) == (
        "mesh-system:admin",
        "update",
        "slow",
        201,
        True,
    )
    assert "mesh-system:admin" in body["groups"]
    assert written.event_name == "koguma.audit"
    assert abs(written.time_unix_nano / 1e9 - time.time()) < 600
    assert written.severity_number == SeverityNumber.SEVERITY_NUMBER_INFO
    assert refused.severity_number == SeverityNumber.SEVERITY_NUMBER_WARN
    assert plain(refused.body)["allowed"] is False
    assert "hush" not in str(collector.requests)


def test_events_wait_for_a_collector_that_is_away(collector):
    collector.status = 503
    log = log_to(collector, queue_max=2)
    log.start()
    log.add({"time": TIME, "n": 1})
    until(lambda: log.problem)
    (check,) = audit_checks(log)
    assert (check.status, "status 503" in check.message) == ("warning", True)
    assert collector.address in check.hint
    for n in (2, 3, 4):  # the queue has room for two
        log.add({"time": TIME, "n": n})
    assert (log.n_written, log.n_dropped) == (0, 1)
    collector.status = 200
    until(lambda: log.n_written == 3)
    log.stop()
    assert [plain(record.body)["n"] for record in collector.records()] == [1, 2, 3]
    assert log.problem is None


@pytest.mark.parametrize("status", [400, 401, 307])
def test_what_a_collector_refuses_for_good_is_lost_and_counted(collector, status):
    collector.status = status
    log = log_to(collector)
    log.start()
    log.add({"time": TIME, "n": 1})
    until(lambda: log.n_dropped == 1)
    assert f"status {status}" in log.problem.text
    assert "OTEL_EXPORTER_OTLP_HEADERS" in log.problem.hint
    assert collector.n_requests == 1  # not sent again, and not where a redirect leads
    log.stop()


def test_a_collector_that_cannot_be_reached_holds_up_no_stop(collector):
    log = AuditLog(AuditCollector("http://127.0.0.1:1/v1/logs", {}, {}))
    log.start()
    log.add({"time": TIME, "n": 1})
    until(lambda: log.problem)
    assert "refused" in log.problem.text
    log.stop()
    assert log.n_dropped == 1


def test_what_is_no_text_is_replaced(collector):
    log = log_to(collector)
    log.start()
    log.add({"time": TIME, "user": "d\udcffra"})
    log.stop()
    assert [plain(record.body)["user"] for record in collector.records()] == ["d?ra"]


def test_wrong_settings_are_refused_in_words(tmp_path):
    with pytest.raises(Invalid) as raised:
        settings.load(None, {}, {"audit_log": "ftp://user:secret@host"})
    (violation,) = raised.value.violations
    assert "is no collector; write http://HOST:4318" in violation.message
    assert "secret" not in violation.message
    broken = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "none.pem")}
    with pytest.raises(KogumaError, match=r"none\.pem cannot be read"):
        AuditLog(AuditCollector("https://127.0.0.1:4318/v1/logs", {}, broken)).start()
    shown = settings.load(None, {}, {"audit_log": "http://ann:secret@host:4318"}).shown()["auditLog"]
    assert "secret" not in str(shown)
