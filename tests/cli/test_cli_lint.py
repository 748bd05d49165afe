"""`koguma lint` on files: what is wrong, what is odd, where it stands, and how it ends."""

import json
import re

import pytest

ROUTE = """\
apiVersion: kuma.io/v1alpha1
kind: MeshHTTPRoute
metadata:
  name: route-to-backend
  namespace: backend-ns
  labels:
    kuma.io/mesh: default
spec:
  targetRef:
    kind: MeshSubset
    tags:
      k8s.kuma.io/namespace: frontend-ns
"""
TIMEOUT = """\
apiVersion: kuma.io/v1alpha1
kind: MeshTimeout
metadata:
  name: timout-for-backend
  namespace: backend-ns
  labels:
    kuma.io/mesh: default
spec:
  targetRef:
    kind: MeshSubset
    tags:
      k8s.kuma.io/namespace: some-other-ns
  to:
    - targetRef:
        kind: MeshHTTPRoute
        name: route-to-backend
"""
FINE = """\
type: MeshTimeout
name: quick
mesh: default
spec:
  to:
    - targetRef: {kind: Mesh}
      default: {connectionTimeout: 2s}
"""


GATEWAY_API = """\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: koguma
  listeners:
    - {name: web, port: 8080, protocol: HTTP}
    - {name: tls, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: not-in-files}]}}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules:
    - backendRefs: [{name: SERVICE, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: younger, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules:
    - backendRefs: [{name: backend, port: 80, weight: 2}]
---
apiVersion: kuma.io/v1alpha1
kind: MeshService
metadata: {name: backend, namespace: shop, labels: {kuma.io/mesh: default}}
spec:
  selector: {dataplaneTags: {app: backend}}
  ports: [{port: 80, appProtocol: http}]
---
type: Dataplane
name: edge-1
mesh: default
networking:
  address: 127.0.0.1
  gateway: {type: BUILTIN, tags: {kuma.io/service: edge_shop_svc}}
---
type: Dataplane
name: backend-1
mesh: default
networking:
  address: 127.0.0.1
  inbound: [{port: 80, tags: {kuma.io/service: backend, app: backend}}]
"""
PATCH = """\
type: MeshProxyPatch
name: random
mesh: default
spec:
  default:
    appendModifications:
      - cluster:
          operation: Patch
          match: {origin: outbound}
          value: |
            connect_timeout: 2s
            lb_polici: RANDOM
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the current one, so that places are short."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def lines(ended) -> list[tuple[str, str, str]]:
    """Place, severity and code of each finding."""
    return re.findall(r"^(\S+:\d+:\d+): (\w+) (KG\d+):", ended.out, re.MULTILINE)


def test_what_is_fine_ends_with_0_and_no_output(koguma, folder):
    (folder / "fine.yaml").write_text(FINE)
    ended = koguma("lint", "-f", ".")
    assert (ended.code, ended.out, ended.err) == (0, "", "1 object, nothing found\n")


def test_the_founding_documents_disjoint_example_is_one_finding_with_both_places(koguma, folder):
    (folder / "route.yaml").write_text(ROUTE)
    (folder / "timeout.yaml").write_text(TIMEOUT)
    ended = koguma("lint", "-f", "route.yaml", "-f", "timeout.yaml")
    assert ended.code == 1
    assert [finding for finding in lines(ended) if finding[2] == "KG001"] == [
        ("timeout.yaml:15:9", "warning", "KG001")
    ]
    output = ended.out.splitlines()
    index = next(number for number, line in enumerate(output) if "KG001" in line)
    assert "k8s.kuma.io/namespace=some-other-ns" in output[index]
    assert "k8s.kuma.io/namespace=frontend-ns" in output[index]
    assert output[index + 1].startswith('  route.yaml:1:1: MeshHTTPRoute "route-to-backend"')


def test_all_that_would_be_refused_is_told_with_its_place(koguma, folder):
    wrong = FINE.replace("connectionTimeout", "conectionTimeout").replace("quick", "Not_A_Name")
    (folder / "a.yaml").write_text(f"{FINE}---\n{wrong}---\n{FINE}---\ntype: Nothing\nname: x\n")
    ended = koguma("lint", "-f", "a.yaml")
    assert ended.code == 1
    assert lines(ended) == [
        ("a.yaml:10:7", "error", "KG000"),
        ("a.yaml:15:16", "error", "KG000"),
        ("a.yaml:15:35", "error", "KG000"),
        ("a.yaml:17:1", "error", "KG000"),
        ("a.yaml:25:7", "error", "KG000"),
    ]
    assert 'did you mean "connectionTimeout"?' in ended.out
    assert "is the same object as the one at a.yaml:1:1" in ended.out
    assert ended.err.startswith("4 objects, errors: 5, warnings: 0; docs/lint.md")


def test_warnings_count_unless_only_errors_are_asked_for(koguma, folder):
    odd = FINE.replace("{kind: Mesh}", "{kind: MeshService, name: nobody}")
    (folder / "odd.yaml").write_text(odd)
    ended = koguma("lint", "-f", "odd.yaml")
    assert (ended.code, lines(ended)) == (1, [("odd.yaml:6:18", "warning", "KG002")])
    assert "known with --live" in ended.err
    ended = koguma("lint", "-f", "odd.yaml", "--errors-only")
    assert (ended.code, ended.out) == (0, "")


def test_mtls_without_a_permission_is_told_at_the_mesh(koguma, folder):
    mesh = "type: Mesh\nname: default\nmtls:\n  enabledBackend: ca\n  backends: [{name: ca, type: builtin}]\n"
    allowed = "{spiffeID: {type: Prefix, value: 'spiffe://default/'}}"
    permission = f"""\
