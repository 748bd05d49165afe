"""What others see of real traffic: lines in access logs, spans of traces, and metrics."""

import contextlib
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests import build
from tests.envoy.some_certificates import certificate, pem
from tests.http_client import call
from tests.live_mesh import APPLY_SET, LiveMesh, Sidecar, TcpEcho, echoed_bytes
from tests.ports import free_port
from tests.traffic.collectors import HttpCollector, LineCollector, MetricsPage, OtlpCollector, attributes
from tests.waiting import until

pytestmark = pytest.mark.slow

WEB, GUEST = "spiffe://default/web", "spiffe://default/guest"
OUTSIDE = "spiffe://elsewhere/metrics"


class ObservedMesh(LiveMesh):
    """A mesh with mTLS: web and guest call backend and db."""

    backend: Sidecar
    database: Sidecar
    web: Sidecar
    guest: Sidecar

    def apply_only(self, *documents: Mapping[str, Any]) -> list[str]:
        warnings = super().apply_only(*documents)
        # A connection from before has the listener from before; its first response closes it.
        for caller in (self.web, self.guest) * 2:
            caller.call("backend", path="/before")
        return warnings


def certificate_files(folder: Path) -> tuple[str, str]:
    """A certificate that has nothing to do with the mesh, and its key, as files."""
    paths = folder / "metrics.crt", folder / "metrics.key"
    for path, text in zip(paths, pem(certificate((OUTSIDE,), certificate(()))), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])


@pytest.fixture(scope="module")
def observed_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedMesh]:
    echo = TcpEcho()
    with ObservedMesh(tmp_path_factory.mktemp("watched")) as mesh:
        mesh.apply(build.mesh(mtls=build.builtin_mtls("ca-1")), build.allow_all())
        files = certificate_files(mesh.directory)
        flags = ("--metrics-cert-file", files[0], "--metrics-key-file", files[1])
        mesh.backend = mesh.sidecar("backend-1", "backend", flags=flags, wait=False)
        mesh.database = mesh.sidecar("db-1", "db", protocol="tcp", target=echo.port, wait=False)
        called = ("backend", "db")
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=called, wait=False)
        mesh.guest = mesh.sidecar("guest-1", "guest", serves=False, outbounds=called, wait=False)
        for sidecar in (mesh.backend, mesh.database, mesh.web, mesh.guest):
            sidecar.wait_for_output("is ready")
        for sidecar in (mesh.web, mesh.guest):
            until(lambda sidecar=sidecar: sidecar.call("backend").status == 200, "backend answers")
            until(lambda sidecar=sidecar: echoed_bytes(sidecar.outbounds["db"]), "db answers")
        mesh.wait_until_synced()
        yield mesh
    echo.stop()


@pytest.fixture
def mesh(observed_mesh: ObservedMesh) -> Iterator[ObservedMesh]:
    yield observed_mesh
    observed_mesh.apply_only()


@pytest.fixture
def otlp() -> Iterator[OtlpCollector]:
    collector = OtlpCollector()
    yield collector
    collector.stop()


def log(name: str, *backends: Mapping[str, Any], to: Any = None, **spec: Any) -> Mapping[str, Any]:
    """A MeshAccessLog about calls to everything, or to something."""
    entry = {"targetRef": to or {"kind": "Mesh"}, "default": {"backends": list(backends)}}
    return {"type": "MeshAccessLog", "name": name, "spec": {"to": [entry], **spec}}


