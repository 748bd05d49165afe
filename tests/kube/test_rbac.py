"""What stored roles and bindings allow, and which rights nobody can give away."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from koguma.kube import rbac
from koguma.kube.escalation import missing, rule_text
from koguma.kube.rbac import RbacObjects, Roles, aggregated, covers, grants, rules_in
from koguma.kube.rbac_defaults import default_bindings, default_roles
from koguma.kube.registry import KOGUMA, KUMA
from koguma.main import all_kinds
from koguma.model.access import REST_GROUP, Attempt, Rule
from koguma.model.label_selector import selects
from koguma.model.resource import Resource


def stored(kind, name, spec, namespace="", labels=None):
    return Resource(
        kind=f"{kind}.{rbac.GROUP}",
        name=name,
        core_name=name,
        namespace=namespace,
        labels=labels or {},
        spec=spec,
    )


def on(resources, verbs="get", groups=KUMA, **more):
    """A rule as people write it; words stand for lists."""
    return {
        "apiGroups": groups.split(","),
        "resources": resources.split(","),
        "verbs": verbs.split(","),
        **more,
    }


def cluster_role(name, *rules, labels=None, **fields):
    return stored("ClusterRole", name, {"rules": list(rules), **fields}, labels=labels)


def binding(name, role, subjects, namespace="", role_kind="ClusterRole"):
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    ref = {"apiGroup": rbac.GROUP, "kind": role_kind, "name": role}
    return stored(kind, name, {"roleRef": ref, "subjects": subjects}, namespace)


def attempt(verb="get", resource="meshtimeouts", name="", group=KUMA, **more):
    return Attempt(verb, resource, name, group=group, **more)


TIMEOUTS = on("meshtimeouts")
NAMED = on("meshtimeouts", "*", resourceNames=["a", "b"])
STATUS = on("meshservices/status")
PATHS = {"nonResourceURLs": ["/openapi*", "/version"], "verbs": ["get"]}
EVERY_PATH = {"nonResourceURLs": ["*"], "verbs": ["*"]}
EVERY_RESOURCE = on("*", "*", "*")
ONE_PATH = {"nonResourceURLs": ["/x"], "verbs": ["get"]}
ANN = {"kind": "User", "name": "ann"}
DEVS = {"kind": "Group", "name": "devs"}


@pytest.mark.parametrize(
    ("rule", "tried", "allowed"),
    [
        (TIMEOUTS, attempt(), True),
        (TIMEOUTS, attempt(name="a", namespace="shop"), True),
        (TIMEOUTS, attempt("list"), False),
        (TIMEOUTS, attempt(resource="meshretries"), False),
        # Another name for the same objects is another right.
        (TIMEOUTS, attempt(group=KOGUMA), False),
        (TIMEOUTS, attempt(group=REST_GROUP), False),
        (on("meshtimeouts", groups=KOGUMA), attempt(), False),
        (on("meshtimeouts", groups="*"), attempt(group="new.example.com"), True),
        # A subresource is not its resource, and only a star is both.
        (TIMEOUTS, attempt(subresource="status"), False),
        (STATUS, attempt(resource="meshservices", subresource="status"), True),
        (STATUS, attempt(resource="meshservices"), False),
        (STATUS, attempt(resource="zones", subresource="status"), False),
        (on("*"), attempt(subresource="status"), True),
        (on("*/status"), attempt(subresource="status"), True),
        (on("*/status"), attempt(subresource="scale"), False),
        (on("*/status"), attempt(), False),
        # Names: nothing in particular is none of them.
        (NAMED, attempt(name="a"), True),
        (NAMED, attempt(name="c"), False),
        (NAMED, attempt("delete", name="b"), True),
        (NAMED, attempt("list"), False),
        (NAMED, attempt("watch"), False),
        (NAMED, attempt("create"), False),
        (NAMED, attempt("deletecollection"), False),
        (on("meshtimeouts", resourceNames=[""]), attempt(), False),
        # Paths.
        (PATHS, Attempt("get", path="/version"), True),
        (PATHS, Attempt("get", path="/version/"), False),
        (PATHS, Attempt("get", path="/openapi/v3"), True),
        (PATHS, Attempt("get", path="/openapi.json"), True),
        (PATHS, Attempt("post", path="/version"), False),
        (EVERY_PATH, Attempt("get", path="/metrics"), True),
        (EVERY_RESOURCE, Attempt("get", path="/metrics"), False),
        (EVERY_PATH, attempt(), False),
        # What is not said is not allowed.
        ({"resources": ["meshtimeouts"], "verbs": ["get"]}, attempt(), False),
        ({"apiGroups": [KUMA], "verbs": ["get"]}, attempt(), False),
        ({"apiGroups": [KUMA], "resources": ["meshtimeouts"]}, attempt(), False),
    ],
)
def test_a_rule_allows_what_it_names_and_nothing_else(rule, tried, allowed):
    (read,) = rules_in({"rules": [rule]})
    assert covers(read, tried) is allowed


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"rules": None},
        {"rules": {"verbs": ["*"]}},
        {"rules": ["*", 1, None]},
        {"rules": [{"apiGroups": "*", "resources": "*", "verbs": "*"}]},
        {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": [1, None]}]},
        {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": [7]}]},
        {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": "a"}]},
    ],
)
def test_what_cannot_be_read_gives_nobody_anything(spec):
    assert not any(covers(rule, attempt(name="a")) for rule in rules_in(spec))


@pytest.mark.parametrize(
    ("selector", "labels", "chosen"),
    [
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "2"}, False),
        ({"matchLabels": {"a": "1", "b": "2"}}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, {"a": "2"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
        (
            {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
            {"a": "1"},
            False,
        ),
        ({}, {}, True),
        (None, {}, False),
        ({"matchLabels": "a=1"}, {"a": "1"}, False),
        ({"matchExpressions": [{"operator": "Exists"}]}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Like"}]}, {"a": "1"}, False),
    ],
)
def test_a_selector_chooses_labels(selector, labels, chosen):
    assert selects(selector, labels) is chosen


def gathering(name, label, labels=None):
    selector = {"matchLabels": {label: "true"}}
    rule = {"clusterRoleSelectors": [selector]}
    return cluster_role(name, on("own", "never"), labels=labels, aggregationRule=rule)


def test_a_role_gathers_others_however_many_steps_away():
    view, edit = on("meshes", "get"), on("meshes", "update")
    roles = (
        gathering("view", "to-view", {"to-edit": "true"}),
        gathering("edit", "to-edit"),
        cluster_role("a", view, labels={"to-view": "true"}),
        cluster_role("b", edit, view, labels={"to-edit": "true"}),
        cluster_role("c", on("secrets")),
    )
    assert [rule.verbs for rule in aggregated(roles[0], roles)] == [("get",)]
    assert {rule.verbs for rule in aggregated(roles[1], roles)} == {("get",), ("update",)}
    assert aggregated(roles[4], roles) == rules_in({"rules": [on("secrets")]})


def test_roles_that_gather_each_other_end():
    one, two = gathering("one", "x", {"y": "true"}), gathering("two", "y", {"x": "true"})
    three = cluster_role("three", on("meshes"), labels={"x": "true"})
    for role in (one, two):
        assert [rule.resources for rule in aggregated(role, (one, two, three))] == [("meshes",)]


def given(*objects):
    """Which subject has rules where, and which resources they name."""
    by_kind = {kind: tuple(o for o in objects if o.kind == f"{kind}.{rbac.GROUP}") for kind in rbac.PLURALS}
    found = RbacObjects(*by_kind.values())
    return {
        (grant.kind, grant.subject, grant.namespace): grant.rules[0].resources
        for grant in grants(found, Roles(found))
    }


def test_bindings_give_roles_to_users_groups_and_service_accounts():
    account, here = (
        {"kind": "ServiceAccount", "name": "ci", "namespace": "ops"},
        {"kind": "ServiceAccount", "name": "ci"},
    )
    role = stored("Role", "local", {"rules": [on("meshretries")]}, "shop")
    everywhere = cluster_role("all", on("meshes"))
    assert given(
        role,
        everywhere,
        binding("one", "all", [ANN, DEVS, account]),
        binding("two", "local", [ANN, here], "shop", "Role"),
        binding("three", "all", [DEVS], "shop"),
    ) == {
        ("User", "ann", ""): ("meshes",),
        ("Group", "devs", ""): ("meshes",),
        ("User", "system:serviceaccount:ops:ci", ""): ("meshes",),
        ("User", "ann", "shop"): ("meshretries",),
        ("User", "system:serviceaccount:shop:ci", "shop"): ("meshretries",),
        ("Group", "devs", "shop"): ("meshes",),
    }


@pytest.mark.parametrize(
    "broken",
    [
        binding("b", "none", [ANN]),
        binding("b", "local", [ANN], role_kind="Role"),
        binding("b", "local", [ANN], "other", "Role"),
        binding("b", "all", [{"kind": "ServiceAccount", "name": "ci"}]),
        binding("b", "all", [{"kind": "Robot", "name": "ann"}, {"kind": "User"}, "ann", None]),
        binding("b", "all", {"kind": "User", "name": "ann"}),
        stored("ClusterRoleBinding", "b", {"roleRef": "all", "subjects": [ANN]}),
        stored("ClusterRoleBinding", "b", None),
    ],
)
def test_a_binding_to_nothing_gives_nothing(broken):
    role = stored("Role", "local", {"rules": [on("meshretries")]}, "shop")
    assert given(role, cluster_role("all", on("meshes")), broken) == {}


def test_rules_of_one_namespace_hold_there_alone():
    role = cluster_role("all", on("meshtimeouts"), PATHS)
    found = RbacObjects(cluster_roles=(role,), role_bindings=(binding("b", "all", [ANN], "shop"),))
    (grant,) = grants(found, Roles(found))
    assert grant.source == 'RoleBinding "b/shop" of ClusterRole "all" to User "ann"'
    assert grant.allows(attempt(namespace="shop"))
    assert not grant.allows(attempt(namespace="bank"))
    assert not grant.allows(attempt())
    assert not grant.allows(Attempt("get", path="/version"))


WRITE = on("meshtimeouts,meshretries", "get,update")
ALL_VERBS = "get,list,watch,create,update,patch,delete,deletecollection"


@pytest.mark.parametrize(
    ("wanted", "held", "lacking"),
    [
        ([TIMEOUTS], [TIMEOUTS], []),
        ([], [], []),
        ([TIMEOUTS], [], [TIMEOUTS]),
        ([WRITE], [on("*", "get")], [on("meshtimeouts", "update"), on("meshretries", "update")]),
        # Two rules together may cover one.
        ([WRITE], [on("meshtimeouts", "*"), on("meshretries", "get"), on("meshretries", "update")], []),
        # Another alias is another right, and a star is more than all there are today.
        ([TIMEOUTS], [on("meshtimeouts", groups=KOGUMA)], [TIMEOUTS]),
        ([on("meshtimeouts", "*")], [on("meshtimeouts", ALL_VERBS)], [on("meshtimeouts", "*")]),
        ([on("meshtimeouts", groups="*")], [TIMEOUTS], [on("meshtimeouts", groups="*")]),
        # Names narrow.
        ([on("meshtimeouts", resourceNames=["a"])], [TIMEOUTS], []),
        ([TIMEOUTS], [on("meshtimeouts", resourceNames=["a"])], [TIMEOUTS]),
        (
            [on("meshtimeouts", resourceNames=["a", "c"])],
            [NAMED],
            [on("meshtimeouts", resourceNames=["c"])],
        ),
        # Subresources.
        ([STATUS], [on("*/status")], []),
        ([STATUS], [on("meshservices")], [STATUS]),
        ([on("*/status")], [STATUS], [on("*/status")]),
        # Paths.
        ([PATHS], [{"nonResourceURLs": ["/*"], "verbs": ["*"]}], []),
        ([EVERY_PATH], [PATHS], [EVERY_PATH]),
        ([ONE_PATH], [EVERY_RESOURCE], [ONE_PATH]),
    ],
)
def test_rights_that_are_missing(wanted, held, lacking):
    assert missing(rules_in({"rules": wanted}), rules_in({"rules": held})) == rules_in({"rules": lacking})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (WRITE, '{APIGroups:["kuma.io"], Resources:["meshtimeouts" "meshretries"], Verbs:["get" "update"]}'),
        (PATHS, '{NonResourceURLs:["/openapi*" "/version"], Verbs:["get"]}'),
        (
            on("m", resourceNames=["a"]),
            '{APIGroups:["kuma.io"], Resources:["m"], ResourceNames:["a"], Verbs:["get"]}',
        ),
    ],
)
def test_a_rule_is_shown_as_kubernetes_does(rule, text):
    assert [rule_text(each) for each in rules_in({"rules": [rule]})] == [text]


def test_default_roles_name_resources_as_each_form_does():
    (view,) = (each for each in default_roles(all_kinds()) if each["metadata"]["name"].endswith("to-view"))
    named = {
        group: {
            resource
            for rule in view["rules"]
            if group in rule.get("apiGroups", ())
            for resource in rule["resources"]
        }
        for group in (KUMA, KOGUMA, REST_GROUP)
    }
    for group in (KUMA, KOGUMA):
        assert {"meshinsights", "dataplaneinsights", "serviceinsights", "zoneinsights"} <= named[group]
        assert not [resource for resource in named[group] if "-" in resource]
    assert {"mesh-insights", "dataplane-insights"} <= named[REST_GROUP]


def test_a_right_in_one_mesh_is_none_to_give_away():
    (rule,) = rules_in({"rules": [on("meshtimeouts", groups=REST_GROUP)]})
    assert missing([rule], [rule]) == ()
    assert missing([rule], [Rule(verbs=("get",), resources=("meshtimeouts",), meshes=("red",))]) == (rule,)


def some(*words):
    return st.lists(st.sampled_from(words), max_size=2, unique=True).map(tuple)


RULES = st.lists(
    st.builds(
        Rule,
        verbs=some("get", "list", "*"),
        groups=some("", "g", "*"),
        resources=some("r", "s", "r/x", "*/x", "*"),
        names=some("a", "b"),
        paths=some("/a", "/a/*", "/*", "*"),
    ),
    max_size=4,
)
ATTEMPTS = st.one_of(
    st.builds(
        Attempt,
        verb=st.sampled_from(("get", "list", "other")),
        resource=st.sampled_from(("r", "s", "t")),
        name=st.sampled_from(("", "a", "b", "c")),
        group=st.sampled_from(("", "g", "h")),
        subresource=st.sampled_from(("", "x", "y")),
    ),
    st.builds(Attempt, verb=st.sampled_from(("get", "other")), path=st.sampled_from(("/", "/a", "/a/b"))),
)


@pytest.mark.property
@for_all(RULES, RULES, ATTEMPTS)
def test_what_is_held_together_with_what_is_missing_allows_all_that_was_wanted(wanted, held, tried):
    together = (*held, *missing(wanted, held))
    if any(covers(rule, tried) for rule in wanted):
        assert any(covers(rule, tried) for rule in together)
    assert missing(wanted, together) == ()


def test_a_rule_too_large_to_take_apart_is_refused_as_a_whole_and_soon():
    words = tuple(str(number) for number in range(2000))
    huge = Rule(verbs=words, groups=words, resources=words, names=words)
    assert missing([huge], [Rule(verbs=("*",), groups=("*",), resources=words[:-1])]) == (huge,)
    assert missing([huge], rbac.EVERYTHING) == ()


@pytest.fixture(scope="module")
def defaults():
    """What each subject of a new store may do, by the name of the role."""
    roles = tuple(
        stored(
            "ClusterRole",
            document["metadata"]["name"],
            {
                name: value
                for name, value in document.items()
                if name not in ("apiVersion", "kind", "metadata")
            },
            labels=document["metadata"]["labels"],
        )
        for document in default_roles(all_kinds())
    )
    return Roles(RbacObjects(cluster_roles=roles))


SECRETS = [
    ("", "secrets"),
    *((group, word) for group in (KUMA, KOGUMA, REST_GROUP) for word in ("secrets", "globalsecrets")),
]


@pytest.mark.parametrize(
    ("role", "tried", "allowed"),
    [
        *(("view", attempt("list", group=group), True) for group in (KUMA, KOGUMA, REST_GROUP)),
        *(("view", attempt("update", group=group), False) for group in (KUMA, KOGUMA, REST_GROUP)),
        *(("edit", attempt(verb, group=KUMA), True) for verb in ("get", "create", "deletecollection")),
        *(
            (role, attempt("get", word, group=group), False)
            for role in ("view", "edit")
            for group, word in SECRETS
        ),
        *(("admin", attempt("get", word, group=group), word == "secrets") for group, word in SECRETS),
        ("cluster-admin", attempt("get", "globalsecrets"), True),
        ("view", attempt("watch", "configmaps", group=""), True),
        ("view", attempt("list", "roles", group=rbac.GROUP), False),
        ("edit", attempt("create", "rolebindings", group=rbac.GROUP), False),
        ("admin", attempt("create", "rolebindings", group=rbac.GROUP), True),
        ("admin", attempt("create", "clusterrolebindings", group=rbac.GROUP), False),
        ("admin", attempt("escalate", "roles", group=rbac.GROUP), False),
        ("admin", attempt("impersonate", "users", group=""), False),
        ("admin", attempt("create", "usertokens", group=REST_GROUP), False),
        # A new way to the same objects is closed until a rule names it.
        *((role, attempt("get", group="alias.example.com"), False) for role in ("view", "edit", "admin")),
        ("cluster-admin", attempt("get", group="alias.example.com"), True),
        ("system:discovery", Attempt("get", path="/apis/kuma.io/v1alpha1"), True),
        ("system:discovery", Attempt("get", path="/openapi/v3"), True),
        ("system:discovery", Attempt("get", path="/metrics"), False),
        ("system:public-info-viewer", Attempt("get", path="/version"), True),
        ("system:public-info-viewer", Attempt("get", path="/apis"), False),
        ("system:basic-user", attempt("create", "selfsubjectreviews", group="authentication.k8s.io"), True),
        ("system:basic-user", attempt("create", "tokenreviews", group="authentication.k8s.io"), False),
    ],
)
def test_roles_of_a_new_store(defaults, role, tried, allowed):
    assert any(covers(rule, tried) for rule in defaults.rules("ClusterRole", role)) is allowed


def test_bindings_of_a_new_store_name_roles_that_it_has():
    roles = {document["metadata"]["name"]: document for document in default_roles(all_kinds())}
    given_to = {
        document["roleRef"]["name"]: {subject["name"] for subject in document["subjects"]}
        for document in default_bindings()
    }
    known = {"system:authenticated", "mesh-system:authenticated"}
    assert given_to == {
        "cluster-admin": {"system:masters", "mesh-system:admin"},
        "system:discovery": known,
        "system:basic-user": known,
        "system:public-info-viewer": known | {"system:unauthenticated"},
        "system:service-account-issuer-discovery": {"system:serviceaccounts"},
    }
    assert set(given_to) < set(roles)
    for document in (*roles.values(), *default_bindings()):
        assert document["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
