"""Inspect: the configuration of a proxy with shadow policies, host names, gateways, and the older list."""

import jsonpatch
import pytest

from tests import build
from tests.build import timeout

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"


def apply(plane, *objects):
    answer = plane("POST", "/_apply", {"objects": list(objects)})
    assert answer.status == 200, answer.json


def proxy(mesh, name, **networking):
    served = {"inbound": [build.inbound("web", 80, name="main", protocol="")]}
    return build.dataplane(name, mesh=mesh, **{"inbound": [], **(networking or served)})


def service(mesh, name="backend", **spec):
    described = build.mesh_service(name, build.port(name="http"), mesh=mesh)
    return {**described, "spec": {"ports": described["spec"]["ports"], **spec}}


@pytest.fixture
def web(plane, mesh):
    outbound = [{"port": 8080, "backendRef": {"kind": "MeshService", "name": "backend", "port": 80}}]
    inbound = [{"port": 80, "tags": {"kuma.io/service": "web"}}]
    apply(plane, service(mesh), proxy(mesh, "web", inbound=inbound, outbound=outbound))
    return f"/meshes/{mesh}/dataplanes/web"


def backend(answer):
    """The cluster of the service in a configuration."""
    (found,) = [value for name, value in answer.json["xds"][CLUSTER].items() if "_backend_" in name]
    return found


def shadow(mesh, value="7s"):
    policy = timeout("planned", mesh, labels={"kuma.io/effect": "shadow"})
    policy["spec"]["to"][0]["default"] = {"connectionTimeout": value}
    return policy


def test_the_configuration_is_in_proto_jsons_names(plane, web):
    answer = plane("GET", f"{web}/_config")
    assert answer.status == 200
    assert backend(answer)["connectTimeout"]
    (inbound,) = [value for name, value in answer.json["xds"][LISTENER].items() if name.endswith("__web_80")]
    assert inbound["trafficDirection"] == "INBOUND"
    assert "typed_config" not in answer.body.decode()
    assert "diff" not in answer.json


def test_shadow_policies_count_only_where_they_are_asked_for(plane, mesh, web):
    now = plane("GET", f"{web}/_config").json
    apply(plane, shadow(mesh))
    assert plane("GET", f"{web}/_config").json == now
    assert plane("GET", f"{web}/_config?shadow=false&include=").json == now
    assert backend(plane("GET", f"{web}/_config?shadow=true"))["connectTimeout"] == "7s"
    assert plane("GET", f"{web}/_config").json == now


def test_the_difference_that_shadow_policies_make_is_a_patch(plane, mesh, web):
    now = plane("GET", f"{web}/_config?include=diff").json
    assert now["diff"] == []
    apply(plane, shadow(mesh))
    planned = plane("GET", f"{web}/_config?shadow=true&include=diff").json
    words = [(each["op"], each.get("value")) for each in planned["diff"]]
    assert words == [("test", "5s"), ("remove", None), ("add", "7s")]
    assert len({each["path"] for each in planned["diff"]}) == 1
    assert jsonpatch.apply_patch(now["xds"], planned["diff"]) == planned["xds"]


@pytest.mark.parametrize(("query", "name"), [("shadow=trrrue", "shadow"), ("include=dif", "include")])
def test_other_words_are_refused(plane, web, query, name):
    answer = plane("GET", f"{web}/_config?{query}")
    assert (answer.status, answer.json["title"]) == (400, "Bad Request")
    assert answer.json["detail"] == f"bad request: unsupported value for query parameter '{name}'"
    assert answer.fields[0][0] == name