type: MeshTrafficPermission
name: all
mesh: default
spec: {{rules: [{{default: {{allow: [{allowed}]}}}}]}}
"""
    (folder / "all.yaml").write_text(mesh)
    ended = koguma("lint", "-f", "all.yaml")
    assert (ended.code, lines(ended)) == (1, [("all.yaml:4:19", "warning", "KG016")])
    assert "known with --live" in ended.err
    (folder / "all.yaml").write_text(f"{mesh}---\n{permission.replace('allow:', 'deny:')}")
    assert [code for _, _, code in lines(koguma("lint", "-f", "all.yaml"))] == ["KG016"]
    (folder / "all.yaml").write_text(f"{mesh}---\n{permission}")
    assert koguma("lint", "-f", "all.yaml").code == 0


def test_objects_of_the_gateway_api_are_read_and_act(koguma, folder):
    (folder / "edge.yaml").write_text(GATEWAY_API.replace("SERVICE", "backend"))
    assert koguma("lint", "-f", str(folder)).out == ""
    (folder / "edge.yaml").write_text(GATEWAY_API.replace("SERVICE", "backent"))
    found = koguma("lint", "-f", str(folder))
    assert "edge.yaml:16:21: error KG002: spec.rules[0].backendRefs[0]: HTTPRoute" in found.out
    assert len(found.out.splitlines()) == 1


FILTER = """\
---
apiVersion: kuma.io/v1alpha1
kind: RouteFilter
metadata: {name: down, namespace: NAMESPACE, labels: {kuma.io/mesh: default}}
spec: {type: DirectResponse, directResponse: {status: 503}}
"""


def test_a_filter_that_a_route_names_is_found_in_files(koguma, folder):
    ref = "{type: ExtensionRef, extensionRef: {group: kuma.io, kind: RouteFilter, name: down}}"
    written = GATEWAY_API.replace("- backendRefs: [{name: SERVICE, port: 80}]", f"- filters: [{ref}]")
    (folder / "edge.yaml").write_text(written + FILTER.replace("NAMESPACE", "shop"))
    assert koguma("lint", "-f", str(folder)).out == ""
    (folder / "edge.yaml").write_text(written + FILTER.replace("NAMESPACE", "other"))
    found = koguma("lint", "-f", str(folder)).out
    assert "edge.yaml:16:" in found
    assert 'spec.rules[0].filters[0].extensionRef: HTTPRoute "web" (namespace shop) refers to Rout' in found


def test_what_the_gateway_api_refuses_is_told_with_its_place(koguma, folder):
    wrong = GATEWAY_API.replace("protocol: HTTP}", "protocol: HTTP, hostname: 'a b'}").replace(
        "v1beta1", "v2"
    )
    (folder / "edge.yaml").write_text(
        wrong + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoot\n"
    )
    found = koguma("lint", "-f", str(folder)).out
    assert re.search(r"edge.yaml:7:\d+: error KG000: spec.listeners\[0\].hostname: ", found)
    assert "edge.yaml:10:13: error KG000: apiVersion: must be one of gateway.networking.k8s.io/v1, " in found
    assert 'kind: unknown kind "HTTPRoot"; the Gateway API has GatewayClass, Gateway, ' in found


def test_scripts_get_json(koguma, folder):
    (folder / "odd.yaml").write_text(FINE.replace("{kind: Mesh}", "{kind: MeshService, name: nobody}"))
    ended = koguma("lint", "-f", "odd.yaml", "-o", "json")
    assert ended.code == 1
    (finding,) = json.loads(ended.out)["findings"]
    assert {
        name: finding[name] for name in ("file", "line", "column", "severity", "code", "field", "docs")
    } == {
        "file": "odd.yaml",
        "line": 6,
        "column": 18,
        "severity": "warning",
        "code": "KG002",
        "field": "spec.to[0].targetRef",
        "docs": "docs/lint.md#kg002",
    }


def test_a_new_mesh_brings_its_policies_and_its_services(koguma, folder):
    mesh = "type: Mesh\nname: default\n"
    proxy = """\
