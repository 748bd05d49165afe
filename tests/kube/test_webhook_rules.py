"""Webhook rules: what is matched, and configurations that nobody checked."""

import pytest

from koguma.kube import catalog, webhook_rules
from koguma.kube.kinds import webhooks
from koguma.main import all_kinds
from koguma.model.resource import Resource

REGISTRY = catalog.of(all_kinds()).registry
KUMA = REGISTRY.find("kuma.io", "v1alpha1", "meshtimeouts")
KOGUMA = REGISTRY.find("koguma.io", "v1", "meshtimeouts")


def configuration(*hooks, kind=webhooks.VALIDATING):
    return Resource(kind=kind.stored_as, name="c", core_name="c", spec={"webhooks": list(hooks)})


def seen_as(rule, requested, subresource="", operation="CREATE", **more):
    (hook,) = webhook_rules.webhooks_of(configuration({"name": "a.b.c", "rules": [rule], **more}))
    endpoint = hook.endpoint(operation, requested, subresource, REGISTRY, namespaced=True)
    return endpoint.api_version if endpoint else None


def rule(groups, versions, *resources, operations=("*",), scope="*"):
    return {
        "apiGroups": groups,
        "apiVersions": versions,
        "resources": list(resources),
        "operations": list(operations),
        "scope": scope,
    }


@pytest.mark.parametrize(
    ("resource", "subresource", "is_matched"),
    [
        ("*", "", True),
        ("*", "status", False),
        ("*/*", "", True),
        ("*/*", "status", True),
        ("meshtimeouts", "", True),
        ("meshtimeouts", "status", False),
        ("meshtimeouts/*", "", True),  # as in Kubernetes
        ("meshtimeouts/*", "status", True),
        ("meshtimeouts/status", "status", True),
        ("*/status", "status", True),
        ("*/scale", "status", False),
        ("meshretries", "", False),
    ],
)
def test_resources_and_subresources(resource, subresource, is_matched):
    matched = seen_as(rule(["kuma.io"], ["v1alpha1"], resource), KUMA, subresource)
    assert (matched is not None) == is_matched


def test_an_exact_match_wins_and_equivalent_ones_come_in_the_order_of_the_rules():
    kuma, koguma = (["kuma.io"], ["v1alpha1"], "meshtimeouts"), (["koguma.io"], ["v1"], "meshtimeouts")
    assert seen_as(rule(*kuma), KUMA) == "kuma.io/v1alpha1"
    assert seen_as(rule(*kuma), KOGUMA) == "kuma.io/v1alpha1"
    assert seen_as(rule(*koguma), KUMA) == "koguma.io/v1"
    assert seen_as(rule(*kuma), KOGUMA, matchPolicy="Exact") is None
    assert seen_as(rule(["*"], ["*"], "*"), KOGUMA) == "koguma.io/v1"
    assert seen_as(rule(*kuma, operations=["DELETE"]), KUMA) is None
    assert seen_as(rule(*kuma, scope="Cluster"), KUMA) is None


@pytest.mark.parametrize("kind", [webhooks.VALIDATING, webhooks.MUTATING], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "spec",
    [
        None,
        5,
        [],
        {"webhooks": 5},
        {"webhooks": [5]},
        {"webhooks": [{"rules": 5}]},
        {"webhooks": [{"name": 5}]},
    ],
)
def test_a_broken_configuration_breaks_nothing(kind, spec):
    stored = Resource(kind=kind.stored_as, name="c", core_name="c", spec=spec)
    assert list(webhook_rules.webhooks_of(stored)) == []


def test_an_empty_webhook_is_asked_about_nothing():
    for kind in (webhooks.VALIDATING, webhooks.MUTATING):
        (hook,) = webhook_rules.webhooks_of(configuration({"clientConfig": {"service": {}}}, kind=kind))
        assert hook.endpoint("CREATE", KUMA, "", REGISTRY, namespaced=True) is None
