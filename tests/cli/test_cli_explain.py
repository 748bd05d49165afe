"""`koguma explain -f`: who set a value, offline, by the engine that the server has."""

import json
import re

import pytest

MESH = """\
type: Dataplane
name: web
mesh: default
networking:
  address: 127.0.0.1
  inbound: [{port: 80, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
---
type: MeshService
name: backend
mesh: default
spec: {ports: [{name: http, port: 80, appProtocol: http}, {name: admin, port: 81, appProtocol: http}]}
"""
# The founding document's example of a service, a route to it, and a limit on each.
POLICIES = """\
type: MeshHTTPRoute
name: route-to-backend
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      rules:
        - matches: [{path: {type: PathPrefix, value: /slow-endpoint}}]
          default: {backendRefs: [{kind: MeshService, name: backend, port: 80}]}
---
type: MeshTimeout
name: timeout-on-backend-service
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        http:
          requestTimeout: 2s
          streamIdleTimeout: 1h
---
type: MeshTimeout
name: timeout-on-backend-route
mesh: default
spec:
  to:
    - targetRef: {kind: MeshHTTPRoute, name: route-to-backend}
      default:
        http:
          requestTimeout: 10s
"""


@pytest.fixture
def explain(koguma, tmp_path, monkeypatch):
    """`koguma explain dataplane web --to ...` on the files above."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mesh.yaml").write_text(MESH)
    (tmp_path / "policies.yaml").write_text(POLICIES)

    def run(*words: str):
        return koguma("explain", "dataplane", "web", "-f", "mesh.yaml", "-f", "policies.yaml", *words)

    return run


def test_a_field_of_a_route_is_traced_to_its_line_and_to_whom_it_won_against(explain):
    ended = explain(
        "--to", "backend", "--port", "http", "--route", "route-to-backend", "--field", "requestTimeout"
    )
    assert ended.code == 0
    why = "it targets a mesh or service, one that targets a route in to[] wins"
    assert ended.out.splitlines() == [
        "MeshTimeout http.requestTimeout = 10s",
        "  for calls to backend:http through route-to-backend",
        "  set by kri_mt_default_default__timeout-on-backend-route_, policies.yaml:30:27",
        f"  not 2s of kri_mt_default_default__timeout-on-backend-service_, policies.yaml:19:27: {why}",
    ]


def test_what_a_route_inherits_is_told_once(explain):
    ended = explain("--to", "backend", "--port", "80", "--field", "http.streamIdleTimeout")
    assert ended.out.splitlines() == [
        "MeshTimeout http.streamIdleTimeout = 1h",
        "  for calls to backend:http, also through route-to-backend",
        "  set by kri_mt_default_default__timeout-on-backend-service_, policies.yaml:20:30",
    ]


def test_without_a_field_there_is_a_table_of_all(explain):
    table = explain("--to", "backend", "--port", "http").out.splitlines()
    cells = [tuple(re.split(r" {2,}", line)) for line in table]
    on_service = ("timeout-on-backend-service", "policies.yaml:19:27", "-")
    assert cells == [
        ("ROUTE", "KIND", "FIELD", "VALUE", "SET BY", "WHERE", "OVER"),
        ("-", "MeshTimeout", "http.requestTimeout", "2s", *on_service),
        ("-", "MeshTimeout", "http.streamIdleTimeout", "1h", on_service[0], "policies.yaml:20:30", "-"),
        (
            "route-to-backend",
            "MeshHTTPRoute",
            "backendRefs (PathPrefix /slow-endpoint)",
            '[{"kind": "MeshService", "name": "bac...',
            "route-to-backend",
            "policies.yaml:9:34",
            "-",
        ),
        (
            "route-to-backend",
            "MeshTimeout",
            "http.requestTimeout",
            "10s",
            "timeout-on-backend-route",
            "policies.yaml:30:27",
            "1",
        ),
    ]


@pytest.mark.parametrize(
    "to",
    [
        "backend",
        "meshservice/backend",
        "msvc/backend",
        "kri_msvc_default_default__backend_",
        "kri_msvc_default_default__backend_http",
    ],
)
def test_a_service_has_many_names(explain, to):
    ended = explain("--to", to, "--port", "http", "--field", "streamIdleTimeout")
    assert ended.out.startswith("MeshTimeout http.streamIdleTimeout = 1h\n")


def test_all_ports_are_explained_where_none_is_chosen(explain):
    ended = explain("--to", "backend", "--field", "streamIdleTimeout")
    assert [line for line in ended.out.splitlines() if "for calls" in line] == [
        "  for calls to backend:admin, also through route-to-backend",
        "  for calls to backend:http, also through route-to-backend",
    ]


def test_scripts_get_everything_as_json(explain):
    ended = explain(
        "--to", "backend", "--port", "http", "--kind", "mt", "--field", "requestTimeout", "-o", "json"
    )
    plain, routed = json.loads(ended.out)["fields"]
    assert (plain["route"], plain["value"], plain["losers"]) == ("", "2s", [])
    assert routed["route"] == "kri_mhttpr_default_default__route-to-backend_"
    assert (routed["kind"], routed["field"], routed["value"]) == ("MeshTimeout", "http.requestTimeout", "10s")
    assert routed["origin"]["kri"] == "kri_mt_default_default__timeout-on-backend-route_"
    assert routed["origin"]["path"] == "spec.to[0].default.http.requestTimeout"
    assert routed["origin"]["place"] == "policies.yaml:30:27"
    (lost,) = routed["losers"]
    assert (lost["value"], lost["place"]) == ("2s", "policies.yaml:19:27")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "backnd"), 'the proxy does not call "backnd"; it can call backend, web'),
        (("--to", "backend", "--port", "https"), 'has no port "https"; it has admin (81), http (80)'),
        (("--to", "backend", "--field", "requestTimout"), 'did you mean "http.requestTimeout"?'),
        (("--to", "backend", "--kind", "MeshRetry"), "no policy sets anything of MeshRetry"),
        (
            ("--to", "backend", "--kind", "MeshGatewayHTTPRoute"),
            "no policy sets anything of MeshGatewayHTTPRoute",
        ),
        (("--to", "backend", "--route", "other"), "through other"),
        (("--to", "backend", "-m", "other"), 'no Dataplane "web" in mesh "other"'),
    ],
)
def test_what_is_not_there_ends_with_1_and_a_hint(explain, words, message):
    ended = explain(*words)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err


def test_files_that_would_be_refused_are_not_explained(explain, tmp_path):
    (tmp_path / "policies.yaml").write_text(POLICIES.replace("requestTimeout", "requestTimout"))
    ended = explain("--to", "backend")
    assert ended.code == 1
    assert "policies.yaml:19:26: spec.to[0].default.http.requestTimout: unknown field" in ended.err


TCP = """\
type: MeshService
name: database
mesh: default
spec: {ports: [{name: sql, port: 5432}]}
---
type: MeshTimeout
name: limits
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: database}
      default: {connectionTimeout: 1s, http: {requestTimeout: 1s}}
