"""Writing with the real kubectl: create, apply, diff, edit, patch, label, replace, and what is refused."""

import json

import pytest

from tests.kubectl.documents import config_map, route, timeout

pytestmark = pytest.mark.slow

SLOW = "meshtimeout.kuma.io/slow"
IDLE = "jsonpath={.spec.to[0].default.idleTimeout}"
VALIDATES_ON_THE_SERVER = 27  # the first whose default is that the server judges


FIRST_SHAPE = {
    "match": [{"type": "InternalVIP", "value": "mongo.ext.svc.local", "port": 27017, "protocol": "tcp"}],
    "destination": {
        "type": "Regular",
        "endpoints": [{"address": "10.0.0.1"}, {"address": "unix:///run/mongo.sock"}],
        "tls": {"enabled": True, "verification": {"skip": True, "subjectAltNames": ["mongo"]}},
    },
}
RELEASED_SHAPE = {
    "match": {"type": "HostnameGenerator", "port": 27017, "protocol": "tcp"},
    "endpoints": [{"address": "10.0.0.1", "port": 27017}],
    "tls": {"enabled": True, "verification": {"mode": "SkipSAN", "subjectAltNames": [{"value": "mongo"}]}},
}


def idle(kube):
    return kube("get", "mt", "slow", "-o", IDLE)


def test_client_side_apply_creates_changes_and_leaves_alone(kube_everywhere):
    kube = kube_everywhere
    assert kube.applied(timeout(), "--dry-run=client") == f"{SLOW} created (dry run)"
    assert kube.applied(timeout(), "--dry-run=server") == f"{SLOW} created (server dry run)"
    assert kube("get", "mt") == ""
    assert kube.applied(timeout()) == f"{SLOW} created"
    assert kube.applied(timeout()) == f"{SLOW} unchanged"
    before = kube.get("mt", "slow")
    changed = json.dumps(timeout(idle="7s"))
    shown = kube.run("diff", "-f", "-", stdin=changed)
    assert shown.code == 1, shown.err
    assert "-      idleTimeout: 5s\n+      idleTimeout: 7s\n" in shown.out
    assert kube.get("mt", "slow") == before
    assert kube.applied(timeout(idle="7s")) == f"{SLOW} configured"
    assert kube.run("diff", "-f", "-", stdin=changed).code == 0
    after = kube.get("mt", "slow")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    assert after["spec"] == timeout(idle="7s")["spec"]
    assert kube("delete", "-f", "-", stdin=changed).startswith('meshtimeout.kuma.io "slow" deleted')


@pytest.mark.parametrize("spec", [FIRST_SHAPE, RELEASED_SHAPE], ids=["first", "released"])
@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client", "server"])
def test_both_shapes_of_an_external_service_go_round(kube, spec, how):
    document = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshExternalService",
        "metadata": {"name": "mongo", "namespace": "kuma-system", "labels": {"kuma.io/mesh": "default"}},
        "spec": spec,
    }
    kube.applied(document, *how)
    found = json.loads(kube("get", "extsvc", "mongo", "-n", "kuma-system", "-o", "json"))
    assert found["spec"] == spec
    kube.applied(document, *how)
    assert kube.run("diff", "-f", "-", *how, stdin=json.dumps(document)).code == 0
    again = json.loads(kube("get", "extsvc", "mongo", "-n", "kuma-system", "-o", "json"))
    assert again["metadata"]["generation"] == 1
    kube("delete", "extsvc", "mongo", "-n", "kuma-system")


