"""lint, inspect and explain against a real control plane, and what a writer hears; a mesh for each test."""

import json
import re
import time

import pytest

from tests import build
from tests.waiting import until

pytestmark = pytest.mark.slow

DISJOINT = """
apiVersion: kuma.io/v1alpha1
kind: MeshHTTPRoute
metadata:
  name: route-to-backend
  namespace: backend-{mesh}
  labels: {{kuma.io/mesh: {mesh}}}
spec:
  targetRef:
    kind: MeshSubset
    tags: {{k8s.kuma.io/namespace: frontend-ns}}
---
apiVersion: kuma.io/v1alpha1
kind: MeshTimeout
metadata:
  name: timout-for-backend
  namespace: backend-{mesh}
  labels: {{kuma.io/mesh: {mesh}}}
spec:
  targetRef:
    kind: MeshSubset
    tags: {{k8s.kuma.io/namespace: some-other-ns}}
  to:
    - targetRef: {{kind: MeshHTTPRoute, name: route-to-backend}}
"""
SHOP = """
type: Dataplane
name: web
mesh: {mesh}
networking:
  address: 127.0.0.1
  inbound: [{{name: http, port: 80, tags: {{kuma.io/service: web, kuma.io/protocol: http}}}}]
---
type: MeshService
name: backend
mesh: {mesh}
spec:
  selector: {{dataplaneTags: {{kuma.io/service: web}}}}
  ports: [{{name: http, port: 80, appProtocol: http}}]
---
type: MeshHTTPRoute
name: slow-pages
mesh: {mesh}
spec:
  to:
    - targetRef: {{kind: MeshService, name: backend}}
      rules:
        - matches: [{{path: {{type: PathPrefix, value: /slow}}}}]
          default: {{}}
---
type: MeshTimeout
name: of-service
mesh: {mesh}
spec:
  to:
    - targetRef: {{kind: MeshService, name: backend}}
      default: {{http: {{requestTimeout: 2s}}}}
---
type: MeshTimeout
name: of-route
mesh: {mesh}
spec:
  to:
    - targetRef: {{kind: MeshHTTPRoute, name: slow-pages}}
      default: {{http: {{requestTimeout: 10s}}}}
"""


@pytest.fixture
def shop(cli, mesh):
    """The same with a small shop in it."""
    ended = cli("apply", "-f", "-", given=SHOP.format(mesh=mesh))
    assert (ended.code, ended.err) == (0, "")
    return mesh


def timeout(mesh: str, name: str, limit: str, service: str = ""):
    to = build.service_ref(service) if service else build.ANY
    return build.policy("MeshTimeout", name, (to, {"connectionTimeout": limit}), mesh=mesh)


def test_the_founding_documents_disjoint_example_is_warned_about_once_when_it_is_applied(cli, mesh, tmp_path):
    file = tmp_path / "disjoint.yaml"
    file.write_text(DISJOINT.format(mesh=mesh).lstrip())
    ended = cli("apply", "-f", str(file))
    assert ended.code == 0
    (warning,) = (line for line in ended.err.splitlines() if "KG001" in line)
    assert warning.startswith(f"warning: {file}:23:18: spec.to[0].targetRef: MeshTimeout ")
    linted = cli("lint", "-f", str(file))
    assert linted.code == 1
    assert linted.out.count("KG001") == 1


def test_the_inspect_api_warns_a_proxy_of_it_once(cli, control_plane, mesh):
    cli("apply", "-f", "-", given=DISJOINT.format(mesh=mesh))
    inbound = {"port": 80, "tags": {"kuma.io/service": "web"}}
    proxy = {
        "type": "Dataplane",
        "name": "web.some-other-ns",
        "mesh": mesh,
        "labels": {"k8s.kuma.io/namespace": "some-other-ns"},
        "networking": {"address": "127.0.0.1", "inbound": [inbound]},
    }
    path = f"/meshes/{mesh}/dataplanes/web.some-other-ns"
    assert control_plane("PUT", path, proxy).status == 201
    warnings = [
        text for kind in control_plane("GET", f"{path}/_rules").json["rules"] for text in kind["warnings"]
    ]
    assert sum("KG001" in text for text in warnings) == 1


def test_writing_the_route_alone_tells_of_the_policy_on_it(cli, mesh):
    route, policy = DISJOINT.format(mesh=mesh).split("---")
    assert "KG002" in cli("apply", "-f", "-", given=policy).err
    warning = cli("apply", "-f", "-", given=route).err
    assert warning.count("KG001") == 1
    assert "spec.to[0].targetRef" not in warning  # that is a place in the other object


