"""Two versions over the same objects: what comes through one is there through the other, meaning the same."""

import itertools
import json
import sqlite3

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koguma.kube import catalog, endpoints
from koguma.kube.registry import Registry
from koguma.main import all_kinds
from tests.control_plane import LocalControlPlane
from tests.kube_client import (
    KOGUMA,
    KUMA,
    KubeClient,
    accepted,
    causes,
    failure,
    managers,
    revision,
    timeout_spec,
)
from tests.waiting import until

pytestmark = pytest.mark.slow

KINDS = all_kinds()
CONVERTER = catalog.of(KINDS).registry.find("koguma.io", "v1", "meshtimeouts").conversion
MESH = {"targetRef": {"kind": "Mesh"}}
OLDER = {"from": [{**MESH, "default": {"idleTimeout": "5s"}}], "targetRef": None}
CLEAN = {"rules": [{"default": {"idleTimeout": "5s"}}]}


@pytest.fixture
def clean(timeouts):
    return timeouts.other(KOGUMA)


def test_what_the_clean_shape_does_not_take_is_refused_by_name_with_what_to_write(clean):
    answer = clean.create("a", spec={"from": OLDER["from"]})
    assert answer.status == 422
    assert answer.json["message"] == (
        'MeshTimeout.koguma.io "a" is invalid: spec.from: does not exist in koguma.io/v1;'
        " write its entries in spec.rules, without targetRef"
    )
    assert answer.json["details"]["name"] == "a"


def test_an_older_spelling_is_shown_in_the_clean_shape(timeouts, clean):
    stored = accepted(timeouts.create("a", spec=OLDER))
    shown = clean.get("a")
    assert (stored["spec"], shown["spec"]) == (OLDER, CLEAN)
    assert (shown["apiVersion"], stored["apiVersion"]) == (KOGUMA, KUMA)
    for field in ("uid", "resourceVersion", "labels", "generation", "creationTimestamp"):
        assert shown["metadata"][field] == stored["metadata"][field]


def test_what_is_written_in_one_version_is_read_in_the_other(timeouts, clean):
    accepted(clean.create("a", spec=CLEAN))
    assert timeouts.get("a")["spec"] == CLEAN
    accepted(timeouts.replace(timeouts.document("a", spec=OLDER)))
    assert clean.get("a")["spec"] == CLEAN
    patched = accepted(clean.patch("a", {"spec": {"rules": [{"default": {"idleTimeout": "6s"}}]}}))
    assert patched["spec"] == timeouts.get("a")["spec"] == {"rules": [{"default": {"idleTimeout": "6s"}}]}
    assert clean.delete("a").status == 200
    assert not timeouts.exists("a")


def test_what_was_not_changed_stays_as_it_was_written(timeouts, clean):
    """A client of the newer version rewrites nothing that it did not mean to change."""
    first = accepted(timeouts.create("a", spec=OLDER))
    shown = clean.get("a")
    assert accepted(clean.replace(shown)) == shown
    assert timeouts.get("a") == first
    labelled = accepted(clean.patch("a", {"metadata": {"labels": {"x": "y"}}}))
    assert labelled["spec"] == CLEAN
    now = timeouts.get("a")
    assert (now["spec"], now["metadata"]["generation"]) == (OLDER, 1)
    applied = accepted(clean.apply("a", "one", spec=CLEAN))
    assert ("one", "Apply") in managers(applied)
    assert timeouts.get("a")["spec"] == OLDER


def test_an_older_spelling_is_refused_where_there_is_a_newer_one(clean):
    answer = clean.create("a", spec={"from": OLDER["from"]})
    assert failure(answer) == (422, "Invalid")
    assert "spec.from" in [field for field, _ in causes(answer)]
    assert "write its entries in spec.rules" in answer.json["message"]


def test_errors_point_to_where_their_writer_finds_them(timeouts, clean):
    wrong = {"rules": [{"default": {"idleTimeout": "soon"}}]}
    answer = clean.create("a", spec=wrong)
    assert [field for field, _ in causes(answer)] == ["spec.rules[0].default.idleTimeout"]


