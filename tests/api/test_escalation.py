"""Nobody gives away rights that he does not have, and nobody acts as somebody else without one."""

import pytest
from multidict import CIMultiDict

from koguma.access.user import LOCAL_ADMIN
from koguma.api.authn import impersonated
from koguma.api.kube import escalation
from koguma.kube import rbac
from koguma.model.errors import BadRequest, Forbidden, NotFound
from tests.stored_rbac import ANN, TIMEOUTS, StoredAccess, role, role_binding

HELD = role("held", TIMEOUTS, {"apiGroups": ["*"], "resources": ["meshes"], "verbs": ["*"]})
WIDE = {"rules": [{**TIMEOUTS, "verbs": ["get", "delete"]}]}
WIDE_REFUSAL = (
    f'.{rbac.GROUP} "r" is forbidden: user "ann" (groups=["devs" "mesh-system:authenticated"'
    ' "system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
    '{APIGroups:["kuma.io"], Resources:["meshtimeouts"], Verbs:["delete"]}'
)
GATHER = {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}


def ref(kind, name):
    return {"roleRef": {"apiGroup": rbac.GROUP, "kind": kind, "name": name}, "subjects": []}


def right(verb, resource, **more):
    return {"apiGroups": [rbac.GROUP], "resources": [resource], "verbs": [verb], **more}


@pytest.mark.parametrize(
    ("kind", "namespace", "spec", "extra", "refusal"),
    [
        ("ClusterRole", "", {"rules": [TIMEOUTS]}, None, ""),
        ("ClusterRole", "", {"rules": []}, None, ""),
        ("ClusterRole", "", WIDE, None, f"clusterroles{WIDE_REFUSAL}"),
        ("Role", "shop", WIDE, None, f"roles{WIDE_REFUSAL}"),
        ("ClusterRole", "", WIDE, right("escalate", "clusterroles"), ""),
        ("ClusterRole", "", WIDE, right("escalate", "clusterroles", resourceNames=["r"]), ""),
        (
            "ClusterRole",
            "",
            WIDE,
            right("escalate", "roles"),
            f"clusterroles{WIDE_REFUSAL}",
        ),
        ("ClusterRole", "", GATHER, None, "must have cluster-admin privileges to use the aggregationRule"),
        ("ClusterRole", "", GATHER, right("escalate", "clusterroles"), ""),
        ("ClusterRoleBinding", "", ref("ClusterRole", "held"), None, ""),
        ("RoleBinding", "shop", ref("ClusterRole", "held"), None, ""),
        (
            "ClusterRoleBinding",
            "",
            ref("ClusterRole", "wide"),
            None,
            f"clusterrolebindings{WIDE_REFUSAL}",
        ),
        ("RoleBinding", "shop", ref("Role", "wide"), None, f"rolebindings{WIDE_REFUSAL}"),
        ("RoleBinding", "shop", ref("Role", "wide"), right("bind", "roles", resourceNames=["wide"]), ""),
        (
            "RoleBinding",
            "shop",
            ref("Role", "wide"),
            right("bind", "clusterroles"),
            f"rolebindings{WIDE_REFUSAL}",
        ),
        ("ConfigMap", "shop", {"data": {}}, None, ""),
    ],
)
def test_nobody_gives_away_what_he_does_not_have(kind, namespace, spec, extra, refusal):
    stored_access = StoredAccess(
        HELD,
        role_binding("held", "held", "ann"),
        role("wide", *WIDE["rules"]),
        role("wide", *WIDE["rules"], namespace="shop"),
        role("extra", *([extra] if extra else [])),
        role_binding("extra", "extra", "ann"),
    )
    if not refusal:
        escalation.check(stored_access.access, ANN, kind, namespace, spec, name="r")
        return
    with pytest.raises(Forbidden) as refused:
        escalation.check(stored_access.access, ANN, kind, namespace, spec, name="r")
    assert refusal in refused.value.detail


def test_rights_of_one_namespace_can_be_given_there_alone():
    stored_access = StoredAccess(HELD, role_binding("held", "held", "ann", "shop"))
    escalation.check(stored_access.access, ANN, "Role", "shop", {"rules": [TIMEOUTS]}, name="r")
    for kind, namespace in (("Role", "bank"), ("ClusterRole", "")):
        with pytest.raises(Forbidden, match="not currently held"):
            escalation.check(stored_access.access, ANN, kind, namespace, {"rules": [TIMEOUTS]}, name="r")