def test_a_put_answers_with_what_is_odd_now(control_plane, mesh):
    path = f"/meshes/{mesh}/meshtimeouts"
    assert control_plane("PUT", f"{path}/b", timeout(mesh, "b", "1s")).json == {}
    answer = control_plane("PUT", f"{path}/a", timeout(mesh, "a", "2s"))
    assert answer.status == 201
    (warning,) = answer.json["warnings"]
    assert warning.endswith("(KG010)")
    assert "a wins" in warning
    assert control_plane("PUT", f"{path}/a", timeout(mesh, "a", "1s")).json == {}
    dry = control_plane("PUT", f"{path}/a?dryRun=All", timeout(mesh, "a", "3s"))
    assert dry.json == answer.json, "a dry run warns as the write would"
    lost = control_plane("PUT", f"{path}/c", timeout(mesh, "c", "1s", "nobody"))
    assert [text[-7:] for text in lost.json["warnings"]] == ["(KG002)"]


def test_live_objects_lie_beneath_the_files(cli, shop, tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text(json.dumps(timeout(shop, "more", "1s", "backend")))
    alone = cli("lint", "-f", str(file))
    assert (alone.code, alone.out.count("KG002")) == (1, 1)
    live = cli("lint", "-f", str(file), "--live")
    assert (live.code, live.out) == (0, "")
    # The file says something else than the object of that name on the server.
    changed = timeout(shop, "of-service", "1s", "gone")
    file.write_text(json.dumps(changed))
    assert cli("lint", "-f", str(file), "--live").out.count("KG002") == 1


def test_gateways_of_the_gateway_api_are_known_live(cli, control_plane, shop):
    """A proxy that serves a Gateway listens: without the Gateway, lint would say that it does not."""
    namespaces = f"/apis/gateway.networking.k8s.io/v1/namespaces/mesh-{shop}"
    proxy = {"type": "BUILTIN", "tags": {"kuma.io/service": f"edge_mesh-{shop}_svc"}}
    dataplane = {"type": "Dataplane", "mesh": shop, "name": "edge-1"}
    networking = {"address": "127.0.0.1", "gateway": proxy}
    path = f"/meshes/{shop}/dataplanes/edge-1"
    assert control_plane("PUT", path, {**dataplane, "networking": networking}).status == 201
    assert cli("lint", "--live").out.count(f"edge_mesh-{shop}_svc") == 1
    listeners = [{"name": "web", "port": 8080, "protocol": "HTTP"}]
    gateway = {"metadata": {"name": "edge"}, "spec": {"gatewayClassName": "koguma", "listeners": listeners}}
    assert control_plane("POST", f"{namespaces}/gateways", gateway).status == 201
    assert f"edge_mesh-{shop}_svc" not in cli("lint", "--live").out
    assert control_plane("DELETE", f"{namespaces}/gateways/edge").status == 200


def test_everything_that_is_stored_is_linted_without_files(cli, shop):
    before = cli("lint", "--live")
    assert f"(mesh {shop})" not in before.out
    assert cli("apply", "-f", "-", given=json.dumps(timeout(shop, "lost", "1s", "gone"))).code == 0
    ended = cli("lint", "--live")
    assert ended.code == 1
    (line,) = [line for line in ended.out.splitlines() if f"meshtimeout/lost (mesh {shop}):" in line]
    place, _, words = line.partition(": ")
    assert words.startswith("warning KG002: spec.to[0].targetRef: ")
    # The place is that of the object as `get` shows it.
    shown = cli("get", "mt", "lost", "-m", shop, "-o", "yaml").out.splitlines()
    row = int(place.rpartition(":")[0].rpartition(":")[2])
    assert "kind: MeshService" in "\n".join(shown[row - 1 : row + 1])
    cli("delete", "mt", "lost", "-m", shop)
    assert cli("lint", "--live").out == before.out


OUTSIDE = """
type: Mesh
name: {mesh}
mtls: {{enabledBackend: ca-1, backends: [{{name: ca-1, type: builtin}}]}}
routing: {{zoneEgress: true}}
---
type: MeshExternalService
name: outside
mesh: {mesh}
spec:
  match: [{{type: InternalVIP, value: backend.svc.mesh.local, port: 80, protocol: http}}]
  destination: {{type: Regular, endpoints: [{{address: 192.0.2.1}}]}}
"""
EGRESS = """
type: ZoneEgress
name: egress-{mesh}
zone: default
networking: {{address: 192.0.2.2, port: 10002}}
"""


def test_stored_objects_are_linted_with_the_egresses_and_the_host_names_of_the_server(cli, shop):
    assert cli("apply", "-f", "-", given=OUTSIDE.format(mesh=shop)).code == 0
    assert "KG021" in cli("lint", "--live").out
    assert cli("apply", "-f", "-", given=EGRESS.format(mesh=shop)).code == 0
    found = cli("lint", "--live").out
    assert "KG021" not in found, "calls leave through the egress"
    assert 'claim the host name "backend.svc.mesh.local" (by the HostnameGenerator' in found
    cli("delete", "zoneegress", f"egress-{shop}")


def test_of_two_claims_of_one_name_the_older_one_is_said_to_have_it(cli, mesh):
    claim = """
type: MeshExternalService
name: {name}
mesh: {mesh}
spec:
  match: [{{type: InternalVIP, value: one.ext, port: 80, protocol: http}}]
  destination: {{type: Regular, endpoints: [{{address: 192.0.2.1}}]}}
"""
    cli("apply", "-f", "-", given=claim.format(name="younger-by-name", mesh=mesh))
    time.sleep(1.1)  # creation times are those of a second
    warned = cli("apply", "-f", "-", given=claim.format(name="a", mesh=mesh)).err
    said = 'it leads to MeshExternalService "younger-by-name"'
    assert said in warned
    assert said in cli("lint", "--live").out


def test_a_proxy_is_shown_with_its_ports_rules_and_problems(cli, shop):
    cli("apply", "-f", "-", given=json.dumps(timeout(shop, "lost", "1s", "gone")))
    ended = cli("inspect", "dataplane", "web", "-m", shop)
    assert ended.code == 0
    text = " ".join(ended.out.split())
    assert "Serves: INBOUND PORT PROTOCOL STATE http 80 http Ready" in text
    assert f"backend 80 http kri_msvc_{shop}_default__backend_http" in text
    assert "MeshHTTPRoute MeshService backend 1 rule slow-pages" in text
    assert "MeshTimeout MeshHTTPRoute slow-pages http.requestTimeout=10s of-service, of-route" in text
    assert "MeshTimeout MeshService backend http.requestTimeout=2s of-service" in text
    assert "(KG002)" in text.partition("Warnings:")[2]
    whole = json.loads(cli("inspect", "dataplane", "web", "-m", shop, "-o", "json").out)
    assert whole["layout"]["kri"] == f"kri_dp_{shop}_default__web_"
    assert [kind["type"] for kind in whole["rules"]["rules"]] == ["MeshHTTPRoute", "MeshTimeout"]


def test_a_policy_is_shown_with_whom_it_selects(cli, shop):
    ended = cli("inspect", "policy", "mt", "of-route", "-m", shop)
    assert ended.code == 0
    assert ended.out.splitlines()[:5] == [
        "MeshTimeout:  of-route",
        f"Mesh:         {shop}",
        f"KRI:          kri_mt_{shop}_default__of-route_",
        "Target:       Mesh",
        "Role:         system",
    ]
    assert ended.out.splitlines()[-1].split() == ["web", "default", "-", f"kri_dp_{shop}_default__web_"]
    assert cli("inspect", "policy", "dp", "web", "-m", shop).code == 2
    assert cli("inspect", "policy", "mt", "nothing", "-m", shop).code == 1


def test_a_command_for_a_kind_has_all_names_of_the_kind(cli, shop):
    for word in ("dataplane", "dp", "Dataplane", "dataplanes"):
        ended = cli("inspect", word, "web", "-m", shop)
        assert (ended.code, ended.out.split()[:2]) == (0, ["Dataplane:", "web"])
    assert "No such command 'mt'" in cli("inspect", "mt", "of-route", "-m", shop).err


def test_a_service_is_shown_with_its_ports_and_proxies(cli, shop):
    ended = cli("inspect", "service", "backend", "-m", shop)
    assert ended.code == 0
    text = " ".join(ended.out.split())
    assert "Ports: NAME PORT TARGET PROTOCOL http 80 80 http" in text
    assert f"web default - kri_dp_{shop}_default__web_" in text
    inspected = json.loads(cli("inspect", "service", "backend", "-m", shop, "-o", "json").out)
    assert [proxy["name"] for proxy in inspected["dataplanes"]] == ["web"]


def test_a_field_is_explained_with_the_line_that_get_prints(cli, shop):
    words = ("-m", shop, "--to", "backend", "--route", "slow-pages", "--field", "requestTimeout")
    ended = cli("explain", "dataplane", "web", *words)
    assert ended.code == 0
    first, calls, winner, loser = ended.out.splitlines()
    assert (first, calls) == (
        "MeshTimeout http.requestTimeout = 10s",
        "  for calls to backend:http through slow-pages",
    )
    place = "spec.to[0].default.http.requestTimeout, line "
    assert winner.startswith(f"  set by kri_mt_{shop}_default__of-route_, {place}")
    assert loser.startswith(f"  not 2s of kri_mt_{shop}_default__of-service_, {place}")
    assert loser.endswith(": it targets a mesh or service, one that targets a route in to[] wins")
    shown = cli("get", "mt", "of-route", "-m", shop, "-o", "yaml").out.splitlines()
    assert shown[int(winner.rpartition(" ")[2]) - 1].strip() == "requestTimeout: 10s"


def test_the_server_and_the_files_explain_alike(cli, shop, tmp_path):
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP.format(mesh=shop))
    words = ("explain", "dataplane", "web", "-m", shop, "--to", "backend", "-o", "json")
    served = json.loads(cli(*words).out)["fields"]
    offline = json.loads(cli(*words, "-f", str(file)).out)["fields"]
    assert len(served) == 2
    for of_server, of_files in zip(served, offline, strict=True):
        for field in ("to", "route", "kind", "field", "value"):
            assert of_server[field] == of_files[field]
        assert (of_server["origin"]["kri"], of_server["origin"]["path"]) == (
            of_files["origin"]["kri"],
            of_files["origin"]["path"],
        )


