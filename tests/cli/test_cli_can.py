"""`koguma can -f`: whether one may call another, and which rule decides it, offline."""

import json
from base64 import b64encode

import pytest

from tests.envoy.some_certificates import certificate, pem

MESH = """\
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: Dataplane
mesh: default
name: web-1
networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]}
---
type: Dataplane
mesh: default
name: web-2
networking:
  address: 10.0.0.2
  inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http, version: v2}}]
---
type: Dataplane
mesh: default
name: backend-1
networking:
  address: 10.0.0.3
  inbound: [{port: 8080, tags: {kuma.io/service: backend, kuma.io/protocol: http}}]
---
type: MeshTrafficPermission
mesh: default
name: version-2
spec:
  targetRef: {kind: MeshSubset, tags: {kuma.io/service: backend}}
  from:
    - targetRef: {kind: MeshSubset, tags: {version: v2}}
      default: {action: Allow}
---
type: MeshHTTPRoute
mesh: default
name: answers
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      rules:
        - matches: [{path: {type: PathPrefix, value: /tea}, headers: [{name: x-tea, value: "yes"}]}]
          default: {filters: [{type: DirectResponse, directResponse: {status: 418}}]}
"""
GATEWAY = """\
type: Dataplane
mesh: default
name: edge-1
networking: {address: 10.0.0.9, gateway: {type: BUILTIN, tags: {kuma.io/service: edge}}}
---
type: MeshGateway
mesh: default
name: edge
selectors: [{match: {kuma.io/service: edge}}]
conf: {listeners: [{port: 8080, protocol: HTTP, hostname: shop.lan}]}
---
type: MeshHTTPRoute
mesh: default
name: shop
spec:
  targetRef: {kind: MeshGateway, name: edge}
  to:
    - targetRef: {kind: Mesh}
      hostnames: [shop.lan]
      rules:
        - matches: [{path: {type: PathPrefix, value: /}}]
          default: {backendRefs: [{kind: MeshService, name: backend, port: 8080}]}
---
type: MeshTrafficPermission
mesh: default
name: edge
spec:
  targetRef: {kind: MeshSubset, tags: {kuma.io/service: backend}}
  from:
    - targetRef: {kind: MeshSubset, tags: {kuma.io/service: edge}}
      default: {action: Allow}
"""
LUA = """\
type: MeshProxyPatch
mesh: default
name: script
spec:
  targetRef: {kind: MeshSubset, tags: {kuma.io/service: backend}}
  default:
    appendModifications:
      - httpFilter:
          operation: AddFirst
          match: {origin: inbound}
          value: |
            name: envoy.filters.http.lua
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code: {inline_string: "function envoy_on_request(h) end"}
"""