def rules(name: str, *backends: Mapping[str, Any], callers: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """A MeshAccessLog about calls that arrive, of everybody or of some."""
    rule: dict[str, Any] = {"default": {"backends": list(backends)}}
    if callers:
        rule["matches"] = [{"spiffeID": {"type": "Exact", "value": each}} for each in callers]
    return {"type": "MeshAccessLog", "name": name, "spec": {"rules": [rule]}}


def file(path: Path, plain: str = "") -> Mapping[str, Any]:
    format_ = {"format": {"type": "Plain", "plain": plain}} if plain else {}
    return {"type": "File", "file": {"path": str(path), **format_}}


def lines(path: Path, *parts: str) -> list[str]:
    """The lines of a file that have all of these parts."""
    found = path.read_text().splitlines() if path.exists() else []
    return [line for line in found if all(part in line for part in parts) and "/before" not in line]


def written(path: Path, *parts: str) -> list[str]:
    """The same, as soon as there are any; Envoy writes in rounds."""
    return until(lambda: lines(path, *parts), f"{parts} in {path}")


def test_a_file_has_a_line_for_each_call_and_both_sides_know_both_services(mesh, tmp_path) -> None:
    there, here = tmp_path / "to", tmp_path / "from"
    mesh.apply_only(log("to", file(there)), rules("from", file(here)))
    assert mesh.web.call("backend", path="/seen?by=all").status == 200
    assert mesh.guest.call("backend", path="/seen?by=all").status == 200
    assert echoed_bytes(mesh.web.outbounds["db"])
    for path in (there, here):
        for source in ("web", "guest"):
            words = ('default "GET /seen?by=all HTTP/', '" 200 - ', f'"{source}" "backend" "127.0.0.1"')
            (line,) = written(path, *words)
            assert "KUMA" not in line
        (line,) = written(path, "127.0.0.1(web)->", "(db) took ")
        assert line.endswith("sent 5 bytes, received: 5 bytes")


@pytest.mark.expected_errors("cannot be built")
def test_a_file_outside_of_what_the_proxies_allow_is_not_written_and_named(mesh, tmp_path) -> None:
    inside, outside = tmp_path / "inside", Path(f"/var/tmp/koguma-{os.getpid()}.log")
    policy = log("two", file(outside), file(inside))
    answer = mesh.request(
        "POST", "/_apply", {"objects": [{"mesh": mesh.name, **policy}], "set": APPLY_SET, "prune": True}
    )
    assert answer.status == 200, answer.text
    mesh.wait_until_synced(answer.json["revision"])
    assert mesh.web.call("backend", path="/kept").status == 200
    assert written(inside, "/kept")
    assert not outside.exists()
    shown = str(mesh.proxies()["web-1"]["failures"])
    assert f'"{outside}" is not written: whoever started the proxy allows files below' in shown
    mesh.apply_only()


def test_fields_of_json_keep_their_types_and_empty_ones_may_be_left_out(mesh, tmp_path) -> None:
    values = {
        "status": "%RESPONSE_CODE%",
        "what": "%REQ(:METHOD)% %REQ(:PATH)%",
        "way": "%KUMA_TRAFFIC_DIRECTION% %KUMA_ZONE%",
        "none": "%REQ(X-NONE)%",
        "quoted": 'say \\"%KUMA_SOURCE_SERVICE%\\"',
    }
    pairs = [{"key": key, "value": value} for key, value in values.items()]
    format_ = {"type": "Json", "json": pairs, "omitEmptyValues": True}
    mesh.apply_only(
        log("json", {"type": "File", "file": {"path": str(tmp_path / "json"), "format": format_}})
    )
    assert mesh.web.call("backend", path="/status/418").status == 418
    (line,) = written(tmp_path / "json", "418")
    assert json.loads(line) == {
        "status": 418,
        "what": "GET /status/418",
        "way": "OUTBOUND default",
        "quoted": 'say "web"',
    }


def test_a_collector_of_lines_that_was_away_gets_what_it_missed(mesh) -> None:
    collector = LineCollector()
    plain = {"format": {"type": "Plain", "plain": '%REQ(:PATH)% of "%KUMA_SOURCE_SERVICE%"'}}
    fields = [{"key": "path", "value": "%REQ(:PATH)%"}, {"key": "status", "value": "%RESPONSE_CODE%"}]
    as_json = {"format": {"type": "Json", "json": fields}}
    backends = [{"type": "Tcp", "tcp": {"address": collector.address, **form}} for form in (plain, as_json)]
    mesh.apply_only(log("tcp", *backends))
    try:
        mesh.web.call("backend", path="/first")
        until(lambda: len([each for each in collector.lines if "/first" in each]) == 2, "both lines")
        assert {'/first of "web"', '{"path":"/first","status":200}'} <= set(collector.lines)
        assert "_kuma_access_log_sink" in mesh.web.admin("/config_dump?resource=dynamic_listeners")
        collector.stop()
        mesh.web.call("backend", path="/missed")
        mesh.web.wait_for_output("access log does not reach its collector")
        collector.start()
        until(lambda: '/missed of "web"' in collector.lines, "the missed line")
        mesh.web.call("backend", path="/last")
        until(lambda: '/last of "web"' in collector.lines, "the last line")
        assert collector.lines.count('/missed of "web"') == 1
        assert "" not in collector.lines, "every line ends once"
    finally:
        collector.stop()


def test_a_route_has_lines_of_its_own_in_place_of_its_services(mesh, tmp_path) -> None:
    match = {"path": {"type": "PathPrefix", "value": "/own"}}
    spec = {
        "to": [
            {
                "targetRef": {"kind": "MeshService", "name": "backend"},
                "rules": [{"matches": [match], "default": {}}],
            }
        ]
    }
    short = "%REQ(:PATH)% %ROUTE_NAME%"
    mesh.apply_only(
        {"type": "MeshHTTPRoute", "name": "own", "spec": spec},
        log("all", file(tmp_path / "all", short)),
        log("route", file(tmp_path / "own", short), to={"kind": "MeshHTTPRoute", "name": "own"}),
    )
    for path in ("/own", "/other"):
        assert mesh.web.call("backend", path=path).status == 200
    assert written(tmp_path / "own") == ["/own kri_mhttpr_default_default__own_"]
    assert written(tmp_path / "all") == ["/other _kuma_route_default"]


def test_lines_about_some_callers_only(mesh, tmp_path) -> None:
    services = "%KUMA_SOURCE_SERVICE%>%KUMA_DESTINATION_SERVICE%"
    mesh.apply_only(
        rules("all", file(tmp_path / "all", f"{services} %REQ(:PATH)%")),
        rules("web", file(tmp_path / "web", f"{services} %REQ(:PATH)%"), callers=(WEB,)),
    )
    for each in (mesh.web, mesh.guest):
        assert each.call("backend", path="/").status == 200
        assert echoed_bytes(each.outbounds["db"])
    until(lambda: len(lines(tmp_path / "all")) == 4, "four lines")
    assert sorted(lines(tmp_path / "all")) == ["guest>backend /", "guest>db -", "web>backend /", "web>db -"]
    until(lambda: len(lines(tmp_path / "web")) == 2, "two lines")
    assert sorted(lines(tmp_path / "web")) == ["web>backend /", "web>db -"]


def test_opentelemetry_gets_records_with_attributes_and_who_sent_them(mesh, otlp) -> None:
    collector = {
        "endpoint": otlp.address,
        "attributes": [{"key": "mesh.path", "value": "%REQ(:PATH)%"}],
        "body": {
            "kvlistValue": {"values": [{"key": "to", "value": {"stringValue": "%KUMA_DESTINATION_SERVICE%"}}]}
        },
    }
    mesh.apply_only(log("otel", {"type": "OpenTelemetry", "openTelemetry": collector}))
    assert mesh.web.call("backend", path="/recorded").status == 200
    sender, record = until(lambda: recorded(otlp, "/recorded"), "a record")
    assert sender["service.name"] == "web"
    assert attributes(record["body"]["kvlistValue"]["values"]) == {"to": "backend"}


def recorded(otlp: OtlpCollector, path: str) -> tuple[dict[str, Any], Any] | None:
    """Who sent a record with this path, and the record."""
    for request in otlp.logs:
        for resource in request["resourceLogs"]:
            for record in resource["scopeLogs"][0]["logRecords"]:
                if attributes(record["attributes"]) == {"mesh.path": path}:
                    return attributes(resource["resource"]["attributes"]), record
    return None


def trace(backend: Mapping[str, Any], **conf: Any) -> Mapping[str, Any]:
    """A MeshTrace of the whole mesh."""
    spec = {"targetRef": {"kind": "Mesh"}, "default": {"backends": [backend], **conf}}
    return {"type": "MeshTrace", "name": "all", "spec": spec}


def traced(mesh: ObservedMesh) -> None:
    """Enough calls for tracers to send their spans at once; they keep fewer than five for a while."""
    for _ in range(6):
        assert mesh.web.call("backend", path="/traced", x_team="red").status == 200


def test_zipkin_gets_spans_of_both_sides_in_one_trace(mesh) -> None:
    collector = HttpCollector()
    tags = [
        {"name": "floor", "literal": "third"},
        {"name": "team", "header": {"name": "x-team", "default": "none"}},
    ]
    url = f"http://127.0.0.1:{collector.port}/api/v2/spans?from=mesh"
    mesh.apply_only(trace({"type": "Zipkin", "zipkin": {"url": url}}, tags=tags))
    try:
        traced(mesh)
        found = until(lambda: pair_of_spans(collector), "spans of both sides")
    finally:
        collector.stop()
    assert {path for path, _ in collector.seen} == {"/api/v2/spans?from=mesh"}
    assert {name: span["kind"] for name, span in found.items()} == {"web": "CLIENT", "backend": "SERVER"}
    assert all(each["tags"]["floor"] == "third" for each in found.values())
    assert all(each["tags"]["team"] == "red" for each in found.values())


def pair_of_spans(collector: HttpCollector) -> dict[str, Any] | None:
    """The spans of one trace by their services, as soon as web and backend are in it."""
    spans = [span for _, body in collector.seen for span in json.loads(body)]
    spans = [span for span in spans if span["tags"]["http.url"].endswith("/traced")]
    for of_web in spans:
        same = [each for each in spans if each["traceId"] == of_web["traceId"]]
        by_service = {each["localEndpoint"]["serviceName"]: each for each in same}
        if set(by_service) == {"web", "backend"}:
            return by_service
    return None


def test_a_collector_that_is_named_once_gets_spans_of_each_service(mesh, otlp) -> None:
    spec = {"endpoint": {"address": "127.0.0.1", "port": otlp.port}}
    labels = {"kuma.io/display-name": "collector"}
    ref = {"backendRef": {"kind": "MeshOpenTelemetryBackend", "labels": labels}}
    mesh.apply_only(
        {"type": "MeshOpenTelemetryBackend", "name": "collector", "spec": spec},
        trace({"type": "OpenTelemetry", "openTelemetry": ref}),
    )
    traced(mesh)
    until(lambda: {"web", "backend"} <= set(senders(otlp)), "spans of both")


def senders(otlp: OtlpCollector) -> Iterator[str]:
    for request in list(otlp.traces):
        for each in request["resourceSpans"]:
            yield attributes(each["resource"]["attributes"])["service.name"]


@pytest.mark.expected_errors("in Datadog Agent response")  # of the agent that stops before the Envoys do
def test_datadog_knows_services_by_direction_where_asked_to(mesh) -> None:
    agent = HttpCollector()
    datadog = {"url": f"http://127.0.0.1:{agent.port}", "splitService": True}
    mesh.apply_only(trace({"type": "Datadog", "datadog": datadog}))
    names = (b"web_OUTBOUND_backend", b"backend_INBOUND")
    try:
        traced(mesh)
        until(lambda: all(any(name in body for _, body in agent.seen) for name in names), "both")
    finally:
        agent.stop()


def measure(port: int, conf: Mapping[str, Any], **prometheus: Any) -> Mapping[str, Any]:
    """A MeshMetric of the backend's proxy, which is scraped on a port."""
    backend = {"type": "Prometheus", "prometheus": {"port": port, **prometheus}}
    target = {"kind": "Dataplane", "name": "backend-1"}
    spec = {"targetRef": target, "default": {"backends": [backend], **conf}}
    return {"type": "MeshMetric", "name": "all", "spec": spec}


def scraped(port: int, *parts: str, path: str = "/metrics") -> str:
    """The page of metrics, as soon as it has all of these parts."""
    return until(
        lambda: next(
            (page for page in [call(port, path=path).text] if all(part in page for part in parts)), ""
        ),
        f"{parts} on the page",
        5,
    )


APPLICATION = """
# HELP orders_total Orders.
# TYPE orders_total counter
orders_total{kind="big"} 7
# TYPE envoy_server_live gauge
envoy_server_live 5
"""


def test_prometheus_scrapes_envoy_with_identifiers_and_the_application_beside_it(mesh) -> None:
    application, port = MetricsPage(APPLICATION), free_port()
    applications = [
        {"name": "shop", "port": application.port},
        {"name": "away", "port": free_port()},
    ]
    mesh.apply_only(measure(port, {"applications": applications}, path="/all"))
    try:
        mesh.web.call("backend")
        label = '{envoy_http_conn_manager_prefix="kri_dp_default_default__backend-1_http"}'
        page = scraped(
            port,
            f"envoy_http_downstream_rq_total{label}",
            'orders_total{kuma_application="shop",kind="big"} 7\n',
            'koguma_application_up{kuma_application="shop"} 1\n',
            'koguma_application_up{kuma_application="away"} 0\n',
            path="/all",
        )
        assert page.count("# TYPE envoy_server_live ") == 1
        assert 'envoy_server_live{kuma_application="shop"} 5\n' in page
        assert call(port, path="/metrics").status == 404
    finally:
        application.stop()


def test_profiles_choose_what_is_scraped_and_the_port_goes_with_the_policy(mesh) -> None:
    port = free_port()
    include = [{"type": "Exact", "match": "envoy_server_live"}, {"type": "Regex", "match": "_uptime$"}]
    profiles = {"appendProfiles": [{"name": "None"}], "include": include}
    mesh.apply_only(measure(port, {"sidecar": {"profiles": profiles}}))

    def families() -> set[str]:
        page = call(port, path="/metrics").text
        return {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}

    until(lambda: families() == {"envoy_server_live", "envoy_server_uptime"}, "the two")
    mesh.apply_only()
    until(lambda: not is_open(port), "the port is closed")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_metrics_can_be_only_for_who_has_a_certificate_of_the_mesh(mesh) -> None:
    port = free_port()
    mesh.apply_only(measure(port, {}, tls={"mode": "ActiveMTLSBackend"}))
    assert "spiffe://default/backend" in until(lambda: uris_at(port), "a certificate")
    with pytest.raises((OSError, http.client.HTTPException)):
        call(port, path="/metrics")


def test_metrics_can_have_a_certificate_that_the_proxy_was_started_with(mesh) -> None:
    port = free_port()
    mesh.apply_only(measure(port, {}, tls={"mode": "ProvidedTLS"}))
    assert until(lambda: uris_at(port), "a certificate") == [OUTSIDE]
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        assert b"envoy_server_live" in connection.getresponse().read()


def uris_at(port: int) -> list[str]:
    """The names in the certificate that a port shows."""
    shown = ssl.get_server_certificate(("127.0.0.1", port))
    found = x509.load_pem_x509_certificate(shown.encode()).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def test_metrics_are_sent_to_opentelemetry_in_their_own_rhythm(mesh, otlp) -> None:
    backend = {
        "type": "OpenTelemetry",
        "openTelemetry": {"endpoint": otlp.address, "refreshInterval": "1s"},
    }
    spec = {"targetRef": {"kind": "Dataplane", "name": "backend-1"}, "default": {"backends": [backend]}}
    mesh.apply_only({"type": "MeshMetric", "name": "all", "spec": spec})
    until(lambda: len(otlp.metrics) >= 2, "two requests")
    (resource,) = otlp.metrics[-1]["resourceMetrics"]
    about = attributes(resource["resource"]["attributes"])
    assert (about["service.name"], about["kuma.mesh"]) == ("backend", "default")
    found = {each["name"]: each for each in resource["scopeMetrics"][0]["metrics"]}
    (live,) = found["envoy_server_live"]["gauge"]["dataPoints"]
    assert live["asDouble"] == 1.0
    assert found["envoy_http_downstream_rq_total"]["sum"]["isMonotonic"]
    point = found["envoy_http_downstream_rq_time"]["histogram"]["dataPoints"][0]
    assert sum(map(int, point["bucketCounts"])) == int(point["count"]) > 0
    assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
