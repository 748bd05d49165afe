"""Aggregated ClusterRoles: everybody can read what they are made of, and it follows at once."""

import pytest

from tests.kube_client import RBAC, accepted, bind_role, failure
from tests.waiting import eventually, until

LABEL = "rbac.example.com/aggregate-to-monitoring"
PODS = {"verbs": ["get"], "apiGroups": ["monitoring.example.com"], "resources": ["probes"]}
RULES = {"verbs": ["list"], "apiGroups": ["monitoring.example.com"], "resources": ["alerts"]}


@pytest.fixture
def roles(config_maps):
    return config_maps.other(RBAC, "ClusterRole", namespace="")


def gathering(*selectors):
    return {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": each} for each in selectors]}}


def test_the_roles_of_a_new_store_show_their_rules(roles):
    for name in ("view", "edit", "admin"):
        until(lambda: roles.get(name).get("rules"), name)  # noqa: B023
        source = roles.get(f"system:aggregate-to-{name}")
        assert all(rule in roles.get(name)["rules"] for rule in source["rules"])
    view, edit, admin = (roles.get(name)["rules"] for name in ("view", "edit", "admin"))
    assert all(rule in edit for rule in view)
    assert all(rule in admin for rule in edit)


def test_rules_follow_the_roles_that_are_selected(roles, config_maps):
    name, label = f"monitoring-{config_maps.namespace}", {LABEL: config_maps.namespace}
    accepted(roles.create(name, rules=[], **gathering(label)))
    accepted(roles.create(f"{name}-a", metadata={"labels": label}, rules=[PODS]))
    eventually(lambda: roles.get(name).get("rules"), [PODS])
    accepted(roles.create(f"{name}-b", metadata={"labels": label}, rules=[PODS, RULES]))
    eventually(lambda: roles.get(name).get("rules"), [PODS, RULES])
    accepted(roles.patch(f"{name}-b", {"metadata": {"labels": {LABEL: None}}}))
    eventually(lambda: roles.get(name).get("rules"), [PODS])
    accepted(roles.patch(name, {"rules": [RULES]}))
    eventually(lambda: roles.get(name).get("rules"), [PODS])
    accepted(roles.delete(f"{name}-a"))
    eventually(lambda: roles.get(name).get("rules"), [])


def test_roles_are_gathered_through_others_and_through_themselves(roles, config_maps):
    name, space = f"chain-{config_maps.namespace}", config_maps.namespace
    inner, outer = {LABEL: f"{space}-inner"}, {LABEL: f"{space}-outer"}
    accepted(roles.create(f"{name}-leaf", metadata={"labels": inner}, rules=[PODS]))
    accepted(roles.create(f"{name}-inner", metadata={"labels": outer}, **gathering(inner, outer)))
    accepted(roles.create(f"{name}-outer", **gathering(outer)))
    eventually(lambda: roles.get(f"{name}-outer").get("rules"), [PODS])


def test_nobody_puts_a_label_on_a_role_that_has_more_rights_than_he(plane, roles, config_maps):
    space = config_maps.namespace
    label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    accepted(roles.create(f"strong-{space}", rules=[PODS]))
    writes = {
        "verbs": ["update", "patch"],
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterroles"],
    }
    accepted(roles.create(f"writer-{space}", rules=[writes]))
    bind_role(plane, f"mallory-{space}", f"writer-{space}")
    asked = {"name": f"mallory-{space}", "groups": [], "validFor": "1h"}
    user = {"Authorization": f"Bearer {plane('POST', '/tokens/user', asked).text}"}
    refused = roles.patch(f"strong-{space}", {"metadata": {"labels": label}}, **user)
    assert failure(refused) == (403, "Forbidden")
    assert "attempting to grant RBAC permissions not currently held" in refused.json["message"]
    gathers = roles.patch(f"strong-{space}", gathering(label), **user)
    assert failure(gathers) == (403, "Forbidden")
