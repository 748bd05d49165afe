"""Objects of the Gateway API through the Kubernetes form: versions, patches, rights, quotas, definitions."""

from tests.custom_resources import definition_spec
from tests.kube_client import CORE, MERGE, STRATEGIC, KubeClient

GROUP = "gateway.networking.k8s.io"
V1, V1BETA1 = f"{GROUP}/v1", f"{GROUP}/v1beta1"
ROUTE = {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}


def routes_of(config_maps):
    return config_maps.other(V1, "HTTPRoute")


def test_a_route_is_the_same_in_all_versions(config_maps):
    routes, older = routes_of(config_maps), config_maps.other(V1BETA1, "HTTPRoute")
    made = older.create("web", spec=ROUTE)
    assert (made.status, made.json["apiVersion"]) == (201, V1BETA1)
    assert routes.get("web")["spec"] == older.get("web")["spec"]
    assert routes.get("web")["spec"]["rules"][0]["matches"] == [
        {"path": {"type": "PathPrefix", "value": "/"}}
    ]
    assert routes.get("web")["metadata"]["uid"] == made.json["metadata"]["uid"]


def test_generations_count_specs_and_the_status_has_its_own_path(config_maps):
    routes = routes_of(config_maps)
    routes.create("web", spec=ROUTE, status={"parents": []})
    assert not (routes.get("web").get("status") or {}).get("parents")
    assert routes.patch("web", {"metadata": {"labels": {"a": "b"}}}).json["metadata"]["generation"] == 1
    assert routes.patch("web", {"spec": {"hostnames": ["a.lan"]}}).json["metadata"]["generation"] == 2
    assert routes.patch("web", {"spec": {}}, STRATEGIC).status == 415, "as of any custom resource"
    odd = routes.patch("web/status", {"status": {"parents": [{"controllerName": "x"}]}}, MERGE)
    assert odd.status == 422


def test_two_managers_own_a_listener_each(config_maps):
    gateways = config_maps.other(V1, "Gateway")
    base = {"gatewayClassName": "koguma"}
    one = {"name": "one", "port": 80, "protocol": "HTTP"}
    two = {"name": "two", "port": 81, "protocol": "HTTP"}
    assert gateways.apply("edge", "a", spec={**base, "listeners": [one]}).status == 201
    assert gateways.apply("edge", "b", spec={**base, "listeners": [two]}).status == 200
    assert [each["name"] for each in gateways.get("edge")["spec"]["listeners"]] == ["one", "two"]
    conflict = gateways.apply("edge", "b", spec={**base, "listeners": [{**one, "port": 90}]})
    assert conflict.status == 409


def test_unknown_fields_and_broken_rules_are_named(config_maps):
    routes = routes_of(config_maps)
    strict = routes.create("web", spec={**ROUTE, "hostname": "a"}, query={"fieldValidation": "Strict"})
    assert strict.status == 400
    assert "spec.hostname" in strict.json["message"]
    refused = routes.create("web", spec={**ROUTE, "parentRefs": [{"name": "a"}, {"name": "a"}]})
    assert refused.status == 422
    assert refused.json["details"]["causes"][0]["field"] == "spec.parentRefs[1]"
    assert routes.create("web", spec=ROUTE, query={"dryRun": "All"}).status == 201
    assert not routes.exists("web")


def test_a_quota_counts_routes(config_maps):
    quotas = config_maps.other(CORE, "ResourceQuota")
    assert quotas.create("few", spec={"hard": {f"count/httproutes.{GROUP}": "1"}}).status == 201
    assert routes_of(config_maps).create("one", spec=ROUTE).status == 201
    over = config_maps.other(V1BETA1, "HTTPRoute").create("two", spec=ROUTE)
    assert over.status == 403
    assert "exceeded quota: few" in over.json["message"]


def test_the_published_definitions_are_stored_and_change_nothing(plane, config_maps):
    definitions = KubeClient(plane, "", "apiextensions.k8s.io/v1", "CustomResourceDefinition")
    routes = routes_of(config_maps)
    assert routes.create("web", spec=ROUTE).status == 201
    name = f"httproutes.{GROUP}"
    spec = definition_spec(
        group=GROUP, names={"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute"}
    )
    approved = {"annotations": {"api-approved.kubernetes.io": "https://example.com/1"}}
    made = definitions.create(name, spec=spec, metadata=approved)
    assert made.status == 201, made.body
    assert "served by the control plane itself" in made.headers["Warning"]
    established = {each["type"]: each["status"] for each in made.json["status"]["conditions"]}
    assert established["Established"] == "True"
    assert routes.get("web")["spec"]["rules"]
    assert routes.create("odd", spec={"rules": 5}).status == 422, "its own schema holds"
    assert definitions.delete(name).status == 200
    assert routes.exists("web")