def test_a_role_that_gathered_is_only_the_admins_to_change():
    stored_access = StoredAccess(HELD, role_binding("held", "held", "ann"))
    with pytest.raises(Forbidden, match="cluster-admin privileges"):
        escalation.check(stored_access.access, ANN, "ClusterRole", "", {"rules": []}, name="r", before=GATHER)
    escalation.check(stored_access.access, LOCAL_ADMIN, "ClusterRole", "", GATHER, name="r")


def test_a_binding_to_a_role_that_is_not_there_needs_the_right_to_bind():
    stored_access = StoredAccess(HELD, role_binding("held", "held", "ann"))
    with pytest.raises(NotFound, match=r'clusterroles.rbac.authorization.k8s.io "none" not found'):
        escalation.check(
            stored_access.access, ANN, "ClusterRoleBinding", "", ref("ClusterRole", "none"), name="r"
        )
    escalation.check(
        stored_access.access, LOCAL_ADMIN, "ClusterRoleBinding", "", ref("ClusterRole", "none"), name="r"
    )


CLUSTER = "at the cluster scope"


def acting(stored_access, user, *headers):
    return impersonated(user, CIMultiDict(headers), stored_access.access)


@pytest.mark.parametrize(
    ("headers", "name", "groups"),
    [
        ([("Accept", "x"), ("If-Match", "y")], "mesh-system:admin", LOCAL_ADMIN.groups),
        ([("Impersonate-User", "")], "mesh-system:admin", LOCAL_ADMIN.groups),
        ([("impersonate-user", "eve")], "eve", ("mesh-system:authenticated",)),
        (
            [("Impersonate-User", "eve"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b")],
            "eve",
            ("a", "b", "mesh-system:authenticated"),
        ),
        (
            [("Impersonate-User", "eve"), ("Impersonate-Group", "system:authenticated")],
            "eve",
            ("system:authenticated",),
        ),
        (
            [("Impersonate-User", "system:serviceaccount:shop:ci")],
            "system:serviceaccount:shop:ci",
            ("system:serviceaccounts", "system:serviceaccounts:shop", "mesh-system:authenticated"),
        ),
        ([("Impersonate-User", "system:anonymous")], "system:anonymous", ("mesh-system:unauthenticated",)),
    ],
)
def test_the_admin_may_act_as_anybody(headers, name, groups):
    user = acting(StoredAccess(), LOCAL_ADMIN, *headers)
    assert (user.name, user.groups) == (name, groups)


def test_uid_and_extras_are_taken_over():
    user = acting(
        StoredAccess(),
        LOCAL_ADMIN,
        ("Impersonate-User", "eve"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-Team%2FName", "x"),
        ("Impersonate-Extra-team%2fname", "y"),
    )
    assert (user.uid, user.extra) == ("7", (("team/name", ("x", "y")),))


@pytest.mark.parametrize(
    ("headers", "subject", "resource", "where"),
    [
        (["User", "mesh-system:admin"], 'users "mesh-system:admin"', '"users" in API group ""', CLUSTER),
        (
            ["User", "eve", "Group", "mesh-system:admin"],
            'groups "mesh-system:admin"',
            '"groups" in API group ""',
            CLUSTER,
        ),
        (
            ["User", "system:serviceaccount:shop:ci"],
            'serviceaccounts "ci"',
            '"serviceaccounts" in API group ""',
            'in the namespace "shop"',
        ),
        (
            ["User", "eve", "Uid", "7"],
            'uids.authentication.k8s.io "7"',
            '"uids" in API group "authentication.k8s.io"',
            CLUSTER,
        ),
        (
            ["User", "eve", "Extra-Team", "x"],
            'userextras.authentication.k8s.io "x"',
            '"userextras/team" in API group "authentication.k8s.io"',
            CLUSTER,
        ),
    ],
)
def test_acting_as_somebody_needs_a_rule_for_each_part(headers, subject, resource, where):
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["eve"]}
    stored_access = StoredAccess(role("eve", rule), role_binding("b", "eve", "ann"))
    assert acting(stored_access, ANN, ("Impersonate-User", "eve")).name == "eve"
    sent = [(f"Impersonate-{word}", value) for word, value in zip(headers[::2], headers[1::2], strict=True)]
    with pytest.raises(Forbidden) as refused:
        acting(stored_access, ANN, *sent)
    told = f'{subject} is forbidden: User "ann" cannot impersonate resource {resource} {where}'
    assert refused.value.detail == told


@pytest.mark.parametrize("header", ["Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Team"])
def test_nobody_in_particular_cannot_be_acted_as(header):
    with pytest.raises(BadRequest, match="without a user"):
        acting(StoredAccess(), LOCAL_ADMIN, (header, "x"))