def test_a_right_on_one_endpoint_opens_no_other(timeouts, clean):
    roles, bindings = (
        timeouts.other("rbac.authorization.k8s.io/v1", kind) for kind in ("Role", "RoleBinding")
    )
    rules = [{"apiGroups": ["kuma.io"], "resources": ["meshtimeouts"], "verbs": ["*"]}]
    accepted(roles.create("kuma", rules=rules))
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kuma"}
    accepted(bindings.create("kuma", roleRef=to, subjects=[{"kind": "User", "name": "kim"}]))
    document = timeouts.document("a", spec=timeout_spec())
    assert timeouts.send("POST", "", document, Impersonate_User="kim").status == 201
    answer = clean.send("POST", "", clean.document("b", spec=timeout_spec()), Impersonate_User="kim")
    assert failure(answer) == (403, "Forbidden")
    assert clean.send("DELETE", "a", Impersonate_User="kim").status == 403
    elsewhere = timeouts.other(namespace="default")
    assert elsewhere.send("DELETE", "a", Impersonate_User="kim").status == 403


@pytest.mark.parametrize("kind", ["Secret", "GlobalSecret"])
def test_secrets_need_rights_of_their_own(timeouts, kind):
    secrets = timeouts.other(kind=kind, namespace="mesh-default" if kind == "Secret" else "mesh-global")
    accepted(secrets.create(timeouts.namespace, spec={"data": "eA=="}))
    bindings = timeouts.other("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", namespace="")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    accepted(
        bindings.create(
            f"{timeouts.namespace}-{kind.lower()}", roleRef=role, subjects=[{"kind": "User", "name": "ed"}]
        )
    )
    assert timeouts.send("GET", "", Impersonate_User="ed").status == 200
    for method, name in (
        ("GET", ""),
        ("GET", timeouts.namespace),
        ("DELETE", timeouts.namespace),
        ("POST", ""),
    ):
        assert failure(secrets.send(method, name, None, Impersonate_User="ed")) == (403, "Forbidden")
    core = timeouts.other("v1", "Secret", namespace=secrets.namespace)
    assert not core.exists(timeouts.namespace), "ours and Kubernetes' own never meet"
    assert secrets.delete(timeouts.namespace).status == 200


# Registering.


def test_an_alias_without_a_converter_is_refused():
    alias = next(each for each in endpoints.ours(KINDS, lambda _: CONVERTER) if each.converter is not None)
    bare = msgspec.structs.replace(alias, converter=None)
    with pytest.raises(ValueError, match=r"stored as kuma.io/v1alpha1, and there is no converter from it"):
        Registry().add(bare)
    registry = Registry([alias])
    with pytest.raises(ValueError, match="served already"):
        registry.add(alias)
    other = msgspec.structs.replace(alias.set, kind_name="Else")
    with pytest.raises(ValueError, match="stands for other objects"):
        registry.add(msgspec.structs.replace(alias, plural="others", set=other))


# Objects in a version that nobody knows any more.


@pytest.fixture(scope="module")
def aged(tmp_path_factory):
    """A control plane over a store in which some objects are of a version that is gone."""
    folder = tmp_path_factory.mktemp("aged")
    store = f"sqlite:///{folder / 'koguma.db'}"
    names = ("left", "again", "applied", "owner", "plain")
    with LocalControlPlane(folder, store=store) as plane:
        timeouts = KubeClient(plane, "aged")
        for name in (*names, "sound"):
            accepted(timeouts.create(name, spec=timeout_spec()))
        config_maps = timeouts.other("v1", "ConfigMap")
        owner = {"apiVersion": KUMA, "kind": "MeshTimeout", "name": "owner"}
        owner["uid"] = timeouts.get("owner")["metadata"]["uid"]
        accepted(config_maps.create("child", metadata={"ownerReferences": [owner]}))
    with sqlite3.connect(folder / "koguma.db") as database:
        for name in names:
            rows = database.execute("SELECT revision, body FROM changes WHERE name = ?", (name,)).fetchall()
            for at, body in rows:
                older = json.dumps({**json.loads(body), "storedAs": "kuma.io/v0"}).encode()
                database.execute("UPDATE changes SET body = ? WHERE revision = ?", (older, at))
    database.close()
    with LocalControlPlane(folder, store=store) as plane:
        yield KubeClient(plane, "aged")


