"""Admission webhooks with kubectl: one rule, whichever endpoint or form a write goes through."""

import json

import pytest

from tests.kubectl.documents import timeout
from tests.webhook_server import VERSION, WebhookServer, added, denied, patched, rule

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path_factory):
    with WebhookServer(tmp_path_factory.mktemp("w")) as server:
        yield server


@pytest.fixture
def configured(kube, server):
    """Writes webhook configurations for the namespace of a test, and removes them in the end."""
    kube("create", "namespace", kube.namespace)
    names = []

    def configure(kind, path, *rules):
        name = f"{path}-{kube.namespace}"
        selector = {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}
        document = {
            "apiVersion": VERSION,
            "kind": kind,
            "metadata": {"name": name},
            "webhooks": [server.webhook(path, *rules, namespaceSelector=selector)],
        }
        kube.applied(document)
        names.append((kind.lower(), name))

    yield configure
    for kind, name in names:
        kube("delete", kind, name)


def test_a_rule_for_kumas_endpoint_holds_for_all(kube, server, configured):
    configured("ValidatingWebhookConfiguration", "check", rule("kuma.io/v1alpha1", "meshtimeouts"))
    server.answers["check"] = lambda request: (
        denied("no deletions")
        if request["operation"] == "DELETE"
        else denied("too long", code=422)
        if request["object"]["spec"]["to"][0]["default"]["idleTimeout"] == "1h"
        else {"warnings": ["checked"]}
    )
    for name, version in (("a", "kuma.io/v1alpha1"), ("b", "koguma.io/v1")):
        done = kube.run("create", "-f", "-", stdin=json.dumps(timeout(name, version=version)))
        assert (done.code, "Warning: checked" in done.err) == (0, True)
        refused = kube.refused(
            "create", "-f", "-", stdin=json.dumps(timeout("c", idle="1h", version=version))
        )
        assert 'admission webhook "check.hooks.example" denied the request: too long' in refused
        refused = kube.refused(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            "-",
            stdin=json.dumps(timeout(name, "1h", version)),
        )
        assert "denied the request: too long" in refused
        group = version.partition("/")[0]
        assert "denied the request: no deletions" in kube.refused("delete", f"meshtimeouts.{group}", name)
    assert {review["object"]["apiVersion"] for review in server.reviews() if review["object"]} == {
        "kuma.io/v1alpha1"
    }
    plain = {
        "type": "MeshTimeout",
        "mesh": "default",
        "name": f"d.{kube.namespace}",
        "labels": {"k8s.kuma.io/namespace": kube.namespace},
        "spec": timeout(idle="1h")["spec"],
    }
    path = f"/meshes/default/meshtimeouts/d.{kube.namespace}"
    answer = kube.plane("PUT", path, plain, Authorization=f"Bearer {kube.admin_token}")
    assert (answer.status, "denied the request: too long" in answer.json["detail"]) == (422, True)
    assert server.reviews()[-1]["object"]["apiVersion"] == "kuma.io/v1alpha1"
    server.answers.clear()


def test_what_a_webhook_changes_is_stored_and_applying_again_changes_nothing(kube, server, configured):
    configured("MutatingWebhookConfiguration", "label", rule("koguma.io/v1", "meshtimeouts"))
    server.answers["label"] = lambda _request: patched(added("/metadata/labels/checked", "yes"))
    kube.applied(timeout("a"))
    assert kube.get("meshtimeout", "a")["metadata"]["labels"]["checked"] == "yes"
    assert kube.applied(timeout("a")).endswith("unchanged")
    dry = kube("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(timeout("b")))
    assert json.loads(dry)["metadata"]["labels"]["checked"] == "yes"
    assert server.reviews()[-1]["dryRun"] is True
