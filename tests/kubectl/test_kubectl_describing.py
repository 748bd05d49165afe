"""What the API says of itself through the real kubectl; and that all paths to an object lead to one."""

import json

import pytest

from koguma.cli import main
from tests.kubectl.documents import route, timeout
from tests.waiting import until

pytestmark = pytest.mark.slow

GROUPS = (
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "coordination.k8s.io/v1",
    "events.k8s.io/v1",
    "koguma.io/v1",
    "kuma.io/v1alpha1",
    "rbac.authorization.k8s.io/v1",
    "v1",
)


def test_versions_and_resources_are_listed(kube):
    versions = kube("api-versions").split()
    assert set(GROUPS) <= set(versions)
    rows = kube.run("api-resources", "--no-headers").rows
    assert ["meshtimeouts", "mt", "kuma.io/v1alpha1", "true", "MeshTimeout"] in rows
    assert ["meshtimeouts", "koguma.io/v1", "true", "MeshTimeout"] in rows
    assert ["namespaces", "ns", "v1", "false", "Namespace"] in rows
    whole = kube("api-resources", "--namespaced=false", "-o", "name").split()
    assert {"meshes.kuma.io", "zones.kuma.io", "namespaces"} <= set(whole)
    assert "meshtimeouts.kuma.io" not in whole
    can_watch = kube("api-resources", "--verbs=list,watch", "--api-group=authorization.k8s.io", "-o", "name")
    assert can_watch == ""
    said = json.loads(kube("version", "-o", "json"))
    assert "koguma" in said["serverVersion"]["gitVersion"]
    assert kube("get", "--raw", "/healthz") == "ok"
    assert kube("get", "--raw", "/readyz") == "ok"
    assert kube("get", "--raw", "/readyz?verbose").endswith("readyz check passed")
    assert "invalid duration" in kube.refused("get", "--raw", "/api/v1/namespaces?timeout=abc")


def test_a_word_for_many_kinds_shows_each_object_once(kube):
    kube.applied(timeout())
    kube.applied(route())
    ours = kube("get", "kuma-policies", "-o", "name").split()
    assert sorted(ours) == ["meshhttproute.kuma.io/shop", "meshtimeout.kuma.io/slow"]
    clean = kube("get", "koguma-policies", "-o", "name").split()
    assert sorted(clean) == ["meshhttproute.koguma.io/shop", "meshtimeout.koguma.io/slow"]
    assert kube("delete", "kuma-policies", "--all").count("deleted") == 2


def test_fields_are_explained(kube):
    whole = kube("explain", "meshhttproute")
    assert "MeshHTTPRoute" in whole
    assert "Where HTTP requests go: by path, method, headers and query" in whole
    recursive = kube("explain", "meshhttproute.spec.to.rules", "--recursive")
    assert "The rules; the most specific match decides." in recursive
    for words in ("backendRefs\t<[]", "requestHeaderModifier\t<", "replacePrefixMatch\t<string>"):
        assert words in recursive, recursive
    assert "The method; any by default." in kube("explain", "mhttpr.spec.to.rules.matches")
    assert "The path; any by default." in kube(
        "explain", "meshhttproutes.spec.to.rules.matches", "--api-version=koguma.io/v1"
    )
    assert "Texts by name." in kube("explain", "cm.data")
    assert "Paths that are no resources" in kube("explain", "clusterrole.rules.nonResourceURLs")
    assert 'field "nope" does not exist' in kube.refused("explain", "mhttpr.spec.nope")