type: Dataplane
name: web
mesh: default
networking:
  address: 127.0.0.1
  inbound: [{port: 80, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
"""
    to_web = FINE.replace("{kind: Mesh}", "{kind: MeshService, name: web}").replace("quick", "to-web")
    (folder / "all.yaml").write_text(f"{mesh}---\n{proxy}---\n{to_web}---\n{FINE}")
    ended = koguma("lint", "-f", ".")
    assert [code for _, _, code in lines(ended)] == ["KG010"]
    assert "mesh-timeout-all-default wins" in ended.out


def test_the_control_plane_that_files_are_for_decides(koguma, folder):
    (folder / "a.yaml").write_text(
        FINE.replace("mesh: default", "mesh: default\nlabels: {kuma.io/zone: east}")
    )
    ended = koguma("lint", "-f", "a.yaml")
    assert "kuma.io/zone label should have default value" in ended.out
    assert koguma("lint", "-f", "a.yaml", "--zone", "east").code == 0


def test_what_cannot_be_read_ends_with_1(koguma, folder):
    (folder / "a.yaml").write_text("{")
    ended = koguma("lint", "-f", ".")
    assert (ended.code, ended.out) == (1, "")
    assert "a.yaml:" in ended.err


def test_no_server_is_asked_unless_live(koguma, folder):
    (folder / "fine.yaml").write_text(FINE)
    nowhere = ("--address", "http://127.0.0.1:1")
    assert koguma("lint", "-f", ".", *nowhere).code == 0
    assert koguma("lint", "-f", ".", "--live", *nowhere).code == 3


def test_patches_are_judged_by_the_envoy_of_this_machine(koguma, folder):
    (folder / "patch.yaml").write_text(PATCH)
    ended = koguma("lint", "-f", "patch.yaml")
    assert ended.code == 1
    assert lines(ended) == [("patch.yaml:10:18", "error", "KG000")]
    assert 'line 2: envoy.config.cluster.v3.Cluster has no field "lb_polici"; did you mean' in ended.out
    (folder / "patch.yaml").write_text(PATCH.replace("lb_polici", "lb_policy"))
    assert koguma("lint", "-f", "patch.yaml").code == 0
