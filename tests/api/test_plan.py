"""Plan: what apply would do to every proxy, for whoever may read; nothing is written."""

from urllib.parse import quote

import pytest

from koguma.access.authorizer import REST_GROUP
from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import RBAC, KubeClient, accepted
from tests.waiting import until

MESH = "shop"
READ = {"apiGroups": [REST_GROUP], "verbs": ["get", "list"]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A mesh with two services of one proxy each, which all may call."""
    with LocalControlPlane(tmp_path_factory.mktemp("plans")) as running:
        objects = [
            build.mesh(MESH, mtls=build.builtin_mtls(), skipCreatingInitialPolicies=["*"]),
            *(dataplane(name, number) for number, name in enumerate(("web", "backend"), start=1)),
            timeout("slow", 9),
            permission("everybody", "spiffe://shop/"),
        ]
        assert running("POST", "/_apply", {"objects": objects}).status == 200
        until(lambda: [has_address(each) for each in services(running)] == [True, True])
        yield running


def services(plane):
    return plane("GET", f"/meshes/{MESH}/meshservices").json["items"]


def has_address(service):
    return bool((service.get("status") or {}).get("vips"))


def dataplane(name, number):
    inbound = build.inbound(name, 8080, name="main")
    return build.dataplane(
        f"{name}-1", mesh=MESH, labels={"app": name}, address=f"10.1.0.{number}", inbound=[inbound]
    )


def timeout(name, seconds, **top):
    conf = {"http": {"requestTimeout": f"{seconds}s"}}
    to = [{"targetRef": build.ANY, "default": conf}]
    return build.document("MeshTimeout", name, MESH, spec={**top, "to": to})


def permission(name, prefix, **spec):
    allowed = [{"spiffeID": {"type": "Prefix", "value": prefix}}]
    rules = [{"default": {"allow": allowed}}]
    return build.document("MeshTrafficPermission", name, MESH, spec={"rules": rules, **spec})


def ask(plane, *objects, query="", headers=None, **envelope):
    return plane("POST", f"/_plan{query}", {"objects": list(objects), **envelope}, **(headers or {}))


def planned(plane, *objects, **more):
    answer = ask(plane, *objects, **more)
    assert answer.status == 200, answer.body
    return answer.json


def deleted(kind, name):
    return {"type": kind, "name": name, "mesh": MESH}


def names(plan):
    return [[each["name"] for each in group["proxies"]] for group in plan["groups"]]


def test_a_value_with_both_sides_and_the_line_that_sets_it(plane):
    plan = planned(plane, timeout("slow", 3), query="?envoy=true")
    assert (plan["total"], plan["changed"], plan["isPartial"]) == (2, 2, False)
    assert names(plan) == [["backend-1", "web-1"]]
    (group,) = plan["groups"]
    assert {value["at"] for value in group["values"]} == {
        "kri_msvc_shop_default__backend_main",
        "kri_msvc_shop_default__web_main",
    }
    for value in group["values"]:
        assert (value["field"], value["before"], value["after"]) == ("http.requestTimeout", "9s", "3s")
        place = {"kri": "kri_mt_shop_default__slow_", "path": "spec.to[0].default.http.requestTimeout"}
        assert value["setBy"] == {**place, "line": value["wasSetBy"]["line"]}
    routes = [each for each in group["resources"] if each["type"] == "routes"]
    assert [leaf["after"] for each in routes for leaf in each["fields"]] == ["3s", "3s"]
    (written,) = plan["objects"]
    assert (written["action"], written["proxies"]) == ("configured", 2)
    stored = plane("GET", f"/meshes/{MESH}/meshtimeouts/slow").json
    assert stored["spec"]["to"][0]["default"] == {"http": {"requestTimeout": "9s"}}, "nothing is written"


def test_a_plan_is_of_what_is_stored_now(plane):
    assert planned(plane, timeout("slow", 9))["changed"] == 0
    assert plane("PUT", f"/meshes/{MESH}/meshtimeouts/slow", timeout("slow", 8)).status == 200
    assert planned(plane, timeout("slow", 9))["changed"] == 2
    assert planned(plane, timeout("slow", 8))["objects"][0]["action"] == "unchanged"
    assert plane("PUT", f"/meshes/{MESH}/meshtimeouts/slow", timeout("slow", 9)).status == 200
    assert planned(plane, timeout("slow", 9))["changed"] == 0


def test_why_an_object_changes_nothing(plane):
    nobody = timeout("a", 3, targetRef={"kind": "Dataplane", "labels": {"app": "nobody"}})
    plan = planned(plane, nobody, timeout("zz", 3), timeout("zzz", 9))
    reasons = {each["name"]: each["why"] for each in plan["objects"]}
    assert plan["changed"] == 0
    assert "selects no proxy" in reasons["a"]
    assert "loses to kri_mt_shop_default__slow_" in reasons["zz"]
    assert any("selects no proxy" in text for each in plan["objects"] for text in each.get("warnings", ()))


def test_an_annotation_is_part_of_an_object_and_kubectls_copy_is_not(plane):
    copied = "kubectl.kubernetes.io/last-applied-configuration"

    def annotated(**texts):
        metadata = {"name": "noted", "namespace": f"mesh-{MESH}", "labels": {"kuma.io/mesh": MESH}}
        spec = timeout("noted", 9)["spec"]
        api = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "spec": spec}
        return {**api, "metadata": {**metadata, "annotations": {"note": "a", copied: "{}", **texts}}}

    assert plane("POST", "/_apply", [annotated()]).status == 200
    (changed,) = planned(plane, annotated(note="b"))["objects"]
    field = {"path": "annotations.note", "before": "a", "after": "b"}
    assert (changed["action"], changed["fields"]) == ("configured", [field])
    (same,) = planned(plane, annotated(**{copied: "{secret}"}))["objects"]
    assert (same["action"], "fields" in same) == ("unchanged", False)
    assert plane("DELETE", f"/meshes/{MESH}/meshtimeouts/noted").status == 200


def test_a_rule_that_only_matches_is_a_change_of_its_own(plane):
    rule = {"matches": [{"path": {"type": "Exact", "value": "/a"}}], "default": {}}
    to = [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [rule]}]
    plan = planned(plane, build.document("MeshHTTPRoute", "matches", MESH, spec={"to": to}))
    assert [each["proxies"] for each in plan["objects"]] == [plan["changed"]] == [2]
    (value,) = plan["groups"][0]["values"]
    assert (value["field"], value["after"], value["requests"]) == ("matches", rule["matches"], "Exact /a")
    assert value["setBy"]["path"] == "spec.to[0].rules[0].matches"
    rule["default"] = {"filters": [build.response_header("x", "y")]}
    plan = planned(plane, build.document("MeshHTTPRoute", "matches", MESH, spec={"to": to}))
    assert {each["field"] for each in plan["groups"][0]["values"]} == {"filters"}


def test_what_proxies_cannot_do_is_a_risk_and_the_reason(plane):
    """Said once for all proxies and ports, also where nothing else of a proxy changes."""
    log = {"backends": [{"type": "File", "file": {"path": "/etc/elsewhere"}}]}
    to = [{"targetRef": build.ANY, "default": log}]
    plan = planned(plane, build.document("MeshAccessLog", "logs", MESH, spec={"to": to}))
    (risk,), (policy,) = plan["risks"], plan["objects"]
    assert (plan["changed"], policy["proxies"], risk["rule"]) == (0, 0, "cannot-be-built")
    assert "of backend-1 and 1 more cannot be built" in risk["message"]
    assert '"/etc/elsewhere" is not written' in risk["message"]
    assert '"/etc/elsewhere" is not written' in policy["why"]


def test_nobody_may_call_any_more(plane):
    plan = planned(plane, delete=[deleted("MeshTrafficPermission", "everybody")])
    (group,) = plan["groups"]
    (callers,) = group["callers"]
    assert (callers["at"], callers["removed"], callers["nAfter"]) == ("main", ["backend", "web"], 0)
    assert {risk["rule"] for risk in plan["risks"]} == {"no-callers", "no-permission"}
    assert [each["code"] for each in plan["newProblems"]] == ["KG016"]
    only_web = permission(
        "everybody", "spiffe://shop/web", targetRef={"kind": "Dataplane", "labels": {"app": "web"}}
    )
    plan = planned(plane, only_web)
    by_name = {group["proxies"][0]["name"]: group for group in plan["groups"]}
    assert by_name["backend-1"]["callers"][0]["removed"] == ["backend", "web"]
    assert by_name["web-1"]["callers"][0]["removed"] == ["backend"]


def test_a_proxy_that_goes_and_its_endpoints(plane):
    plan = planned(plane, delete=[deleted("dataplane", "backend-1")])
    by_action = {group["action"]: group for group in plan["groups"]}
    assert [each["name"] for each in by_action["removed"]["proxies"]] == ["backend-1"]
    (endpoints,) = by_action["changed"]["endpoints"]
    assert (endpoints["removed"], endpoints["nAfter"]) == (["10.1.0.2:8080"], 0)
    assert [risk["rule"] for risk in plan["risks"]] == ["no-endpoints"]


def test_a_port_that_goes_has_no_endpoints_to_lose(plane):
    path = f"/meshes/{MESH}/meshservices/unserved"
    assert plane("PUT", path, build.mesh_service("unserved", mesh=MESH)).status == 201
    until(lambda: has_address(plane("GET", path).json))
    plan = planned(plane, delete=[deleted("MeshService", "unserved")])
    assert {risk["rule"] for risk in plan["risks"]} == {"not-callable"}
    assert plane("DELETE", path).status == 200


def test_the_endpoints_of_an_external_service(plane):
    def external(*addresses):
        endpoints = [{"address": address, "port": 443} for address in addresses]
        return build.external_service("pay", 443, "http", mesh=MESH, endpoints=endpoints)

    path = f"/meshes/{MESH}/meshexternalservices/pay"
    assert plane("PUT", path, external("192.0.2.1", "192.0.2.2")).status == 201
    until(lambda: has_address(plane("GET", path).json))
    plan = planned(plane, external("192.0.2.2", "pay.example.com"))
    (group,) = plan["groups"]
    assert group["endpoints"] == [
        {
            "cluster": f"kri_extsvc_{MESH}_default__pay_443",
            "added": ["pay.example.com:443"],
            "removed": ["192.0.2.1:443"],
            "nBefore": 2,
            "nAfter": 2,
        }
    ]
    assert (group["ports"], plan["risks"]) == ([], [])
    plan = planned(plane, {**timeout("pay", 3), "spec": {"to": [pay_within("3s")]}})
    assert [group["endpoints"] for group in plan["groups"]] == [[]]  # its cluster is another one
    assert plane("DELETE", path).status == 200


def pay_within(seconds):
    target = {"kind": "MeshExternalService", "name": "pay"}
    return {"targetRef": target, "default": {"connectionTimeout": seconds}}


def test_a_new_service_with_what_the_control_plane_makes_of_it(plane):
    plan = planned(plane, dataplane("cache", 3))
    generated = [each for each in plan["objects"] if each.get("isGenerated")]
    assert [(each["type"], each["name"], each["action"]) for each in generated] == [
        ("MeshService", "cache", "created")
    ]
    (changed,) = [group for group in plan["groups"] if group["action"] == "changed"]
    assert changed["ports"] == [{"port": "kri_msvc_shop_default__cache_main", "isAdded": True}]
    assert [each["added"] for each in changed["endpoints"]] == [["10.1.0.3:8080"]]


def test_what_nobody_may_delete_is_refused_with_the_reason(plane):
    answer = ask(plane, delete=[deleted("DataplaneInsight", "web-1")])
    ((field, reason),) = answer.fields
    assert (answer.status, field) == (400, "delete[0]")
    assert reason == "DataplaneInsight is written by the control plane alone"


def test_a_generated_service_that_is_deleted_comes_again(plane):
    """So its callers lose nothing but its address, whether it was generated before or made by hand."""
    path = f"/meshes/{MESH}/meshservices/backend"
    plan = planned(plane, delete=[deleted("MeshService", "backend")])
    (service,) = plan["objects"]
    assert (service["name"], service["action"]) == ("backend", "unchanged")
    assert "writes it again" in service["why"]
    assert plan["risks"] == []
    assert [port for group in plan["groups"] for port in group["ports"]] == []
    plan = planned(plane, {**plane("GET", path).json, "spec": {"ports": [build.port(9999)]}})
    assert [(each["action"], "writes it again" in each["why"]) for each in plan["objects"]] == [
        ("unchanged", True)
    ]
    assert plan["changed"] == 0


def test_a_set_that_is_pruned(plane):
    mine = timeout("mine", 4, targetRef={"kind": "Dataplane", "labels": {"app": "web"}})
    assert plane("POST", "/_apply", {"objects": [mine], "set": "mine"}).status == 200
    plan = planned(plane, permission("mine", "spiffe://shop/"), set="mine", prune=True)
    assert [(each["name"], each["action"]) for each in plan["objects"]] == [
        ("mine", "created"),
        ("mine", "deleted"),
    ]
    assert names(plan) == [["web-1"]] or ["web-1"] in names(plan)
    assert plane("DELETE", f"/meshes/{MESH}/meshtimeouts/mine").status == 200


def test_what_apply_would_refuse(plane):
    answer = ask(plane, timeout("bad", "x"), query="")
    assert answer.status == 400
    assert [field for field, _ in answer.fields] == ["objects[0].spec.to[0].default.http.requestTimeout"]
    answer = ask(plane, delete=[deleted("MeshTimeout", "slo"), {"type": "MeshTimeout"}])
    assert (answer.status, [field for field, _ in answer.fields]) == (400, ["delete"])
    answer = ask(plane, delete=[deleted("MeshTimeout", "slo"), deleted("nokind", "x")])
    assert [field for field, _ in answer.fields] == ["delete[0]", "delete[1]"]
    assert 'did you mean "slow"?' in answer.fields[0][1]
    assert ask(plane, timeout("slow", 3), delete=[deleted("MeshTimeout", "slow")]).status == 400
    assert ask(plane, query="?dryRun=All").status == 400
    assert plane("POST", "/_apply", {"objects": [], "delete": []}).status == 400, "apply deletes nothing"


def test_secrets_are_not_shown(plane):
    secret = build.secret("s", "c2VjcmV0LXdvcmQ=", mesh=MESH)
    assert plane("PUT", f"/meshes/{MESH}/secrets/s", secret).status == 201
    plan = ask(plane, {**secret, "data": "b3RoZXItd29yZA=="}, query="?envoy=true")
    assert b"b3RoZXI" not in plan.body
    assert b"c2VjcmV0" not in plan.body
    assert plan.json["objects"][0]["fields"] == [
        {"path": "data", "before": "«redacted»", "after": "«redacted»"}
    ]


@pytest.fixture(scope="module")
def readers(plane):
    """Users who may read one kind, or write it; one of them also reads the Dataplane web-1."""
    roles = KubeClient(plane, "", RBAC, "ClusterRole")
    bindings = KubeClient(plane, "", RBAC, "ClusterRoleBinding")
    timeouts = {**READ, "resources": ["meshtimeouts"]}
    one = {**READ, "resources": ["dataplanes"], "resourceNames": ["web-1"]}
    accepted(roles.create("few", rules=[timeouts]))
    accepted(roles.create("one", rules=[timeouts, one]))
    accepted(roles.create("services", rules=[{**READ, "resources": ["meshservices"]}]))
    writes = {**timeouts, "verbs": ["get", "list", "create", "update", "delete"]}
    accepted(roles.create("writer", rules=[writes]))
    found = {}
    for name in ("few", "one", "services", "writer"):
        ref = {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": name}
        accepted(bindings.create(name, roleRef=ref, subjects=[{"kind": "User", "name": name}]))
        token = plane("POST", "/tokens/user", {"name": name, "groups": [], "validFor": "1h"})
        found[name] = {"Authorization": f"Bearer {token.body.decode()}"}
    return found


def test_who_may_read_few_objects_learns_of_no_others(plane, readers):
    few, one = (planned(plane, timeout("slow", 3), headers=readers[name]) for name in ("few", "one"))
    assert (few["total"], few["changed"], few["isPartial"], few["groups"]) == (0, 0, True, [])
    assert (one["total"], one["changed"], one["isPartial"], names(one)) == (1, 1, True, [["web-1"]])
    assert (few["objects"][0]["proxies"], few["bytesBefore"], few["bytesAfter"]) == (0, 0, 0)
    assert one["objects"][0]["proxies"] == 1
    answer = ask(plane, permission("mine", "spiffe://shop/"), headers=readers["one"])
    assert answer.status == 403
    answer = ask(plane, delete=[deleted("Dataplane", "backend-1")], headers=readers["one"])
    assert answer.status == 400
    assert "cannot" in answer.fields[0][1]
    loses = planned(plane, timeout("zz", 3), headers=readers["few"])
    assert loses["objects"][0]["why"] == "it selects none of the proxies that you may read"
    assert ask(plane, timeout("slow", 3), headers={"Authorization": "Bearer x"}).status == 401


def test_who_may_read_no_proxy_cannot_ask_by_labels_which_there_are(plane, readers):
    """Only the labels of what he asks differ, so all else of the answers must be equal."""
    by_app = [
        timeout("asks", 3, targetRef={"kind": "Dataplane", "labels": {"app": app}})
        for app in ("web", "backend", "nobody")
    ]
    for there, also, nobody in (
        [planned(plane, each, headers=readers["few"]) for each in by_app],
        [undo_plan(plane, each, readers["writer"]) for each in by_app],
    ):
        assert there == also == nobody
        assert (there["total"], there["risks"], there["newProblems"]) == (0, [], [])
    seen = [planned(plane, each, headers=readers["one"]) for each in by_app]
    assert [each["changed"] for each in seen] == [1, 0, 0]
    assert seen[1] == seen[2]
    known = [planned(plane, each) for each in by_app]
    assert [each["changed"] for each in known] == [1, 1, 0]
    assert [each["code"] for each in known[2]["newProblems"]] == ["KG005"]


def undo_plan(plane, stored, writer):
    """What taking back a stored timeout would do, for one who may only write timeouts."""
    url = f"/meshes/{MESH}/meshtimeouts/{stored['name']}"
    written = plane("PUT", url, stored)
    assert written.status == 201
    revision = written.headers["Koguma-Revision"]
    query = f"?revision={revision}&dryRun=All&plan=true"
    answer = plane("POST", f"/_undo{query}", **writer)
    assert answer.status == 200, answer.body
    assert plane("DELETE", url).status == 200
    return answer.json["plan"]


def test_references_to_a_deleted_object_are_counted_by_who_may_read_them(plane, readers):
    route = build.document(
        "MeshHTTPRoute",
        "by-route",
        MESH,
        spec={"to": [{"targetRef": {"kind": "MeshService", "name": "manual"}, "rules": []}]},
    )
    reader = readers["services"]
    manual = build.mesh_service("manual", mesh=MESH)
    assert plane("PUT", f"/meshes/{MESH}/meshservices/manual", manual).status == 201
    gone = deleted("MeshService", "manual")
    before = planned(plane, delete=[gone], headers=reader)
    assert plane("PUT", f"/meshes/{MESH}/meshhttproutes/by-route", route).status == 201
    assert planned(plane, delete=[gone], headers=reader) == before
    assert any("then refers" in each for each in planned(plane, delete=[gone])["objects"][0]["warnings"])
    for path in ("meshhttproutes/by-route", "meshservices/manual"):
        assert plane("DELETE", f"/meshes/{MESH}/{path}").status == 200


def test_a_new_mesh_is_shown_whole_to_who_may_read_all(plane):
    new = build.dataplane("a-1", mesh="new", inbound=[build.inbound("a", 8080, name="main")])
    plan = planned(plane, build.mesh("new"), new)
    assert (plan["total"], plan["changed"], plan["isPartial"]) == (2, 1, False)
    assert ("MeshService", "a", True) in [
        (each["type"], each["name"], each.get("isGenerated", False)) for each in plan["objects"]
    ]


def explain(plane, path, name="web-1", headers=None, at=""):
    query = quote(path, safe="") + at
    return plane("GET", f"/meshes/{MESH}/dataplanes/{name}/_explain?path={query}", **(headers or {}))


def test_who_set_a_field_of_envoy(plane, readers):
    name = "routes[kri_msvc_shop_default__backend_main]"
    answer = explain(plane, name, headers=readers["one"])
    assert answer.status == 200, answer.body
    (timeout_leaf,) = [each for each in answer.json["fields"] if each["path"].endswith(".timeout")]
    (origin,) = timeout_leaf["origins"]
    assert (timeout_leaf["value"], origin["kri"]) == ("9s", "kri_mt_shop_default__slow_")
    assert origin["path"] == "spec.to[0].default.http.requestTimeout"
    assert name in explain(plane, "routes").json["resources"]
    assert explain(plane, "").json["resources"]
    wrong = explain(plane, f"{name}.virtual_host")
    assert (wrong.status, [field for field, _ in wrong.fields]) == (400, ["path"])
    assert explain(plane, "routs[x]").status == 400
    assert explain(plane, name, "backend-1", headers=readers["one"]).status == 403
    assert explain(plane, name, "nobody").status == 404
    assert planned(plane, timeout("slow", 3))["changed"] == 2, "a plan after it is right"


def test_who_had_set_a_field_of_envoy(plane):
    path = "routes[kri_msvc_shop_default__backend_main]"
    before = plane("GET", f"/meshes/{MESH}/dataplanes").headers["Koguma-Revision"]
    assert plane("PUT", f"/meshes/{MESH}/meshtimeouts/slow", timeout("slow", 3)).status == 200
    values = {
        answer["value"]
        for at in ("", f"&at={before}")
        for answer in explain(plane, path, at=at).json["fields"]
        if answer["path"].endswith(".timeout")
    }
    assert values == {"3s", "9s"}