def test_a_server_side_dry_run_warns_as_apply_does(kube):
    document = timeout()
    document["spec"]["to"][0]["targetRef"] = {"kind": "MeshService", "name": "nobody"}
    stdin = json.dumps(document)

    def warned(*words: str) -> list[str]:
        done = kube.run(*words, "-f", "-", stdin=stdin)
        assert done.code == 0, done.err
        return [line for line in done.err.splitlines() if line.startswith("Warning: ")]

    tried = warned("apply", "--dry-run=server")
    assert [line for line in tried if line.endswith("(KG002)")]
    assert warned("apply") == tried
    mesh = {"apiVersion": "kuma.io/v1alpha1", "kind": "Mesh", "metadata": {"name": "secure"}}
    backends = [{"name": "ca-1", "type": "builtin"}]
    stdin = json.dumps({**mesh, "spec": {"mtls": {"enabledBackend": "ca-1", "backends": backends}}})
    tried = warned("apply", "--dry-run=server")
    assert [line for line in tried if line.endswith("(KG016)")]
    assert warned("apply") == tried
    kube("delete", "mesh", "secure")


def test_what_apply_no_longer_says_goes_away_and_what_others_wrote_stays(kube):
    kube.applied(config_map("c", {"team": "a"}, one="1", two="2"))
    kube("annotate", "cm", "c", "note=mine")
    kube.applied(config_map("c", one="1", three="3"))
    stored = kube.get("cm", "c")
    assert stored["data"] == {"one": "1", "three": "3"}
    assert "labels" not in stored["metadata"]
    assert stored["metadata"]["annotations"]["note"] == "mine"


def test_two_managers_of_a_field_have_to_agree_or_one_forces(kube):
    apply = ("--server-side", "--field-manager")
    assert kube.applied(timeout(), *apply, "ann") == f"{SLOW} serverside-applied"
    assert kube.applied(timeout(), *apply, "bob") == f"{SLOW} serverside-applied"  # they agree
    words = ("apply", "-f", "-", *apply, "bob")
    refused = kube.refused(*words, stdin=json.dumps(timeout(idle="9s")))
    assert 'conflict with "ann"' in refused
    assert ".spec.to" in refused
    assert idle(kube) == "5s"
    kube(*words, "--force-conflicts", stdin=json.dumps(timeout(idle="9s")))
    assert idle(kube) == "9s"
    fields = json.loads(kube("get", "mt", "slow", "-o", "json", *managed(kube)))["metadata"]["managedFields"]
    owners = [each["manager"] for each in fields if "f:to" in each["fieldsV1"].get("f:spec", {})]
    assert owners == ["bob"]


def managed(kube):
    return ("--show-managed-fields",) if kube.minor > 20 else ()


def test_an_object_moves_from_client_side_to_server_side_apply(kube):
    kube.applied(config_map("c", one="1", two="2"))
    output = kube.applied(config_map("c", one="1", two="2"), "--server-side")
    assert output == "configmap/c serverside-applied"
    if kube.minor > 25:  # older ones leave their first entry behind, which then holds the field
        kube.applied(config_map("c", one="1"), "--server-side")
        assert kube.get("cm", "c")["data"] == {"one": "1"}
    changed = kube.applied(config_map("c", one="4"), "--server-side", "--force-conflicts")
    assert changed == "configmap/c serverside-applied"
    assert kube.get("cm", "c")["data"]["one"] == "4"


def test_edit_writes_what_the_editor_left(kube):
    kube.applied(timeout())
    assert kube("edit", "mt", "slow", editor="sed -i s/5s/8s/") == f"{SLOW} edited"
    assert idle(kube) == "8s"
    assert kube.run("edit", "mt", "slow", editor="true").err == "Edit cancelled, no changes made.\n"
    refused = kube.run("edit", "mt", "slow", editor="sed -i s/8s/later/")
    assert refused.code == 1
    assert 'meshtimeouts.kuma.io "slow" is invalid' in refused.err
    assert idle(kube) == "8s"
    kube.applied(config_map("c", a="b"))
    edit = """sed -i 's/"a": "b"/"a": "z"/'"""
    assert json.loads(kube("edit", "cm", "c", "-o", "json", editor=edit))["data"] == {"a": "z"}
    assert kube.get("cm", "c")["data"] == {"a": "z"}