def test_names_by_which_services_are_called(plane, mesh):
    external = {"type": "MeshExternalService", "mesh": mesh, "name": "mail"}
    external["spec"] = {
        "match": {"type": "HostnameGenerator", "port": 80, "protocol": "http"},
        "endpoints": [{"address": "192.0.2.1", "port": 80}],
    }
    apply(plane, service(mesh), external)
    for path, name in (
        ("meshservices/backend", "backend.svc.mesh.local"),
        ("meshexternalservices/mail", "mail.extsvc.mesh.local"),
    ):
        found = plane("GET", f"/meshes/{mesh}/{path}/_hostnames").json
        assert found == {"total": 1, "items": [{"hostname": name, "zones": [{"name": "default"}]}]}
    assert plane("GET", f"/meshes/{mesh}/meshservices/other/_hostnames").status == 404
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/slow/_hostnames").status == 404


def gateway(mesh, tag="edge"):
    listener = {"port": 8080, "protocol": "HTTP", "hostname": "www.example.com"}
    selectors = [{"match": {"kuma.io/service": tag}}]
    return {"type": "MeshGateway", "mesh": mesh, "name": "edge", "selectors": selectors} | {
        "conf": {"listeners": [listener]}
    }


def serving(mesh, name="edge-1", service="edge"):
    return proxy(mesh, name, gateway={"type": "BUILTIN", "tags": {"kuma.io/service": service}})


def gateway_timeout(mesh):
    policy = timeout("slow", mesh)
    policy["spec"]["targetRef"] = {"kind": "MeshGateway", "name": "edge"}
    return policy


def test_the_rules_of_a_gateway_are_those_of_a_proxy_that_serves_it(plane, mesh):
    other = timeout("other", mesh, idle="9s")
    other["spec"]["targetRef"] = {"kind": "Mesh", "proxyTypes": ["Sidecar"]}
    apply(plane, gateway(mesh), gateway_timeout(mesh), other)
    path = f"/meshes/{mesh}/meshgateways/edge/_rules"
    found = plane("GET", path).json
    assert (found["resource"]["type"], found["resource"]["name"]) == ("MeshGateway", "edge")
    (rules,) = found["rules"]
    assert rules["toResourceRules"][0]["conf"] == [{"idleTimeout": "5s"}]
    apply(plane, serving(mesh))
    assert plane("GET", path).json["rules"] == found["rules"]
    assert plane("GET", f"/meshes/{mesh}/dataplanes/edge-1/_rules").json["rules"] == found["rules"]
    assert [each["name"] for each in plane("GET", f"/meshes/{mesh}/dataplanes").json["items"]] == ["edge-1"]


def test_the_older_list_of_whom_a_policy_selects(plane, mesh):
    policy = timeout(mesh=mesh)
    apply(plane, policy, gateway(mesh), proxy(mesh, "web"), serving(mesh))
    found = plane("GET", f"/meshes/{mesh}/meshtimeouts/slow/dataplanes").json
    assert found["total"] == 2
    assert found["items"][0] == {
        "kind": "MeshGatewayDataplane",
        "dataplane": {"mesh": mesh, "name": "edge-1"},
        "gateway": {"mesh": mesh, "name": "edge"},
        "listeners": [
            {"port": 8080, "protocol": "HTTP", "hosts": [{"hostName": "www.example.com", "routes": []}]}
        ],
    }
    assert found["items"][1] == {
        "kind": "SidecarDataplane",
        "dataplane": {"mesh": mesh, "name": "web"},
        "attachments": [{"type": "dataplane"}],
    }
    page = plane("GET", f"/meshes/{mesh}/meshtimeouts/slow/dataplanes?size=1").json
    assert (page["total"], len(page["items"]), "next" in page) == (2, 1, True)
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/slow/dataplanes?name=we").json["total"] == 1


def test_the_proxies_that_serve_a_gateway(plane, mesh):
    apply(plane, gateway(mesh), serving(mesh), serving(mesh, "other", "other"), proxy(mesh, "web"))
    found = plane("GET", f"/meshes/{mesh}/meshgateways/edge/dataplanes").json
    assert found == {"total": 1, "items": [{"dataplane": {"mesh": mesh, "name": "edge-1"}}]}