"""
NOT_HTTP = (
    'port sql of database speaks tcp, so http fields do not act on it; set "appProtocol: http" at the port'
)


@pytest.mark.parametrize("words", [(), ("--field", "http.requestTimeout")])
def test_http_fields_on_a_tcp_port_are_said_not_to_act(explain, tmp_path, words):
    (tmp_path / "tcp.yaml").write_text(TCP)
    ended = explain("-f", "tcp.yaml", "--to", "database", *words)
    assert ended.code == 0
    assert ended.err.startswith(f'note: {NOT_HTTP} in MeshService "database"; ')
    assert "`koguma dp run --protocol http`" in ended.err
    shown = json.loads(explain("-f", "tcp.yaml", "--to", "database", "-o", "json").out)["fields"]
    assert {row["field"]: row["acts"] for row in shown} == {
        "connectionTimeout": True,
        "http.requestTimeout": False,
    }


def test_a_field_that_nobody_sets_and_that_could_not_act_is_told_with_both(explain, tmp_path):
    (tmp_path / "tcp.yaml").write_text(TCP)
    ended = explain("-f", "tcp.yaml", "--to", "database", "--field", "http.streamIdleTimeout")
    assert ended.code == 1
    assert "no policy sets http.streamIdleTimeout" in ended.err
    assert f" - {NOT_HTTP}" in ended.err


def test_fields_that_act_need_no_note(explain):
    assert explain("--to", "backend").err == ""


def test_limits_for_grpc_on_an_http_port_are_told_to_who_asks_for_them(explain, tmp_path):
    policy = """
type: MeshRetry
name: again
mesh: default
spec: {to: [{targetRef: {kind: Mesh}, default: {grpc: {numRetries: 1}, http: {numRetries: 1}}}]}
"""
    (tmp_path / "retry.yaml").write_text(policy)
    assert explain("-f", "retry.yaml", "--to", "backend").err == ""
    asked = explain("-f", "retry.yaml", "--to", "backend", "--port", "http", "--field", "grpc.numRetries")
    assert asked.err.startswith(
        "note: port http of backend speaks http, so grpc fields do not act on it; set"
    )


def test_what_is_stored_for_calls_and_does_not_act_yet_is_named(koguma, tmp_path):
    edge = """
type: MeshGateway
name: edge
mesh: default
selectors: [{match: {kuma.io/service: edge}}]
conf: {listeners: [{port: 80, protocol: HTTP}]}
---
type: Dataplane
name: edge
mesh: default
networking: {address: 127.0.0.1, gateway: {tags: {kuma.io/service: edge}}}
---
type: MeshFaultInjection
name: sometimes
mesh: default
spec:
  targetRef: {kind: Mesh, proxyTypes: [Gateway]}
  to: [{targetRef: {kind: Mesh}, default: {http: [{abort: {httpStatus: 500, percentage: 10}}]}}]
---
"""
    (tmp_path / "edge.yaml").write_text(edge + MESH)
    words = ("explain", "dataplane", "edge", "-f", str(tmp_path / "edge.yaml"), "--to", "backend")
    ended = koguma(*words, "--kind", "MeshFaultInjection")
    assert (ended.code, ended.out) == (1, "")
    assert "MeshFaultInjection sometimes is stored, and does not act yet on these calls (KG015)" in ended.err