def test_patches_of_every_type(kube):
    kube.applied(timeout())

    def patch(what, kind, change, *more):
        return kube("patch", *what, f"--type={kind}", "-p", json.dumps(change), *more)

    at = "/spec/to/0/default/idleTimeout"
    slow, account = ("mt", "slow"), ("sa", "bot")
    patch(slow, "merge", {"metadata": {"labels": {"tier": "front"}}})
    patch(
        slow,
        "json",
        [{"op": "test", "path": at, "value": "5s"}, {"op": "replace", "path": at, "value": "6s"}],
    )
    tried = [{"op": "replace", "path": at, "value": "7s"}]
    assert patch(slow, "json", tried, "--dry-run=server", "-o", IDLE) == "7s"
    stored = kube.get("mt", "slow")
    assert stored["spec"]["to"][0]["default"] == {"idleTimeout": "6s"}
    assert stored["metadata"]["labels"]["tier"] == "front"
    wrong = json.dumps([{"op": "test", "path": at, "value": "5s"}])
    assert "is not what the test expects" in kube.refused("patch", *slow, "--type=json", "-p", wrong)
    strategic = kube.refused("patch", *slow, "-p", "{}")
    assert "accepted media types include: application/json-patch+json" in strategic

    kube("create", "sa", "bot")
    for name in ("a", "b"):
        patch(account, "strategic", {"secrets": [{"name": name}]})
    assert sorted(each["name"] for each in kube.get("sa", "bot")["secrets"]) == ["a", "b"]
    patch(account, "strategic", {"secrets": [{"$patch": "delete", "name": "a"}]})
    assert kube.get("sa", "bot")["secrets"] == [{"name": "b"}]
    patch(account, "merge", {"secrets": None})
    assert "secrets" not in kube.get("sa", "bot")


def test_labels_and_annotations(kube):
    kube.applied(route("one"))
    kube.applied(route("two"))
    assert kube("label", "mhttpr", "one", "tier=front").endswith("meshhttproute.kuma.io/one labeled")
    refused = kube.refused("label", "mhttpr", "one", "tier=back")
    assert "'tier' already has a value (front), and --overwrite is false" in refused
    kube("label", "mhttpr", "one", "tier=back", "--overwrite")
    kube("label", "mhttpr", "--all", "seen=yes")
    kube("annotate", "mhttpr", "-l", "tier=back", "note=hi")
    stored = {each["metadata"]["name"]: each["metadata"] for each in kube.get("mhttpr")["items"]}
    assert (stored["one"]["labels"]["tier"], stored["one"]["labels"]["seen"]) == ("back", "yes")
    assert stored["one"]["annotations"]["note"] == "hi"
    assert "note" not in stored["two"]["annotations"]
    kube("label", "mhttpr", "one", "tier-")
    kube("annotate", "mhttpr", "one", "note-")
    again = kube.get("mhttpr", "one")["metadata"]
    assert "tier" not in again["labels"]
    assert "note" not in again["annotations"]


def test_create_and_replace_are_for_what_is_not_there_and_for_what_is(kube):
    assert kube("create", "-f", "-", stdin=json.dumps(timeout())) == f"{SLOW} created"
    exists = kube.refused("create", "-f", "-", stdin=json.dumps(timeout()))
    assert 'meshtimeouts.kuma.io "slow" already exists' in exists
    old = kube.get("mt", "slow")
    assert kube("replace", "-f", "-", stdin=json.dumps(timeout(idle="6s"))) == f"{SLOW} replaced"
    assert idle(kube) == "6s"
    stale = kube.refused("replace", "-f", "-", stdin=json.dumps(old))
    assert "the object has been modified; please apply your changes to the latest version" in stale
    kube("replace", "--force", "-f", "-", stdin=json.dumps(timeout(idle="7s")))
    new = kube.get("mt", "slow")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert 'meshtimeouts.kuma.io "none" not found' in kube.refused(
        "replace", "-f", "-", stdin=json.dumps(timeout("none"))
    )
    named = kube("create", "-f", "-", "-o", "name", stdin=json.dumps(generated()))
    assert named.startswith("configmap/job-")
    assert len(named) == len("configmap/job-") + 5


