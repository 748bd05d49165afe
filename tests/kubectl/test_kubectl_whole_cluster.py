"""Commands of kubectl that ask for kinds which only a whole cluster has, with the real kubectl."""

import json

import pytest

from tests.kubectl.documents import config_map
from tests.waiting import until

pytestmark = pytest.mark.slow

ALLOWLISTS = 26  # newer ones say allowlist


def mesh_service(name="backend", labels=None):
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshService",
        "metadata": {"name": name, "labels": {"kuma.io/mesh": "default", **(labels or {})}},
        "spec": {
            "selector": {"dataplaneTags": {"kuma.io/service": name}},
            "ports": [{"name": "http", "port": 80, "appProtocol": "http"}],
        },
    }


def test_what_the_cluster_is_can_be_asked(kube):
    assert "is running at" in kube("cluster-info")
    kube.applied(mesh_service())
    dump = kube("cluster-info", "dump", "--namespaces", kube.namespace)
    assert '"kind": "ServiceList"' in dump
    assert '"name": "backend"' in dump


def test_all_that_runs_are_the_services(kube):
    assert kube("get", "all") == ""
    kube.applied(mesh_service())
    until(lambda: kube.get("svc", "backend")["spec"]["clusterIP"] != "None")
    rows = kube.run("get", "all").rows
    assert rows[0][:5] == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)"]
    assert (rows[1][:2], rows[1][4]) == (["service/backend", "ClusterIP"], "80/TCP")
    assert len(rows) == 2
    assert "80/TCP" in kube("describe", "svc", "backend")
    assert "clusterIP\t<string>" in kube("explain", "svc.spec")
    assert "it is a MeshService: write meshservices.kuma.io" in kube.refused("delete", "svc", "backend")
    assert kube("get", "pods", "--field-selector=status.phase=Running") == ""
    refused = kube.refused("create", "deployment", "web", "--image=web")
    assert "Koguma runs no programs" in refused


def test_apply_prunes_what_is_no_longer_there(kube):
    labels = {"app": "shop"}
    service = mesh_service(labels=labels)

    def applied(*documents, more=()):
        whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        words = ("apply", "--prune", "-l", "app=shop", *more, "-f", "-")
        return kube(*words, stdin=json.dumps(whole))

    applied(config_map("old", labels), config_map("stays", labels), service)
    printed = applied(config_map("stays", labels), config_map("new", labels))
    assert "configmap/old pruned" in printed
    assert printed.count("pruned") == 1  # the MeshService is no kind of the default list, nor is its Service
    assert kube("get", "cm,msvc", "-l", "app=shop", "-o", "name").split() == [
        "configmap/new",
        "configmap/stays",
        "meshservice.kuma.io/backend",
    ]
    option = "--prune-allowlist" if kube.minor >= ALLOWLISTS else "--prune-whitelist"
    kinds = ("core/v1/ConfigMap", "kuma.io/v1alpha1/MeshService")
    printed = applied(config_map("new", labels), more=[f"{option}={kind}" for kind in kinds])
    assert "configmap/stays pruned" in printed
    assert "meshservice.kuma.io/backend pruned" in printed


def test_a_mistyped_kind_is_the_only_thing_that_is_wrong(kube):
    assert 'the server doesn\'t have a resource type "meshtimeotus"' in kube.refused("get", "meshtimeotus")
    wrong = {**config_map("a"), "kind": "ConfigMaps"}
    refused = kube.refused("apply", "-f", "-", stdin=json.dumps(wrong))
    assert 'no matches for kind "ConfigMaps" in version "v1"' in refused
    refused = kube.refused("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong))
    assert 'no matches for kind "ConfigMaps" in version "v1"' in refused