@pytest.mark.parametrize("version", [KUMA, KOGUMA])
def test_an_object_of_a_removed_version_is_named_and_in_nobody_s_way(aged, version):
    timeouts = aged.other(version)
    answer = timeouts.send("GET", "left")
    assert failure(answer) == (500, "InternalError")
    for word in ('MeshTimeout "left"', 'version "kuma.io/v0"', "delete it, or write it again"):
        assert word in answer.json["message"]
    listed = timeouts.send("GET", "")
    assert "sound" in [item["metadata"]["name"] for item in listed.json["items"]]
    assert any('MeshTimeout "left"' in text and "kuma.io/v0" in text for text in listed.warnings)
    checks = timeouts.plane("GET", "/_check").json["checks"]
    told = [str(each) for each in checks if each["name"] == "objects" and each["status"] == "error"]
    assert any('MeshTimeout "left"' in text and "kuma.io/v0" in text for text in told)
    for change in (
        timeouts.replace(timeouts.document("left", spec=timeout_spec())),
        timeouts.patch("left", {"spec": {}}),
    ):
        assert failure(change) == (409, "Conflict")
        assert "delete it, then create it" in change.json["message"]


def test_an_object_of_a_removed_version_can_be_deleted_or_written_again(aged):
    tried = aged.delete("again", query={"dryRun": "All"})
    assert tried.status == 200
    assert aged.send("GET", "again").status == 500
    assert aged.delete("again").json["status"] == "Success"
    assert aged.create("again", spec=timeout_spec()).status == 201
    assert aged.apply("applied", "one", spec=timeout_spec("6s")).status == 201
    assert aged.get("applied")["spec"] == timeout_spec("6s")
    path = "/meshes/default/meshtimeouts/plain.aged"
    document = {"type": "MeshTimeout", "mesh": "default", "name": "plain.aged", "spec": timeout_spec()}
    document["labels"] = {"k8s.kuma.io/namespace": "aged"}
    assert aged.plane("PUT", path, document).status in (200, 201)
    assert aged.get("plain")["spec"] == timeout_spec()


def test_what_an_unreadable_object_owns_stays(aged):
    config_maps = aged.other("v1", "ConfigMap")
    gone = {"apiVersion": KUMA, "kind": "MeshTimeout", "name": "nobody", "uid": "nobody"}
    accepted(config_maps.create("orphan", metadata={"ownerReferences": [gone]}))
    until(lambda: not config_maps.exists("orphan"))
    assert config_maps.exists("child")


# Whatever comes, through whichever version.

NAMES = ("a", "b", "c")
SPECS = (
    OLDER,
    CLEAN,
    timeout_spec("5s"),
    timeout_spec("6s"),
    {"rules": [{"default": {"idleTimeout": "7s"}}]},
)
_numbers = itertools.count(1)

steps = st.lists(
    st.tuples(
        st.sampled_from(("plain", "v1alpha1", "v1")),
        st.sampled_from(("write", "write", "write", "apply", "label", "delete")),
        st.sampled_from(NAMES),
        st.sampled_from(SPECS),
        st.sampled_from(("x", "y")),
    ),
    min_size=1,
    max_size=12,
)


