"""Watching, waiting and deleting with the real kubectl."""

import json
import re

import pytest

from tests.build import dataplane
from tests.kubectl.documents import config_map, timeout
from tests.proxy_connections import connect, next_offer
from tests.test_arrival import settled, take
from tests.waiting import until

pytestmark = pytest.mark.slow

JSONPATH_WAITS = 22  # newer ones can wait for any field


def test_a_watch_tells_what_happens(kube_everywhere):
    kube = kube_everywhere
    kube.applied(config_map("first"))
    with kube.runs("get", "cm", "-w", "--output-watch-events") as watch:
        watch.wait_for_output("first")
        kube.applied(config_map("second"))
        kube("label", "cm", "second", "a=b")
        kube("delete", "cm", "second")
        watch.wait_for_output("DELETED")
        rows = [line.split() for line in watch.output.splitlines()]
    assert [row[:2] for row in rows] == [
        ["EVENT", "NAME"],
        ["ADDED", "first"],
        ["ADDED", "second"],
        ["MODIFIED", "second"],
        ["DELETED", "second"],
    ]


def test_a_watch_of_some_objects_sees_them_come_and_go(kube):
    kube.applied(config_map("in", {"a": "b"}))
    kube.applied(config_map("out"))
    with (
        kube.runs("get", "cm", "-l", "a=b", "-w", "-o", "name", "--output-watch-events") as chosen,
        kube.runs("get", "cm", "out", "-w", "-v=6", "-o", "jsonpath=<{.metadata.labels.a}{.data.n}>") as one,
    ):
        chosen.wait_for_output("configmap/in")
        one.wait_for_output("watch=true")  # begins with what is there, which is not printed twice
        kube("label", "cm", "out", "a=b")
        chosen.wait_for_output("configmap/out")
        kube("label", "cm", "out", "a-")
        until(lambda: chosen.output.count("configmap/out") == 2, "it is told as gone")
        assert "a" not in kube.get("cm", "out")["metadata"].get("labels", {})  # what it was is not what it is
        kube("patch", "cm", "out", "-p", '{"data":{"n":"1"}}')
        one.wait_for_output("<1>")
        assert re.findall("<([^>]*)>", one.output) == ["", "b", "", "1"]


def test_wait_ends_when_what_it_waits_for_is_so(kube):
    kube.applied(timeout())
    refused = kube.refused("wait", "mt/slow", "--for=condition=Ready", "--timeout=1s")
    assert "timed out waiting for the condition on meshtimeouts/slow" in refused
    if kube.minor > JSONPATH_WAITS:
        for_label = "--for=jsonpath={.metadata.labels.a}=b"
        with kube.runs("wait", "mt/slow", for_label, "--timeout=30s", "-v=6") as waits:
            waits.wait_for_output("watch=true")
            kube("label", "mt", "slow", "a=b")
            assert waits.ends() == 0
        kube("wait", "ns", kube.namespace, "--for=jsonpath={.status.phase}=Active", "--timeout=30s")
    with kube.runs("wait", "mt/slow", "--for=delete", "--timeout=30s", "-v=6") as waits:
        waits.wait_for_output("watch=true")
        kube("delete", "mt", "slow")
        assert waits.ends() == 0
        waits.wait_for_output("meshtimeout.kuma.io/slow condition met")


def test_wait_sees_the_conditions_that_the_control_plane_writes(kube):
    labels = {"kuma.io/mesh": "default"}
    name, chosen = f"{kube.namespace}-all", {"team": kube.namespace}
    everywhere = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshMultiZoneService",
        "metadata": {"name": name, "namespace": "kuma-system", "labels": labels},
        "spec": {"selector": {"meshService": {"matchLabels": chosen}}, "ports": [{"port": 80}]},
    }
    service = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshService",
        "metadata": {"name": "web", "labels": {**labels, **chosen}},
        "spec": {"selector": {"dataplaneTags": {"app": "web"}}, "ports": [{"port": 80, "targetPort": 80}]},
    }
    kube.applied(everywhere)
    met = ("wait", f"mzsvc/{name}", "-n", "kuma-system", "--timeout=30s")
    kube(*met, "--for=condition=MeshServicesMatched=false")
    with kube.runs(*met, "--for=condition=MeshServicesMatched", "-v=6") as waits:
        waits.wait_for_output("watch=true")
        kube.applied(service)
        assert waits.ends() == 0
    kube("delete", "mzsvc", name, "-n", "kuma-system")


def test_deleting_one_some_or_all(kube):
    items = [config_map(f"n{number}", {"half": "yes" if number > 2 else "no"}) for number in range(1, 6)]
    kube.applied({"apiVersion": "v1", "kind": "List", "items": items})

    def left():
        return kube("get", "cm", "-o", "jsonpath={.items[*].metadata.name}").split()

    for how in ("client", "server"):
        assert "dry run" in kube("delete", "cm", "n1", f"--dry-run={how}")
    assert len(left()) == 5
    said = kube("delete", "cm", "n1", "n2").splitlines()
    assert [line[:22] for line in said] == ['configmap "n1" deleted', 'configmap "n2" deleted']
    assert (
        kube("delete", "cm", "-l", "half=yes", "--field-selector", "metadata.name!=n5").count("deleted") == 2
    )
    assert left() == ["n5"]
    assert 'configmaps "n1" not found' in kube.refused("delete", "cm", "n1")
    assert kube("delete", "cm", "n1", "--ignore-not-found") == ""
    assert kube("delete", "cm", "--all").startswith('configmap "n5" deleted')
    assert left() == []