def test_the_server_and_the_files_have_the_same_services(cli, shop, tmp_path):
    """The MeshService that is made of the proxy, by the server in its own time and by lint at once."""
    file = tmp_path / "to-web.yaml"
    file.write_text(json.dumps(timeout(shop, "to-web", "1s", "web")))
    until(lambda: cli("get", "msvc", "web", "-m", shop).code == 0, "the server has made it")
    assert cli("lint", "-f", str(file), "--live").code == 0
    (tmp_path / "shop.yaml").write_text(SHOP.format(mesh=shop))
    assert cli("lint", "-f", str(tmp_path)).code == 0


def test_no_policy_is_said_not_to_act(cli, shop):
    document = f"""
type: MeshGatewayHTTPRoute
name: edge
mesh: {shop}
spec:
  targetRef: {{kind: MeshGateway, name: edge}}
  rules:
    - matches: [{{path: {{type: PathPrefix, value: /}}}}]
      default: {{backendRefs: [{{kind: MeshService, name: backend, port: 80}}]}}
"""
    applied = cli("apply", "-f", "-", given=document)
    assert applied.code == 0
    assert "does not act yet" not in applied.err
    policy = cli("inspect", "policy", "meshgatewayhttproute", "edge", "-m", shop).out
    assert "Acts" not in policy
    acting = cli("inspect", "policy", "meshtimeout", "of-service", "-m", shop)
    assert (acting.code, "Acts" in acting.out) == (0, False)


