"""What policies add to a proxy for those who watch it: who shares it, what changes it, what goes wrong."""

from typing import Any

import pytest
from building import at, database, decoded, objects, of, plain

from koguma.core import pipeline
from koguma.core.build.network import NodeMetadata
from koguma.envoy import access_logs

OUTBOUND = "kri_msvc_default_east__backend_http"
CHAIN = "filter_chains[0].filters[0].typed_config"
OWN = NodeMetadata(features=("feature-access-log-pipe",), workdir="/run/it")
STOCK = NodeMetadata(features=("feature-tcp-accesslog-via-named-pipe",), workdir="/run/it")

MESH = """
type: Mesh
name: default
---
type: MeshService
mesh: default
name: backend
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
"""
PROXY = """
---
type: Dataplane
mesh: default
name: %s-1
networking:
  address: 10.0.0.%d
  inbound: [{port: 8080, tags: {kuma.io/service: %s, kuma.io/protocol: http}}]
  outbound: [{port: 10001, backendRef: {kind: MeshService, name: backend, port: 80}}]
"""
TRACE = """
---
type: MeshTrace
mesh: default
name: all
spec: {targetRef: {kind: Mesh}, default: {backends: [%s]}}
"""
LOG = """
---
type: MeshAccessLog
mesh: default
name: all
spec: {to: [{targetRef: {kind: Mesh}, default: {backends: [%s]}}]}
"""
COLLECTOR = """
---
type: MeshOpenTelemetryBackend
mesh: default
name: %s
labels: {team: core}
spec: {endpoint: {address: %s}}
"""
ZIPKIN = '{type: Zipkin, zipkin: {url: "http://10.1.1.1:9411/spans"}}'
DATADOG = '{type: Datadog, datadog: {url: "http://10.1.1.1:8126"}}'
TO_CORE = "{kind: MeshOpenTelemetryBackend, labels: {team: core}}"
REFERENCE = f"{{type: OpenTelemetry, openTelemetry: {{backendRef: {TO_CORE}}}}}"
FILE = "{type: File, file: {path: /dev/null}}"
TCP = '{type: Tcp, tcp: {address: "logs:5000"}}'


def mesh(*documents: str, **nodes: NodeMetadata) -> Any:
    two = PROXY % ("web", 1, "web") + PROXY % ("api", 2, "api")
    named = {f"{name}-1": node for name, node in nodes.items()}
    return database(objects(MESH + two + "".join(documents)), named)


def outbound(db: Any, name: str) -> dict[str, Any]:
    return plain(of(db, name))["listener"][OUTBOUND]


@pytest.mark.parametrize(
    "policy", [LOG % FILE, LOG % TCP, TRACE % ZIPKIN, TRACE % REFERENCE + COLLECTOR % ("a", "b")]
)
def test_services_share_what_they_call_however_they_are_watched(policy: str) -> None:
    db = mesh(policy, web=OWN, api=OWN)
    assert of(db, "web-1").bundles[0] is of(db, "api-1").bundles[0]


def test_only_a_tracer_that_must_know_who_calls_keeps_services_apart() -> None:
    db = mesh(TRACE % DATADOG)
    path = f"{CHAIN}.tracing.provider.typed_config.service_name"
    assert [at(outbound(db, name), path) for name in ("web-1", "api-1")] == ["web", "api"]


def test_lines_for_tcp_go_to_the_pipe_that_the_agent_has() -> None:
    db = mesh(LOG % TCP, web=OWN, api=STOCK)
    path = f"{CHAIN}.access_log[*].typed_config.path"
    assert at(outbound(db, "web-1"), path) == [access_logs.PIPE]
    assert at(outbound(db, "api-1"), path) == ["/run/it/kuma-al-api-1-default.sock"]
    assert at(outbound(mesh(LOG % TCP), "web-1"), path) == []


def collectors(db: Any) -> dict[str, Any]:
    """The collectors' addresses of the proxy of web, by the names of their clusters."""
    found = of(db, "web-1").of_type("cluster")
    path = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address"
    return {name: at(decoded(resource), path) for name, resource in found.items() if "opentelemetry" in name}


def test_a_collector_that_moves_is_called_at_its_new_place() -> None:
    db = mesh(LOG % REFERENCE, COLLECTOR % ("collector", "10.1.1.1"))
    assert collectors(db) == {"_kuma_access_log_opentelemetry_10-1-1-1_4317": "10.1.1.1"}
    pipeline.take(db, objects(COLLECTOR.removeprefix("\n---\n") % ("collector", "10.1.1.2")))
    assert collectors(db) == {"_kuma_access_log_opentelemetry_10-1-1-2_4317": "10.1.1.2"}


def test_of_two_collectors_with_the_same_labels_one_is_meant_whoever_came_first() -> None:
    first, second = COLLECTOR % ("a", "10.1.1.1"), COLLECTOR % ("b", "10.1.1.2")
    assert collectors(mesh(LOG % REFERENCE, first, second)) == collectors(
        mesh(LOG % REFERENCE, second, first)
    )


def test_a_collector_that_is_not_there_is_told_and_everything_else_is_made() -> None:
    db = mesh(LOG % f"{REFERENCE}, {FILE}")
    (failure,) = {each.text for each in of(db, "web-1").failures}
    assert failure == (
        "MeshAccessLog: backends[0]: no MeshOpenTelemetryBackend has the labels team: core; write one, or"
        " correct the reference"
    )
    assert len(outbound(db, "web-1")["filter_chains"][0]["filters"][0]["typed_config"]["access_log"]) == 1


def test_an_empty_list_of_backends_for_one_service_switches_its_log_off() -> None:
    off = """
---
type: MeshAccessLog
mesh: default
name: off
spec: {to: [{targetRef: {kind: MeshService, name: backend}, default: {backends: []}}]}
"""
    assert "access_log" not in at(outbound(mesh(LOG % FILE, off), "web-1"), CHAIN)