def test_an_object_is_one_object_under_all_of_its_paths(kube_everywhere, capsys):
    kube = kube_everywhere
    here, plane = kube.namespace, kube.plane
    path = f"/meshes/default/meshtimeouts/slow.{here}"
    admin = {"Authorization": f"Bearer {kube.admin_token}"}
    kube.applied(timeout())
    clean = kube.get("meshtimeouts.koguma.io", "slow")
    stored = kube.get("meshtimeouts.kuma.io", "slow")
    assert (clean["apiVersion"], stored["apiVersion"]) == ("koguma.io/v1", "kuma.io/v1alpha1")
    for part in ("uid", "resourceVersion", "creationTimestamp"):
        assert clean["metadata"][part] == stored["metadata"][part]
    rest = plane("GET", path, **admin)
    assert rest.status == 200, rest.body
    assert rest.json["spec"] == stored["spec"]
    assert rest.json["kri"] == stored["kri"] == clean["kri"]

    watched = ("get", "meshtimeouts.koguma.io", "slow", "-w")
    with kube.runs(*watched, "-o", "jsonpath={.spec.to[0].default.idleTimeout};") as watch:
        watch.wait_for_output("5s;")
        kube("patch", "meshtimeouts.koguma.io", "slow", "--type=json", "-p", _idle("6s"))
        assert kube("get", "mt", "slow", "-o", "jsonpath={.spec.to[0].default.idleTimeout}") == "6s"
        changed = {**plane("GET", path, **admin).json, "spec": timeout(idle="7s")["spec"]}
        assert plane("PUT", path, changed, **admin).status == 200
        kube("patch", "mt", "slow", "--type=json", "-p", _idle("8s"))
        watch.wait_for_output("5s;6s;7s;8s;")
    told = ("--address", plane.address, "--token-file", str(plane.data_dir / "admin-token"))
    capsys.readouterr()
    assert main(("get", "meshtimeout", f"slow.{here}", "-o", "json", *told)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["spec"]["to"][0]["default"] == {"idleTimeout": "8s"}
    assert plane("DELETE", path, **admin).status == 200
    assert 'meshtimeouts.koguma.io "slow" not found' in kube.refused("get", "meshtimeouts.koguma.io", "slow")


def _idle(value):
    return json.dumps([{"op": "replace", "path": "/spec/to/0/default/idleTimeout", "value": value}])


def test_the_clean_shape_is_written_and_read_through_the_older_one(kube):
    old = timeout()
    old["spec"] = {
        "from": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}],
    }
    kube.applied(old)
    clean = kube.get("meshtimeouts.koguma.io", "slow")
    assert "from" not in clean["spec"]
    assert kube.get("mt", "slow")["spec"] == old["spec"]
    kube("label", "meshtimeouts.koguma.io", "slow", "a=b")
    after = kube.get("mt", "slow")
    assert after["metadata"]["labels"]["a"] == "b"
    new = timeout("new", version="koguma.io/v1")
    assert kube.applied(new) == "meshtimeout.koguma.io/new created"
    assert kube.get("mt", "new")["spec"] == new["spec"]


def test_ids_tell_which_endpoints_serve_the_same_objects(kube):
    plane = kube.plane
    listed = plane("GET", "/_resources", Authorization=f"Bearer {kube.admin_token}").json["resources"]
    plain = {each["name"]: each["resourceID"] for each in listed}
    for version in ("kuma.io/v1alpha1", "koguma.io/v1"):
        discovered = json.loads(kube("get", "--raw", f"/apis/{version}"))["resources"]
        ids = {each["kind"]: each["resourceID"] for each in discovered if "/" not in each["name"]}
        assert ids == plain
        parts = [each for each in discovered if "/" in each["name"]]
        assert parts
        assert not any("resourceID" in each for each in parts)
    core = json.loads(kube("get", "--raw", "/api/v1"))["resources"]
    ids = {each["name"]: each["resourceID"] for each in core if "/" not in each["name"]}
    assert ids["secrets"] != plain["Secret"]
    events = json.loads(kube("get", "--raw", "/apis/events.k8s.io/v1"))["resources"]
    assert events[0]["resourceID"] == ids["events"]


def test_an_aggregated_role_shows_its_rules(kube):
    label = f"example.com/aggregate-to-{kube.namespace}"
    rule = f"--aggregation-rule={label}=true"
    kube("create", "clusterrole", f"all-{kube.namespace}", rule)
    kube("create", "clusterrole", f"one-{kube.namespace}", "--verb=get", "--resource=meshtimeouts.kuma.io")
    kube("label", "clusterrole", f"one-{kube.namespace}", f"{label}=true")
    until(lambda: "meshtimeouts.kuma.io" in kube("describe", "clusterrole", f"all-{kube.namespace}"))
    assert "meshtimeouts.kuma.io" in kube("describe", "clusterrole", "view")
