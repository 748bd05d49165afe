"""Both forms ask the same rules about the same object: where it will be, and what it replaces."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role

NAMESPACES = ("mesh-default", "team-a", "team-b")
KUBE = "/apis/kuma.io/v1alpha1/namespaces"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("write-access")) as plane:
        for namespace in NAMESPACES:
            put(plane, kube(namespace, "there"))
            bind_role(plane, f"editor-{namespace}", "edit", namespace)
        yield plane


def kube(namespace, name, **metadata):
    """A timeout in the Kubernetes form."""
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshTimeout",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": timeout()["spec"],
    }


def plain(namespace, name):
    """The same in the plain form, under its core name."""
    if namespace == "mesh-default":
        return timeout(name)
    return timeout(f"{name}.{namespace}", labels={"k8s.kuma.io/namespace": namespace})


def put(plane, document):
    answer = plane("POST", "/_apply", [document])
    assert answer.status == 200, answer.body


def core_name(namespace, name):
    return name if namespace == "mesh-default" else f"{name}.{namespace}"


# What a writer can do in the plain form; each gives a request's method, path and body.
def put_plain(namespace, name):
    return "PUT", f"/meshes/default/meshtimeouts/{core_name(namespace, name)}", plain(namespace, name)


def put_kubernetes_body(namespace, name):
    return "PUT", f"/meshes/default/meshtimeouts/{core_name(namespace, name)}", kube(namespace, name)


def put_under_its_short_name(namespace, name):
    return "PUT", f"/meshes/default/meshtimeouts/{name}", kube(namespace, name)


def apply_plain(namespace, name):
    return "POST", "/_apply", [plain(namespace, name)]


def apply_without_suffix(namespace, name):
    """A plain name with the namespace in the label alone: it means the same key."""
    return "POST", "/_apply", [{**plain(namespace, name), "name": name}]


def apply_kubernetes(namespace, name):
    return "POST", "/_apply", [kube(namespace, name)]


DOORS = (
    put_plain,
    put_kubernetes_body,
    put_under_its_short_name,
    apply_plain,
    apply_without_suffix,
    apply_kubernetes,
)


def is_allowed(plane, user, method, path, body):
    answer = plane(method, f"{path}?dryRun=All", body, Impersonate_User=user)
    assert answer.status in (200, 201, 403), (method, path, answer.status, answer.body)
    return answer.status != 403


def kube_allows(plane, user, namespace, name):
    """What the Kubernetes form says about the same object: replace where it is there, else create."""
    path = f"{KUBE}/{namespace}/meshtimeouts"
    if name == "there":
        return is_allowed(plane, user, "PUT", f"{path}/{name}", kube(namespace, name))
    return is_allowed(plane, user, "POST", path, kube(namespace, name))


@pytest.mark.parametrize("door", DOORS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    user=st.sampled_from(NAMESPACES),
    namespace=st.sampled_from((*NAMESPACES, "team-new")),
    name=st.sampled_from(("there", "new")),
)
def test_the_plain_form_allows_what_the_kubernetes_form_allows(plane, door, user, namespace, name):
    user = f"editor-{user}"
    if namespace == "team-new":
        name = "new"
    allowed = kube_allows(plane, user, namespace, name)
    assert allowed is (user == f"editor-{namespace}")
    # Under a short name the path may also lead to another namespace's object; the body decides which one.
    assert is_allowed(plane, user, *door(namespace, name)) is allowed


def test_an_editor_of_one_namespace_writes_patches_and_deletes_there_in_the_plain_form(plane):
    ann = {"Impersonate_User": "editor-team-a"}
    path = "/meshes/default/meshtimeouts/mine.team-a"
    assert plane("PUT", path, plain("team-a", "mine"), **ann).status == 201
    merge = {"Content_Type": "application/merge-patch+json", **ann}
    assert plane("PATCH", path, {"labels": {"a": "b"}}, **merge).status == 200
    assert plane("GET", path, **ann).json["labels"]["a"] == "b"
    assert plane("DELETE", path, **ann).status == 200
    assert plane("GET", path, **ann).status == 404, "who may look there hears that it is not there"


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_another_namespaces_object_is_closed_to_reads_patches_and_deletes(plane, method):
    headers = {"Impersonate_User": "editor-team-a", "Content_Type": "application/merge-patch+json"}
    body = {"labels": {"a": "b"}} if method == "PATCH" else None
    answer = plane(method, "/meshes/default/meshtimeouts/there.team-b", body, **headers)
    assert answer.status == 403


def test_a_kubernetes_body_cannot_replace_another_object_by_its_revision(plane):
    revision = plane("GET", f"{KUBE}/team-b/meshtimeouts/there").json["metadata"]["resourceVersion"]
    body = kube("team-b", "there", resourceVersion=revision)
    for name in ("there", "there.team-b"):
        path = f"/meshes/default/meshtimeouts/{name}"
        assert plane("PUT", path, body, Impersonate_User="editor-mesh-default").status == 403


def test_a_patch_cannot_move_an_object_into_another_namespace(plane):
    put(plane, plain("mesh-default", "stays"))
    headers = {
        "Impersonate_User": "editor-mesh-default",
        "Content_Type": "application/merge-patch+json",
    }
    body = {"labels": {"k8s.kuma.io/namespace": "team-b"}}
    assert plane("PATCH", "/meshes/default/meshtimeouts/stays", body, **headers).status == 403


def test_pruning_removes_nothing_in_a_namespace_of_others(plane):
    owned = {**kube("team-b", "pruned", labels={"koguma.io/set": "shop"})}
    put(plane, owned)
    body = {"objects": [plain("mesh-default", "kept")], "set": "shop", "prune": True}
    assert plane("POST", "/_apply", body, Impersonate_User="editor-mesh-default").status == 403
    assert plane("GET", "/meshes/default/meshtimeouts/pruned.team-b").status == 200
