"""Stored roles decide together with the settings: at once, in their namespace, and for one alias alone."""

import pytest

from koguma.access.authorizer import Attempt, namespace_of
from koguma.access.user import ANONYMOUS, LOCAL_ADMIN, User
from koguma.kube import rbac
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Forbidden
from koguma.model.resource import Resource
from koguma.store.contract import Op
from tests.stored_rbac import (
    ANN,
    BOB,
    KINDS,
    KUBE,
    PLAIN_TIMEOUTS,
    TIMEOUTS,
    StoredAccess,
    role,
    role_binding,
)


def test_a_stored_binding_acts_at_once_and_its_end_too():
    stored_access = StoredAccess(role("reader", TIMEOUTS))
    given = role_binding("b", "reader", "ann")
    assert not stored_access.may(ANN, **KUBE)
    stored_access.put(given)
    assert stored_access.may(ANN, **KUBE)
    assert not stored_access.may(BOB, **KUBE)
    stored_access.put(role("reader", {**TIMEOUTS, "verbs": ["list"]}), op=Op.UPDATE)
    assert not stored_access.may(ANN, **KUBE)
    assert stored_access.may(ANN, "list", **KUBE)
    stored_access.put(given, op=Op.DELETE)
    assert not stored_access.may(ANN, "list", **KUBE)


def test_what_was_decided_is_kept_until_rules_change():
    stored_access = StoredAccess(role("reader", PLAIN_TIMEOUTS), role_binding("b", "reader", "ann"))
    assert stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red")
    held = stored_access.access._grants_by_subject
    other = Resource(kind="MeshTimeout", mesh="red", name="a", core_name="a")
    stored_access.put(other)
    assert stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red")
    assert stored_access.access._grants_by_subject is held, "nothing is built anew for what is no rule"
    stored_access.put(role("another"))
    assert stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red")
    assert stored_access.access._grants_by_subject is not held


def test_no_alias_opens_another():
    stored_access = StoredAccess(role("reader", TIMEOUTS), role_binding("b", "reader", "ann"))
    assert stored_access.may(ANN, group="kuma.io")
    assert not stored_access.may(ANN, group="koguma.io")
    assert not stored_access.may(ANN)
    assert not stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red")


def test_a_role_binding_opens_its_namespace_in_the_plain_form_too():
    stored_access = StoredAccess(
        role("reader", PLAIN_TIMEOUTS), role_binding("b", "reader", ":devs", "mesh-red")
    )
    assert stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red", "mesh-red")
    assert not stored_access.access.allows_on(ANN, "get", "meshtimeouts", "a", "red", "shop")
    assert not stored_access.access.allows_on(ANN, "list", "meshtimeouts", "", "red"), (
        "a whole mesh is no namespace"
    )
    stored_access.access.check_any(ANN, ("list",), "meshtimeouts")


def test_no_other_forms_rule_makes_the_plain_form_read_a_body():
    stored_access = StoredAccess(
        role("writer", {**TIMEOUTS, "verbs": ["*"]}), role_binding("b", "writer", "ann")
    )
    with pytest.raises(Forbidden, match="cannot create or update anything"):
        stored_access.access.check_any(ANN, ("create", "update"))


@pytest.mark.parametrize(
    ("kind", "mesh", "found", "namespace"),
    [
        ("MeshTimeout", "red", {"mesh": "red", "namespace": "shop"}, "shop"),
        ("MeshTimeout", "red", {"mesh": "red"}, "mesh-red"),
        ("MeshTimeout", "red", {"mesh": "red", "zone": "west"}, "kuma-system"),
        ("MeshTimeout", "red", None, "mesh-red"),
        ("GlobalSecret", "", None, "mesh-global"),
        ("Mesh", "", {}, ""),
        ("Mesh", "", None, ""),
    ],
)
def test_rules_see_plain_objects_where_the_kubernetes_form_shows_them(kind, mesh, found, namespace):
    resource = None if found is None else Resource(kind=kind, name="a", core_name="a", **found)
    assert namespace_of(KINDS[kind], ControlPlaneInfo(zone="east"), mesh, resource) == namespace


@pytest.mark.parametrize(
    ("user", "path", "allowed"),
    [
        (ANONYMOUS, "/version", True),
        (ANONYMOUS, "/healthz", True),
        (ANONYMOUS, "/livez", True),
        (ANONYMOUS, "/readyz", True),
        (ANONYMOUS, "/apis", False),
        (ANONYMOUS, "/openapi.json", False),
        (BOB, "/version", True),
        (BOB, "/api", True),
        (BOB, "/apis/kuma.io/v1alpha1", True),
        (BOB, "/openapi/v2", True),
        (BOB, "/_resources", True),
        (BOB, "/metrics", False),
        (User("proxy:x"), "/version", False),
    ],
)
def test_paths_that_are_open_without_any_stored_rule(user, path, allowed):
    assert StoredAccess().access.allows(user, Attempt("get", path=path)) is allowed


def test_groups_have_kubernetes_names_too():
    stored_access = StoredAccess(
        role("reader", TIMEOUTS),
        role_binding("known", "reader", ":system:authenticated", "shop"),
        role_binding("unknown", "reader", ":system:unauthenticated", "park"),
    )
    assert stored_access.may(BOB, **KUBE)
    assert not stored_access.may(ANONYMOUS, **KUBE)
    assert stored_access.may(ANONYMOUS, group="kuma.io", namespace="park")
    assert BOB.groups == ("mesh-system:authenticated",)
    assert BOB.all_groups == ("mesh-system:authenticated", "system:authenticated")


def test_the_admin_cannot_be_locked_out():
    stored_access = StoredAccess(
        role("cluster-admin"), role_binding("cluster-admin", "cluster-admin", ":mesh-system:admin")
    )
    assert stored_access.may(LOCAL_ADMIN, "delete", "clusterrolebindings", group=rbac.GROUP)
