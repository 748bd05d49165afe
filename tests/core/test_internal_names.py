"""Names of what has no resource: docs/proxies.md lists them all, and says which mode of a proxy has which."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koguma.core.build.network import NodeMetadata
from koguma.envoy.bootstrap import AdsServer, BootstrapNode, bootstrap, token_secret
from koguma.model.redacted import Redacted
from tests.core.building import database, decoded, objects, of

PAGE = Path(__file__).parent.parent.parent / "docs" / "proxies.md"
NAMES = re.compile(r"(?:_kuma|meshpassthrough)_[\w.*/-]+")
MODES = {
    "`--outbound`": "listed",
    "`--bind-outbounds`": "bound",
    "`--transparent-proxy`": "transparent",
    "kuma-dp": "kuma",
    "kuma-dp, transparent": "kuma-transparent",
}
OWN = ("feature-access-log-pipe", "feature-readiness-unix-socket", "feature-token-file")
KUMA = ("feature-tcp-accesslog-via-named-pipe", "feature-readiness-unix-socket")
NODES = {
    "listed": NodeMetadata(OWN, "/w", has_ipv6=True),
    "bound": NodeMetadata((*OWN, "feature-bind-outbounds", "feature-embedded-dns"), "/w", has_ipv6=True),
    "transparent": NodeMetadata((*OWN, "feature-embedded-dns"), "/w", has_ipv6=True),
    "kuma": NodeMetadata(KUMA, "/w", 9901, dns_port=15053, has_ipv6=True),
    "kuma-transparent": NodeMetadata(KUMA, "/w", 9901, dns_port=15053, has_ipv6=True),
}

# A mesh in which every policy is at work.
MESH = """
type: Mesh
name: default
mtls: {enabledBackend: ca-1, backends: [{name: ca-1, type: builtin}]}
---
type: MeshTrafficPermission
name: all
mesh: default
spec: {rules: [{default: {allow: [{spiffeID: {type: Prefix, value: "spiffe://default/"}}]}}]}
---
type: MeshService
name: backend
mesh: default
status: {vips: [{ip: 241.0.0.1}]}
spec: {selector: {dataplaneTags: {kuma.io/service: backend}}, ports: [{port: 80, appProtocol: http}]}
---
type: MeshMetric
name: all
mesh: default
spec:
  targetRef: {kind: Mesh}
  default:
    backends:
      - {type: Prometheus, prometheus: {port: 5670}}
      - {type: OpenTelemetry, openTelemetry: {endpoint: "127.0.0.1:4317"}}
---
type: MeshTrace
name: all
mesh: default
spec:
  targetRef: {kind: Mesh}
  default: {backends: [{type: Zipkin, zipkin: {url: "http://127.0.0.1:9411/api/v2/spans"}}]}
---
type: MeshAccessLog
name: all
mesh: default
spec:
  targetRef: {kind: Mesh}
  to:
    - targetRef: {kind: Mesh}
      default:
        backends:
          - {type: Tcp, tcp: {address: "127.0.0.1:5000"}}
          - {type: OpenTelemetry, openTelemetry: {endpoint: "127.0.0.1:4317"}}
---
type: MeshExternalService
name: outside
mesh: default
spec:
  match:
    - {type: Domain, value: shop.example.com, port: 80, protocol: http}
    - {type: CIDR, value: 10.7.0.0/16, port: 80, protocol: http}
  destination: {type: Regular, endpoints: [{address: 192.0.2.1}]}
---
type: MeshPassthrough
name: some
mesh: default
spec:
  targetRef: {kind: Mesh}
  default:
    passthroughMode: Matched
    appendMatch:
      - {type: Domain, value: api.example.com, protocol: tls, port: 443}
      - {type: CIDR, value: "2001:db8::/32", protocol: tcp}
"""
DATAPLANE = """
---
type: Dataplane
name: web
mesh: default
networking:
  address: 10.0.0.1
  admin: {port: 9901}
  inbound:
    - {name: http, port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}
    - {name: tcp, port: 8081, tags: {kuma.io/service: web}}
  %s
"""
REDIRECTED = "transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001}"
LISTED = "outbound: [{port: 10001, backendRef: {kind: MeshService, name: backend, port: 80}}]"


def found(mode: str) -> set[str]:
    """All internal names in what a proxy of a mode gets, and in its bootstrap."""
    networking = REDIRECTED if "transparent" in mode else LISTED if mode in ("listed", "kuma") else ""
    db = database(objects(MESH + DATAPLANE % networking), {"web": NODES[mode]})
    snapshot = of(db, "web")
    assert snapshot.failures == ()
    texts = [json.dumps([resource.id, decoded(resource)]) for resource in snapshot]
    return {name.rstrip(".") for text in (*texts, json.dumps(start(mode))) for name in NAMES.findall(text)}


def start(mode: str) -> Any:
    """The bootstrap of a proxy, with the file that it reads its token from."""
    is_own = not mode.startswith("kuma")
    server = AdsServer("10.9.9.9", 5679, Redacted("token"), ca="-", token_file="/w/token" if is_own else "")
    made = bootstrap(BootstrapNode("id", "web"), server, "/w")
    return [made, token_secret("token")] if is_own else [made]


def table() -> dict[str, dict[str, bool]]:
    """The table of the page: for each name, which modes have it."""
    lines = PAGE.read_text().partition("\n### Internal names\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, _, *body = rows
    assert set(head[2:]) == set(MODES)
    return {
        name.strip("`"): {MODES[mode]: cell == "yes" for mode, cell in zip(head[2:], cells, strict=True)}
        for name, _, *cells in body
    }


def pattern(name: str) -> re.Pattern[str]:
    """A name of the table as a pattern: what is in angle brackets is a part that differs."""
    return re.compile(
        "".join(
            "[^_].*" if part.startswith("<") else re.escape(part) for part in re.split(r"(<[^>]+>)", name)
        )
    )


@pytest.mark.parametrize("mode", NODES)
def test_a_mode_has_the_names_that_the_page_says_and_no_others(mode: str):
    names, listed = found(mode), table()
    expected = [name for name, modes in listed.items() if modes[mode]]
    best = {name: [each for each in listed if pattern(each).fullmatch(name)] for name in names}
    assert {name for name, fitting in best.items() if not fitting} == set(), "not on the page"
    shown = {max(fitting, key=len) for fitting in best.values()}
    assert sorted(shown) == sorted(expected)


def test_no_internal_name_has_a_colon():
    assert [name for mode in NODES for name in found(mode) if ":" in name] == []