class ApiForms:
    """The three ways to the objects of one namespace, and what they show."""

    def __init__(self, plane):
        self.plane = plane
        self.namespace = f"forms{next(_numbers)}"
        self.alpha = KubeClient(plane, self.namespace)
        self.clean = self.alpha.other(KOGUMA)
        self.base = "/meshes/default/meshtimeouts"

    def path(self, name):
        return f"{self.base}/{name}.{self.namespace}"

    def do(self, through, what, name, spec, word):
        """One write; refusals are answers too, and change nothing."""
        if through == "plain":
            return self._plainly(what, name, spec, word)
        timeouts, shape = (
            (self.alpha, spec) if through == "v1alpha1" else (self.clean, CONVERTER.from_storage(spec))
        )
        match what:
            case "apply":
                return timeouts.apply(name, word, force=True, spec=shape)
            case "label":
                return timeouts.patch(name, {"metadata": {"labels": {"word": word}}})
            case "delete":
                return timeouts.delete(name)
        created = timeouts.create(name, spec=shape)
        return created if created.status == 201 else timeouts.replace(timeouts.document(name, spec=shape))

    def _plainly(self, what, name, spec, word):
        if what == "delete":
            return self.plane("DELETE", self.path(name))
        if what == "label":
            change = {"labels": {"word": word}}
            return self.plane("PATCH", self.path(name), change, Content_Type="application/merge-patch+json")
        labels = {"k8s.kuma.io/namespace": self.namespace}
        document = {
            "type": "MeshTimeout",
            "mesh": "default",
            "name": f"{name}.{self.namespace}",
            "labels": labels,
        }
        if what == "apply":
            return self.plane("POST", "/_apply", [{**document, "spec": spec}])
        return self.plane("PUT", self.path(name), {**document, "spec": spec})

    def shown(self):
        """What all forms show, by name, each as the specs of the three."""
        plain = self.plane("GET", f"{self.base}?size=1000").json["items"]
        here = [item for item in plain if item["labels"].get("k8s.kuma.io/namespace") == self.namespace]
        alpha, clean = (
            {item["metadata"]["name"]: item for item in timeouts.send("GET", "").json["items"]}
            for timeouts in (self.alpha, self.clean)
        )
        assert set(alpha) == set(clean) == {item["name"].removesuffix(f".{self.namespace}") for item in here}
        for item in here:
            one = alpha[item["name"].removesuffix(f".{self.namespace}")]
            assert item["labels"] == one["metadata"]["labels"]
            assert item["spec"] == one["spec"]
        return {name: (alpha[name], clean[name]) for name in alpha}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_all_forms_show_the_same_whatever_is_written_through_which(plane, written):
    forms = ApiForms(plane)
    begin = revision(forms.alpha.send("GET", "").json)
    newest = begin
    for step in written:
        answer = forms.do(*step)
        # An apply lets fields of others stand, which may not go together with what it says.
        assert answer.status in (200, 201, 404, *([422] if step[1] == "apply" else [])), answer.body
        for alpha, clean in forms.shown().values():
            assert clean["spec"] == CONVERTER.from_storage(alpha["spec"])
            assert revision(alpha) == revision(clean)
        now = revision(forms.alpha.send("GET", "").json)
        assert now >= newest
        newest = now
    accepted(forms.alpha.create("last", spec=timeout_spec()))
    assert _seen(forms, begin)


def _seen(forms, begin):
    """The revisions that watches of all forms see; they must be the same."""
    found = []
    for timeouts in (forms.alpha, forms.clean):
        with forms.plane.watch(f"{timeouts.path}?watch=true&resourceVersion={begin}") as events:
            found.append(list(_until_last(events, lambda each: revision(each["object"]), "last")))
    query = f"watch=true&revision={begin}&filter[labels.k8s.kuma.io/namespace]={forms.namespace}"
    with forms.plane.watch(f"{forms.base}?{query}") as events:
        events.next()  # where it begins
        found.append(list(_until_last(events, lambda each: each["revision"], f"last.{forms.namespace}")))
    alpha, clean, plain = found
    assert alpha == clean == plain
    revisions = [number for _, number in alpha]
    assert revisions == sorted(set(revisions))
    return alpha


def _until_last(events, number, last):
    while True:
        event = events.next()
        yield event["type"], number(event)
        shown = event["object"]
        if (shown.get("name") or shown["metadata"]["name"]) == last:
            return