def test_a_gateway_is_shown_with_its_listeners_and_what_they_refuse(cli, shop):
    document = f"""
type: MeshGateway
name: front
mesh: {shop}
selectors: [{{match: {{kuma.io/service: front}}}}]
conf: {{listeners: [{{name: web, port: 8080, protocol: HTTP, hostname: "*.shop.example"}}]}}
---
type: Dataplane
name: front-1
mesh: {shop}
networking: {{address: 127.0.0.1, gateway: {{type: BUILTIN, tags: {{kuma.io/service: front}}}}}}
---
type: MeshHTTPRoute
name: www
mesh: {shop}
spec:
  targetRef: {{kind: MeshGateway, name: front, sectionName: web}}
  to:
    - targetRef: {{kind: Mesh}}
      hostnames: [www.shop.example]
      rules:
        - matches: [{{path: {{type: PathPrefix, value: /}}}}]
          default: {{backendRefs: [{{kind: MeshService, name: backend, port: 80}}]}}
---
type: MeshHTTPRoute
name: elsewhere
mesh: {shop}
spec:
  targetRef: {{kind: MeshGateway, name: front}}
  to:
    - targetRef: {{kind: Mesh}}
      hostnames: [blog.example]
      rules:
        - matches: [{{path: {{type: PathPrefix, value: /}}}}]
          default: {{backendRefs: [{{kind: MeshService, name: backend, port: 80}}]}}
"""
    applied = cli("apply", "-f", "-", given=document)
    assert (applied.code, "KG023" in applied.err) == (0, True)
    shown = cli("inspect", "meshgateway", "front", "-m", shop)
    assert shown.code == 0
    assert re.search(r"^  web +HTTP 8080 +www\.shop\.example +www ", shown.out, re.MULTILINE)
    assert re.search(r"^  web +HTTP 8080 +\*\.shop\.example +none: 404 ", shown.out, re.MULTILINE)
    assert re.search(
        r"^  web +elsewhere +spec\.to\[0\] +it is for blog\.example, and", shown.out, re.MULTILINE
    )
    assert "front-1" in shown.out
    proxy = cli("inspect", "dataplane", "front-1", "-m", shop)
    assert (proxy.code, "www.shop.example" in proxy.out) == (0, True)
    explained = cli("explain", "dataplane", "front-1", "--to", "backend", "-m", shop)
    assert (explained.code, "MeshTimeout" in explained.out) == (0, True)
    nobody = cli("inspect", "meshgateway", "none", "-m", shop)
    assert (nobody.code, 'MeshGateway "none"' in nobody.err) == (1, True)