def generated():
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "job-"}}


def test_a_field_that_nobody_knows_is_an_error_or_a_warning_as_the_writer_asks(kube):
    odd = timeout()
    odd["spec"]["to"][0]["default"]["idelTimeout"] = "4s"
    stdin = json.dumps(odd)
    refused = kube.refused("apply", "-f", "-", stdin=stdin)
    message = 'unknown field "spec.to[0].default.idelTimeout"'
    if kube.minor >= VALIDATES_ON_THE_SERVER:
        assert message in refused
        assert message in kube.refused("apply", "-f", "-", "--validate=strict", stdin=stdin)
        assert kube.refused("apply", "-f", "-", "--validate=strict", "--server-side", stdin=stdin)
        warned = kube.run("apply", "-f", "-", "--validate=warn", stdin=stdin)
        ignored = kube.run("replace", "-f", "-", "--validate=ignore", stdin=stdin)
        assert (ignored.code, ignored.err) == (0, "")
    else:  # judges by itself; told not to, it asks for nothing and gets the server's default
        assert 'unknown field "idelTimeout"' in refused
        warned = kube.run("apply", "-f", "-", "--validate=false", stdin=stdin)
    assert warned.code == 0
    assert f"Warning: {message}" in warned.err
    assert idle(kube) == "5s"


def test_everything_that_is_wrong_is_said_at_once_with_its_place(kube):
    wrong = timeout("bad", idle="soon")
    wrong["spec"]["targetRef"] = {"kind": "Nope"}
    for words in (("apply", "-f", "-"), ("create", "-f", "-", "--dry-run=server", "--validate=false")):
        refused = kube.refused(*words, stdin=json.dumps(wrong))
        assert 'The MeshTimeout "bad" is invalid' in refused
        assert "* spec.targetRef.kind: in body should be one of [Mesh " in refused
        assert '* spec.to[0].default.idleTimeout: must be a duration such as "5s"' in refused
    assert kube("get", "mt") == ""
    name = kube.refused("create", "cm", "No_Name")
    assert 'ConfigMap "No_Name" is invalid: metadata.name: Invalid value' in name


def test_a_field_that_was_not_stored_stands_in_nobodys_way(kube):
    odd = {**config_map("settings", colour="red"), "status": {"kopf": {"progress": {}}}}
    made = kube.run("create", "-f", "-", "--validate=false", stdin=json.dumps(odd))
    assert made.code == 0, made.err
    patch = json.dumps({"status": {"kopf": {"progress": {}}}})
    assert kube("patch", "cm", "settings", "--type=merge", "-p", patch).endswith("patched (no change)")
    assert "status" not in kube.get("cm", "settings")
    assert kube("replace", "-f", "-", stdin=json.dumps(kube.get("cm", "settings"))).endswith("replaced")
    assert kube.applied(config_map("settings", colour="blue")) == "configmap/settings configured"
    assert kube("edit", "cm", "settings", editor="sed -i s/blue/green/").endswith("edited")
    assert kube.get("cm", "settings")["data"] == {"colour": "green"}


def test_two_managers_own_two_ports(kube):
    def ports(*numbers):
        listed = [{"port": number, "targetPort": number} for number in numbers]
        metadata = {"name": "web", "labels": {"kuma.io/mesh": "default"}}
        spec = {"selector": {"dataplaneTags": {"app": "web"}}, "ports": listed}
        return {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshService", "metadata": metadata, "spec": spec}

    kube.applied(ports(80), "--server-side", "--field-manager=team")
    kube.applied(ports(9000), "--server-side", "--field-manager=operator")
    shown = "jsonpath={.spec.ports[*].port}"
    assert kube("get", "msvc", "web", "-o", shown) == "80 9000"
    kube.applied(ports(9001), "--server-side", "--field-manager=operator")
    assert kube("get", "msvc", "web", "-o", shown) == "80 9001"