@pytest.fixture
def can(koguma, tmp_path, monkeypatch):
    """`koguma can ...` on the files above."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mesh.yaml").write_text(MESH)
    return lambda *words: koguma("can", *words, "-f", "mesh.yaml")


def test_yes_with_the_rule_and_its_place(can):
    ended = can("web-2", "backend")
    assert ended.code == 0
    assert ended.out.startswith("yes: web-2 to backend\n  reaches backend:8080 (backend-1)\n")
    assert "decided by kri_mtp_default_default__version-2_, mesh.yaml:30:7" in ended.out
    assert "with timeout 15s, retries 5" in ended.out


def test_no_says_what_is_missing(can):
    ended = can("backend", "web")
    assert ended.code == 2
    assert ended.out.startswith("no: backend to web\n  denied, with 403\n")
    assert "the mesh has mTLS, and no MeshTrafficPermission allows this caller at web-" in ended.out


def test_proxies_that_differ_are_told_apart(can):
    ended = can("web", "backend", "-o", "json")
    answer = json.loads(ended.out)
    assert ended.code == 2
    assert answer["verdict"] == "partly"
    verdicts = {(*group["callers"]["names"],): group["verdict"] for group in answer["groups"]}
    assert verdicts == {("web-1",): "no", ("web-2",): "yes"}


def test_a_route_may_answer_itself(can):
    ended = can("web-2", "backend", "--path", "/tea/pot", "-H", "X-Tea: yes")
    assert ended.code == 2
    assert "answered, with 418" in ended.out
    assert "kri_mhttpr_default_default__answers_" in ended.out


@pytest.mark.parametrize("to", ["meshservice/backend", "kri_msvc_default_default__backend_8080", "backend-1"])
def test_words_for_what_is_called(can, to):
    assert can("kri_dp_default_default__web-2_", to).code == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("web", "bakend"), 1, 'no service, gateway or proxy "bakend"; did you mean "backend"?'),
        (("wbe", "backend"), 1, 'no proxy or service "wbe"; did you mean "web"?'),
        (("web", "backend", "--port", "1"), 1, '"backend" has no port "1"; it has 8080'),
        (("web", "kri_msvc_default_default__backend_1"), 1, 'has no port "1"; it has 8080'),
        (("web", "kri_msvc_other_default__backend_"), 1, "no service, gateway or proxy"),
        (("kri_dp_other_default__web-1_", "backend"), 1, "no proxy or service"),
        (("web", "thing/backend"), 1, '"thing" in "thing/backend" is no kind'),
        (("outside", "backend"), 1, "only a gateway can be called from outside"),
        (("web", "backend", "-m", "other"), 1, 'the files have no mesh "other"; they have default'),
        (("web", "backend", "-H", "x"), 1, '--header must be NAME:VALUE, not "x"'),
        (("web", "backend", "--method", "G T"), 1, "--method must be a method such as GET"),
        (("web", "backend", "--method", ""), 1, "--method must be a method such as GET"),
        (("web", "backend", "--path", "x"), 1, "--path must start with a slash"),
        (("web", "backend", "--global"), 1, "a Global control plane configures no proxies"),
    ],
)
def test_wrong_words_are_answered(can, words, code, text):
    ended = can(*words)
    assert (ended.code, ended.out) == (code, "")
    assert text in ended.err


def test_from_outside_through_a_gateway(can, tmp_path):
    (tmp_path / "mesh.yaml").write_text(f"{MESH}---\n{GATEWAY}")
    ended = can("outside", "edge", "--host", "shop.lan")
    assert ended.code == 0
    assert "reaches backend:8080 (backend-1)" in ended.out
    assert can("outside", "edge", "--host", "other.lan").code == 2
    assert can("outside", "edge", "-H", "Host: shop.lan").code == 0
    (tmp_path / "mesh.yaml").write_text(f"{MESH}---\n{GATEWAY.replace('value: /}', 'value: /only}')}")
    missing = can("outside", "edge", "--host", "shop.lan")
    assert (missing.code, "edge-1 has no route for it: no route matches" in missing.out) == (2, True)
    assert "decided by kri_mgw_default_default__edge_, " in missing.out
    refused = can("outside", "edge", "--host", "shop.lan", "--method", "get")
    assert (refused.code, "answered, with 400" in refused.out) == (2, True)
    assert "is a gateway, which is called from outside" in can("web", "edge").err
    tls = "protocol: HTTPS, tls: {mode: TERMINATE, certificates: [{secret: cert}]}"
    key, own = reversed(pem(certificate(())))
    cert = b64encode((key + own).encode()).decode()
    secret = f"---\ntype: Secret\nmesh: default\nname: cert\ndata: {cert}\n"
    (tmp_path / "mesh.yaml").write_text(f"{MESH}---\n{GATEWAY.replace('protocol: HTTP', tls)}{secret}")
    assert can("outside", "edge", "--host", "shop.lan:8080").code == 0, "the port is no part of the SNI"


def test_what_cannot_be_judged_is_said(can, tmp_path):
    (tmp_path / "mesh.yaml").write_text(f"{MESH}---\n{LUA}")
    ended = can("web-2", "backend")
    assert ended.code == 2
    assert ended.out.startswith("unknown: web-2 to backend")
    assert 'the HTTP filter "envoy.filters.http.lua"' in ended.out


def test_without_mtls_permissions_do_not_act(can, tmp_path):
    lines = [line for line in MESH.splitlines(keepends=True) if not line.startswith("mtls")]
    (tmp_path / "mesh.yaml").write_text("".join(lines))
    ended = can("backend", "web")
    assert ended.code == 0
    assert "the mesh has no mTLS, so that permissions do not act" in ended.out


OF_ALL_ZONES = """\
---
type: MeshMultiZoneService
mesh: default
name: backend
spec:
  selector: {meshService: {matchLabels: {kuma.io/display-name: backend}}}
  ports: [{port: 80, appProtocol: http}]
---
type: Dataplane
mesh: default
name: job-1
networking:
  address: 10.0.0.4
  inbound: [{port: 8080, tags: {kuma.io/service: job, kuma.io/protocol: http, version: v2}}]
  outbound: [{port: 9000, backendRef: {kind: MeshMultiZoneService, name: backend, port: 80}}]
"""


def test_of_several_services_of_a_name_the_one_that_is_reached_is_meant(koguma, tmp_path):
    (tmp_path / "mesh.yaml").write_text(MESH + OF_ALL_ZONES)
    ended = koguma("can", "job", "backend", "-f", str(tmp_path), "-o", "json")
    assert [each["port"] for each in json.loads(ended.out)["groups"]] == ["kri_mzsvc_default___backend_80"]
    ended = koguma("can", "job", "MeshService/backend", "-f", str(tmp_path))
    assert "job-1 does not call kri_msvc_default_default__backend_8080" in ended.out
    ended = koguma("can", "web-2", "backend", "-f", str(tmp_path))
    assert ended.out.splitlines()[1] == "  reaches backend:8080 (backend-1)"
