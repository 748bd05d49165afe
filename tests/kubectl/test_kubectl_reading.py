"""Reading with the real kubectl: what is shown, chosen, sorted and paged."""

import json

import pytest

from tests.kubectl.documents import config_map, route, timeout

pytestmark = pytest.mark.slow


def test_generators_make_what_get_and_describe_show(kube):
    here = kube.namespace
    assert kube("create", "ns", here) == f"namespace/{here} created"
    assert kube("create", "cm", "one", "--from-literal=a=b") == "configmap/one created"
    assert kube("create", "secret", "generic", "two", "--from-literal=a=b") == "secret/two created"
    data_dir = kube.plane.data_dir
    pair = (f"--cert={data_dir}/tls.pem", f"--key={data_dir}/tls-key.pem")
    assert kube("create", "secret", "tls", "pair", *pair) == "secret/pair created"
    assert kube("create", "sa", "bot") == "serviceaccount/bot created"
    kube("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kube("create", "clusterrole", f"{here}-reader", "--verb=get", "--resource=meshtimeouts.kuma.io")
    kube("create", "rolebinding", "rb", "--role=reader", "--user=ann", f"--serviceaccount={here}:bot")
    kube("create", "clusterrolebinding", f"{here}-crb", f"--clusterrole={here}-reader", "--group=devs")

    assert kube.run("get", "ns", here).rows[1][:2] == [here, "Active"]
    rows = kube.run("get", "cm,secret,sa,role,rolebinding", "-o", "wide").rows
    cells = {row[0]: row[1:] for row in rows if row}
    assert cells["configmap/one"][0] == "1"
    assert cells["secret/two"][:2] == ["Opaque", "1"]
    assert cells["secret/pair"][:2] == ["kubernetes.io/tls", "2"]
    binding = cells["rolebinding.rbac.authorization.k8s.io/rb"]
    assert [binding[0], *binding[2:]] == ["Role/reader", "ann", f"{here}/bot"]
    assert kube.get("secret", "two")["data"] == {"a": "Yg=="}
    assert kube.get("clusterrole", f"{here}-reader")["rules"] == [
        {"apiGroups": ["kuma.io"], "resources": ["meshtimeouts"], "verbs": ["get"]}
    ]
    described = kube("describe", "ns,cm,sa,role,clusterrole", "-l", "!kubernetes.io/bootstrapping")
    for words in ("Status:       Active", "a:\n----\nb", "Image pull secrets:  <none>", "[get list]"):
        assert words in described, described
    kube("delete", "clusterrole,clusterrolebinding", f"{here}-reader", f"{here}-crb", "--ignore-not-found")


def test_a_route_is_shown_with_columns_that_say_something(kube):
    kube.applied(route())
    shown = kube.run("get", "meshhttproutes").rows
    assert shown[0] == ["NAME", "MESH", "TARGET", "DESTINATIONS", "RULES", "AGE"]
    assert shown[1][:5] == ["shop", "default", "Mesh", "MeshService/backend", "1"]
    wide = kube.run("get", "mhttpr", "-o", "wide").rows
    assert wide[0][-3:] == ["ZONE", "ORIGIN", "KRI"]
    assert wide[1][-1] == f"kri_mhttpr_default_default_{kube.namespace}_shop_"
    assert kube.run("get", "mhttpr", "-L", "app").rows[1][-1] == "web"
    assert "app=web" in kube("get", "mhttpr", "--show-labels")
    everywhere = kube.run("get", "mhttpr", "--all-namespaces").rows
    assert everywhere[0][0] == "NAMESPACE"
    assert [kube.namespace, "shop"] in [row[:2] for row in everywhere]
    described = kube("describe", "mhttpr", "shop")
    assert "Kind:         MeshHTTPRoute" in described
    assert "Weight:  90" in described
    assert described.split()[-2:] == ["Events:", "<none>"]


def test_every_output_shows_the_same_object(kube):
    kube.applied(route())
    at = "{.spec.to[0].rules[0].default.backendRefs[*].weight}"
    assert kube("get", "mhttpr", "shop", "-o", f"jsonpath={at}") == "90 10"
    columns = "N:.metadata.name,W:.spec.to[0].rules[0].default.backendRefs[*].weight"
    assert kube.run("get", "mhttpr", "-o", f"custom-columns={columns}").rows == [
        ["N", "W"],
        ["shop", "90,10"],
    ]
    assert kube("get", "mhttpr", "-o", "name") == "meshhttproute.kuma.io/shop"
    assert kube("get", "mhttpr", "-o", "go-template={{range .items}}{{.kind}}{{end}}") == "MeshHTTPRoute"
    in_yaml = kube("get", "mhttpr", "shop", "-o", "yaml")
    assert in_yaml.startswith("apiVersion: kuma.io/v1alpha1\nkind: MeshHTTPRoute\nkri: kri_mhttpr_default_")
    path = f"/apis/kuma.io/v1alpha1/namespaces/{kube.namespace}/meshhttproutes/shop"
    raw = json.loads(kube("get", "--raw", path))
    assert raw["spec"] == route()["spec"]
    shown = kube.get("mhttpr", "shop")
    for each in (raw, shown):
        each["metadata"].pop("managedFields", None)  # newer kubectls leave them out
    assert raw == shown


def test_objects_are_chosen_by_labels_and_fields(kube):
    for number, tier in enumerate(("front", "back", "back"), 1):
        kube.applied(config_map(f"n{number}", {"tier": tier}, n=str(number)))
    kube("create", "secret", "generic", "s")

    def chosen(*words):
        return kube("get", *words, "-o", "name").split()

    assert chosen("cm", "-l", "tier=back") == ["configmap/n2", "configmap/n3"]
    assert chosen("cm", "-l", "tier in (front,side),!other") == ["configmap/n1"]
    assert chosen("cm", "-l", "tier!=back") == ["configmap/n1"]
    assert chosen("cm", "--field-selector", "metadata.name=n3,metadata.namespace!=other") == ["configmap/n3"]
    assert chosen("secret", "--field-selector", "type=Opaque") == ["secret/s"]
    active = chosen("ns", "--field-selector", "status.phase=Active")
    assert f"namespace/{kube.namespace}" in active
    assert chosen("cm", "-l", "tier=none") == []
    assert "field label not supported: spec.x" in kube.refused("get", "cm", "--field-selector", "spec.x=1")
    assert "BadRequest" in kube.refused("get", "cm", "-l", "===")


def test_lists_are_sorted_and_paged(kube):
    items = [config_map(f"n{number}", order=str(9 - number)) for number in (5, 3, 1, 4, 2)]
    kube.applied({"apiVersion": "v1", "kind": "List", "items": items})
    names = [f"n{number}" for number in range(1, 6)]
    by_order = kube.run("get", "cm", "--sort-by=.data.order", "--no-headers").rows
    assert [row[0] for row in by_order] == names[::-1]
    by_name = kube.run("get", "cm", "--sort-by=.metadata.name", "--no-headers").rows
    assert [row[0] for row in by_name] == names
    paged = kube.run("get", "cm", "--chunk-size=2", "--no-headers", "-v=6")
    assert [row[0] for row in paged.rows] == names
    assert paged.err.count("limit=2") == 3
    assert paged.err.count("continue=") == 2
    assert kube("get", "cm", "--chunk-size=2", "-o", "jsonpath={.items[*].metadata.name}").split() == names


def test_what_is_not_there_is_said(kube):
    kube("create", "ns", kube.namespace)
    assert 'configmaps "nope" not found' in kube.refused("get", "cm", "nope")
    assert 'meshtimeouts.kuma.io "nope" not found' in kube.refused("get", "mt", "nope")
    assert 'doesn\'t have a resource type "gadgets"' in kube.refused("get", "gadgets")
    assert "the server could not find the requested resource" in kube.refused("get", "--raw", "/apis/nope")
    assert kube.run("get", "cm").err == f"No resources found in {kube.namespace} namespace.\n"
    kube.applied(timeout())
    refused = kube.refused("scale", "mt/slow", "--replicas=2")
    assert 'meshtimeouts.kuma.io have no "scale", they have no subresources' in refused
    refused = kube.refused("create", "priorityclass", "urgent", "--value=1")
    assert "the server could not find the requested resource" in refused


def test_events_are_told_with_what_they_are_about(kube):
    kube.applied(config_map("seen"))
    found = kube.get("cm", "seen")["metadata"]
    about = {"apiVersion": "v1", "kind": "ConfigMap"} | {n: found[n] for n in ("name", "namespace", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "seen.1"},
        "involvedObject": about,
        "reason": "Looked",
        "message": "somebody looked",
        "type": "Normal",
        "count": 2,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "eye"},
    }
    assert kube.applied(event) == "event/seen.1 created"
    assert kube.run("get", "events").rows[1][1:] == [
        "Normal",
        "Looked",
        "configmap/seen",
        "somebody",
        "looked",
    ]
    assert "eye" in kube("describe", "cm", "seen").splitlines()[-1]
    newer = kube.get("events.events.k8s.io", "seen.1")
    assert (newer["regarding"], newer["note"]) == (about, "somebody looked")
    if kube.minor > 25:
        assert kube.run("events").rows[1][-2:] == ["somebody", "looked"]
