"""Questions about rights and tokens."""

import pytest

from koguma.access.token_keys import ReviewedToken
from koguma.access.user import LOCAL_ADMIN, User
from koguma.api.kube import reviews
from koguma.model.errors import BadRequest, Invalid, Unauthenticated
from tests.stored_rbac import ANN, BOB, PLAIN_TIMEOUTS, TIMEOUTS, StoredAccess, role, role_binding


def refuse(_token, _audiences):
    raise Unauthenticated("token is revoked")


def review(stored_access, kind, spec, user=ANN, verify=refuse, **fields):
    document = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec, **fields}
    answered = reviews.answer(kind, document, user, stored_access.access, verify)
    assert {name: answered[name] for name in document} == document
    return answered["status"]


@pytest.fixture(scope="module")
def reader():
    return StoredAccess(
        role("reader", TIMEOUTS),
        role_binding("everywhere", "reader", "ann"),
        role("paths", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
        role_binding("paths", "paths", ":ops"),
        role("local", PLAIN_TIMEOUTS, namespace="mesh-red"),
        role_binding("local", "local", "bob", "mesh-red", "Role"),
    )


def asked(verb="get", resource="meshtimeouts", group="kuma.io", **more):
    return {"resourceAttributes": {"verb": verb, "resource": resource, "group": group, **more}}


@pytest.mark.parametrize(
    ("user", "spec", "reason"),
    [
        (ANN, asked(), 'ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "ann"'),
        (
            ANN,
            asked(namespace="shop"),
            'ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "ann"',
        ),
        (ANN, asked("delete"), None),
        (ANN, asked(group="koguma.io"), None),
        (ANN, asked(subresource="status"), None),
        (
            BOB,
            asked(group="rest.koguma.io", namespace="mesh-red"),
            'RoleBinding "local/mesh-red" of Role "local" to User "bob"',
        ),
        (BOB, asked(group="rest.koguma.io"), None),
        (
            User("rita"),
            asked(group="rest.koguma.io", namespace="mesh-red"),
            'the settings, which give role "red" to User "rita"',
        ),
        (User("rita"), asked(group="rest.koguma.io", namespace="mesh-blue"), None),
        (User("rita"), asked(group="rest.koguma.io", namespace="mesh-global"), None),
        (
            User("o", ("ops",)),
            {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
            'ClusterRoleBinding "paths" of ClusterRole "paths" to Group "ops"',
        ),
        (ANN, {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}, None),
    ],
)
def test_access_reviews_tell_whether_and_why(reader, user, spec, reason):
    status = {"allowed": True, "reason": f"RBAC: allowed by {reason}"} if reason else {"allowed": False}
    assert review(reader, "SelfSubjectAccessReview", spec, user) == status
    about = {**spec, "user": user.name, "groups": list(user.groups)}
    assert review(reader, "SubjectAccessReview", about, LOCAL_ADMIN) == status


def test_a_local_review_is_for_its_namespace(reader):
    spec = {**asked(group="rest.koguma.io", namespace="mesh-red"), "user": "bob"}
    there = {"metadata": {"namespace": "mesh-red"}}
    assert review(reader, "LocalSubjectAccessReview", spec, **there)["allowed"]


ONE_OF = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
NOT_BOTH = "cannot be specified in combination with resourceAttributes"
SOMEBODY = "at least one of user or group must be specified"
BOTH = {**asked(), "nonResourceAttributes": {"path": "/", "verb": "get"}}


@pytest.mark.parametrize(
    ("kind", "spec", "metadata", "violations"),
    [
        (
            "SelfSubjectAccessReview",
            {},
            {},
            [("spec.resourceAttributes", f"null: {ONE_OF}")],
        ),
        (
            "SelfSubjectAccessReview",
            BOTH,
            None,
            [("spec.nonResourceAttributes", f'{{"path":"/","verb":"get"}}: {NOT_BOTH}')],
        ),
        ("SelfSubjectAccessReview", asked(), {"name": "x"}, [("metadata", '{"name":"x"}: must be empty')]),
        ("SubjectAccessReview", asked(), {}, [("spec.user", f'"": {SOMEBODY}')]),
        (
            "LocalSubjectAccessReview",
            {**asked(namespace="b"), "user": "u"},
            {"namespace": "a"},
            [("spec.resourceAttributes.namespace", '"b": must match metadata.namespace')],
        ),
        (
            "LocalSubjectAccessReview",
            {"nonResourceAttributes": {"path": "/"}, "user": "u"},
            {"namespace": "a", "labels": {"x": "y"}},
            [
                ("metadata", '{"namespace":"a","labels":{"x":"y"}}: must be empty except for namespace'),
                ("spec.nonResourceAttributes", '{"path":"/"}: disallowed on this kind of request'),
            ],
        ),
    ],
)
def test_a_question_that_is_none_is_invalid(reader, kind, spec, metadata, violations):
    with pytest.raises(Invalid) as refused:
        review(reader, kind, spec, metadata=metadata)
    assert [(v.field, v.message) for v in refused.value.violations] == [
        (field, f"Invalid value: {text}") for field, text in violations
    ]


def test_empty_metadata_as_go_clients_send_it_is_fine(reader):
    assert review(reader, "SelfSubjectAccessReview", asked(), metadata={"creationTimestamp": None})["allowed"]


def test_a_rules_review_lists_what_holds_in_a_namespace(reader):
    status = review(reader, "SelfSubjectRulesReview", {"namespace": "mesh-red"}, BOB)
    assert status["incomplete"] is False
    mine = {"verbs": ["get", "list"], "apiGroups": ["rest.koguma.io"], "resources": ["meshtimeouts"]}
    assert mine in status["resourceRules"]
    assert any("/apis/*" in rule["nonResourceURLs"] for rule in status["nonResourceRules"])
    assert mine not in review(reader, "SelfSubjectRulesReview", {"namespace": "shop"}, BOB)["resourceRules"]
    rita = review(reader, "SelfSubjectRulesReview", {"namespace": "mesh-red"}, User("rita"))
    assert [rule["resources"] for rule in rita["resourceRules"]] == [["meshtimeouts"]]
    assert (
        review(reader, "SelfSubjectRulesReview", {"namespace": "shop"}, User("rita"))["resourceRules"] == []
    )
    with pytest.raises(BadRequest, match="no namespace on request"):
        review(reader, "SelfSubjectRulesReview", {}, BOB)


def test_whoami(reader):
    eve = User("eve", ("a", "mesh-system:authenticated"), "7", (("team", ("x",)),))
    assert review(reader, "SelfSubjectReview", {}, eve) == {
        "userInfo": {
            "username": "eve",
            "uid": "7",
            "groups": ["a", "mesh-system:authenticated", "system:authenticated"],
            "extra": {"team": ["x"]},
        }
    }


def test_token_reviews(reader):
    info = {"username": "bob", "groups": ["mesh-system:authenticated", "system:authenticated"]}
    good = {"authenticated": True, "user": info, "audiences": ["koguma"]}

    def verify(token, audiences):
        if token != "t":
            refuse(token, audiences)
        if audiences and "koguma" not in audiences:
            raise Unauthenticated("the token is for none of the asked audiences")
        return ReviewedToken(BOB, ("koguma",))

    def status(**spec):
        return review(reader, "TokenReview", spec, verify=verify)

    assert status(token="t") == good
    assert status(token="t", audiences=["koguma", "vault"]) == good
    assert status(token="x") == {"user": {}, "error": "token is revoked"}
    other = status(token="t", audiences=["vault"])
    assert "authenticated" not in other
    assert "audiences" in other["error"]
    with pytest.raises(BadRequest, match="token is required for TokenReview in authentication"):
        status()


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("TokenReview", []),
        ("TokenReview", {"spec": "token"}),
        ("TokenReview", {"spec": {"token": 7}}),
        ("SubjectAccessReview", {"spec": {**asked(), "user": "u", "groups": "g"}}),
        ("SelfSubjectAccessReview", {"spec": {"resourceAttributes": []}}),
        ("SelfSubjectAccessReview", {"spec": asked(verb=1)}),
        ("SelfSubjectAccessReview", {"spec": asked(), "metadata": "x"}),
    ],
)
def test_a_review_of_the_wrong_shape_is_a_bad_request(reader, kind, document):
    with pytest.raises(BadRequest):
        reviews.answer(kind, document, ANN, reader.access, refuse)