def test_what_has_a_finalizer_stays_until_it_is_taken_off(kube):
    held = timeout()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    kube.applied(held)
    assert "dry run" in kube("delete", "mt", "slow", "--dry-run=server")
    kube("label", "mt", "slow", "a=b")
    tried = kube.get("mt", "slow")["metadata"]
    assert ("deletionTimestamp" in tried, tried["labels"]["a"]) == (False, "b")
    kube("delete", "mt", "slow", "--wait=false")
    found = kube.get("mt", "slow")["metadata"]
    assert found["deletionTimestamp"]
    assert found["finalizers"] == ["example.com/hold"]
    more = json.dumps({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})
    refused = kube.refused("patch", "mt", "slow", "--type=merge", "-p", more)
    assert "no new finalizers can be added if the object is being deleted" in refused
    with kube.runs("delete", "mt", "slow") as waits:
        waits.wait_for_output("deleted")
        kube("patch", "mt", "slow", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        assert waits.ends() == 0
    assert 'meshtimeouts.kuma.io "slow" not found' in kube.refused("get", "mt", "slow")


def test_a_namespace_goes_after_everything_that_is_in_it(kube_everywhere):
    kube = kube_everywhere
    here = kube.namespace
    kube("create", "ns", here)
    kube("create", "cm", "free")
    kube("create", "secret", "generic", "held")
    kube.applied(timeout())
    kube("patch", "secret", "held", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/hold"]}}')
    kube("delete", "ns", here, "--wait=false")
    until(lambda: kube("get", "cm,mt,secret", "-o", "name") == "secret/held", "the rest is gone")
    assert kube.run("get", "ns", here).rows[1][:2] == [here, "Terminating"]
    kube("wait", f"ns/{here}", "--for=condition=NamespaceFinalizersRemaining", "--timeout=20s")
    assert "secrets. has 1 resource instances" in str(kube.get("ns", here)["status"]["conditions"])
    refused = kube.refused("create", "cm", "late")
    assert f"unable to create new content in namespace {here} because it is being terminated" in refused
    with kube.runs("delete", "ns", here) as waits:
        waits.wait_for_output("deleted")
        kube("patch", "secret", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        assert waits.ends() == 0
    assert f'namespaces "{here}" not found' in kube.refused("get", "ns", here)
    assert f'namespaces "{here}" not found' in kube.refused("create", "cm", "late")
    assert kube.run("get", "ns", here).code == 1  # a client that did not notice has not made it anew
    kube("create", "ns", here)
    kube("create", "cm", "again")


def test_namespaces_that_others_rely_on_stay(kube):
    assert "this namespace may not be deleted" in kube.refused("delete", "ns", "default")
    assert 'it goes with the mesh "default"; delete that' in kube.refused("delete", "ns", "mesh-default")


def test_what_is_owned_goes_with_its_owner(kube):
    kube.applied(config_map("owner"))
    uid = kube("get", "cm", "owner", "-o", "jsonpath={.metadata.uid}")
    for name in ("kept", "owned"):
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
        owned = config_map(name)
        owned["metadata"]["ownerReferences"] = [reference] if name == "owned" else []
        kube.applied(owned)
    kube("delete", "cm", "owner")
    until(lambda: kube("get", "cm", "-o", "name") == "configmap/kept", "the owned one is gone too")


def test_wait_ends_when_every_proxy_has_a_policy(kube):
    plane = kube.plane
    web = connect(plane, dataplane(), name="web-1")
    plane.run(next_offer(web))
    settled(plane, web)
    words = ("wait", "mt/held", "-n", "kuma-system", "--for=condition=Programmed")
    for seconds in ("3s", "4s"):
        rules = [{"default": {"http": {"requestHeadersTimeout": seconds}}}]
        policy = {**timeout("held"), "spec": {"rules": rules}}
        policy["metadata"]["namespace"] = "kuma-system"  # that of policies for the whole mesh
        before = web.offered_revision
        kube.applied(policy)
        until(lambda before=before: web.offered_revision > before)
        if seconds == "4s":  # the condition of the version before says nothing of this one
            assert "timed out waiting for the condition" in kube.refused(*words, "--timeout=1s")
        with kube.runs(*words, "--timeout=30s", "-v=6") as waits:
            waits.wait_for_output("watch=true")
            take(plane, web)
            assert waits.ends() == 0
        assert "condition met" in kube(*words, "--timeout=1s")
    assert kube.run("diff", "-f", "-", stdin=json.dumps(policy)).code == 0
    kube("delete", "mt", "held", "-n", "kuma-system")
    plane.run(web.close())
    plane("DELETE", "/meshes/default/dataplanes/web-1")
