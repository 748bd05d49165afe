"""Owners: what belongs to an object goes with it, waits for it, or is let go."""

import pytest

from koguma.kube.owners import FOREGROUND, ORPHAN, Disown, Owners, Release, Remove
from koguma.model.resource import Meta, Resource
from tests.kube_door import CORE, KOGUMA, Door, made, timeout, until


@pytest.fixture
def maps(room):
    return Door(room.plane, room.namespace, CORE, "ConfigMap")


def owned_by(*owners, blocks=False):
    return {
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                **({"blockOwnerDeletion": True} if blocks else {}),
            }
            for owner in owners
        ]
    }


def test_what_belongs_to_an_object_goes_with_it(maps):
    timeouts, leases = (
        maps.other("kuma.io/v1alpha1", "MeshTimeout"),
        maps.other("coordination.k8s.io/v1", "Lease"),
    )
    owner = made(maps.create("owner"))
    child = made(timeouts.create("child", metadata=owned_by(owner), spec=timeout()))
    made(leases.create("grandchild", metadata=owned_by(child), spec={}))
    made(maps.create("free"))
    assert maps.delete("owner", {"propagationPolicy": "Background"}).json["status"] == "Success"
    until(lambda: not timeouts.exists("child") and not leases.exists("grandchild"))
    assert maps.exists("free")


def test_the_version_in_a_reference_does_not_matter(maps):
    timeouts = maps.other("kuma.io/v1alpha1", "MeshTimeout")
    owner = made(timeouts.create("owner", spec=timeout()))
    for name, version in (("a", "kuma.io/v1alpha1"), ("b", KOGUMA)):
        made(maps.create(name, metadata=owned_by({**owner, "apiVersion": version})))
    made(maps.create("last"))
    assert timeouts.other(KOGUMA).delete("owner").status == 200
    until(lambda: not maps.exists("a") and not maps.exists("b"))
    assert maps.exists("last")


def test_the_last_owner_takes_it_along(maps):
    owners = [made(maps.create(name)) for name in ("one", "two")]
    made(maps.create("child", metadata=owned_by(*owners)))
    assert maps.delete("one").status == 200
    made(maps.create("later", metadata=owned_by(owners[0])))
    until(lambda: not maps.exists("later"))  # then the first deletion has been looked at
    assert maps.exists("child")
    assert maps.delete("two").status == 200
    until(lambda: not maps.exists("child"))


def test_an_owner_in_another_namespace_is_none(maps):
    elsewhere = maps.other(namespace=f"{maps.namespace}-other")
    owner = made(elsewhere.create("owner"))
    made(maps.create("child", metadata=owned_by(owner)))
    until(lambda: not maps.exists("child"))
    assert elsewhere.exists("owner")


def test_objects_of_a_mesh_s_own_namespace_are_of_one_namespace(maps, mesh):
    """What has no namespace of its own is where the form shows it."""
    here = maps.other(namespace=f"mesh-{mesh}")
    timeouts = here.other("kuma.io/v1alpha1", "MeshTimeout")
    owner = made(here.create("owner"))
    made(timeouts.create("child", metadata=owned_by(owner), spec=timeout()))
    policy = made(timeouts.create("policy", spec=timeout()))
    made(here.create("its", metadata=owned_by(policy)))
    made(maps.create("foreign", metadata=owned_by(policy)))
    until(lambda: not maps.exists("foreign"))
    assert timeouts.exists("child")
    assert here.exists("its")
    assert here.delete("owner").status == 200
    until(lambda: not timeouts.exists("child"))


def test_what_lives_everywhere_may_own_everywhere(maps):
    roles = maps.other("rbac.authorization.k8s.io/v1", "ClusterRole", namespace="")
    owner = made(roles.create(maps.namespace, rules=[]))
    made(maps.create("child", metadata=owned_by(owner)))
    made(maps.create("orphan", metadata=owned_by({**owner, "metadata": {"name": "x", "uid": "gone"}})))
    until(lambda: not maps.exists("orphan"))
    assert maps.exists("child")
    assert roles.delete(maps.namespace).status == 200
    until(lambda: not maps.exists("child"))


def test_an_owner_in_the_foreground_waits_for_those_that_block_it(maps):
    owner = made(maps.create("owner"))
    held = {"finalizers": ["example.com/hold"]}
    made(maps.create("blocks", metadata={**owned_by(owner, blocks=True), **held}))
    made(maps.create("free", metadata={**owned_by(owner), **held}))
    ends = made(maps.delete("owner", {"propagationPolicy": "Foreground"}))
    assert ends["metadata"]["finalizers"] == ["foregroundDeletion"]
    for name in ("blocks", "free"):
        until(lambda name=name: "deletionTimestamp" in maps.get(name)["metadata"])
    assert maps.exists("owner")
    made(maps.patch("blocks", {"metadata": {"finalizers": None}}))
    until(lambda: not maps.exists("owner"))
    assert maps.exists("free")
    made(maps.patch("free", {"metadata": {"finalizers": None}}))


def test_a_whole_tree_goes_in_the_foreground(maps):
    root = made(maps.create("root"))
    branch = made(maps.create("branch", metadata=owned_by(root, blocks=True)))
    leaf = {**owned_by(branch, blocks=True), "finalizers": ["example.com/hold"]}
    made(maps.create("leaf", metadata=leaf))
    made(maps.delete("root", {"propagationPolicy": "Foreground"}))
    until(lambda: "deletionTimestamp" in maps.get("leaf")["metadata"])
    assert maps.exists("branch")
    assert maps.exists("root")
    made(maps.patch("leaf", {"metadata": {"finalizers": None}}))
    until(lambda: not maps.exists("root"))
    assert not maps.exists("branch")


def test_orphans_stay_and_know_no_owner_any_more(maps):
    owner, other = made(maps.create("owner")), made(maps.create("other"))
    made(maps.create("child", metadata=owned_by(owner, other)))
    made(maps.create("only", metadata=owned_by(owner)))
    ends = made(maps.delete("owner", {"propagationPolicy": "Orphan"}))
    assert ends["metadata"]["finalizers"] == ["orphan"]
    until(lambda: not maps.exists("owner"))
    assert maps.get("child")["metadata"]["ownerReferences"] == owned_by(other)["ownerReferences"]
    assert "ownerReferences" not in maps.get("only")["metadata"]


def test_a_namespace_that_belongs_to_something_is_emptied_before_it_goes(maps):
    spaces = maps.other(CORE, "Namespace", namespace="")
    roles = maps.other("rbac.authorization.k8s.io/v1", "ClusterRole", namespace="")
    owner = made(roles.create(maps.namespace, rules=[]))
    made(spaces.create(maps.namespace, metadata=owned_by(owner)))
    made(maps.create("inside", metadata={"finalizers": ["example.com/hold"]}))
    assert roles.delete(maps.namespace).status == 200
    until(lambda: spaces.get(maps.namespace)["status"]["phase"] == "Terminating")
    until(lambda: "deletionTimestamp" in maps.get("inside")["metadata"])
    made(maps.patch("inside", {"metadata": {"finalizers": None}}))
    until(lambda: not spaces.exists(maps.namespace))


# The rules alone.


def thing(uid, *owners, namespace="here", ends=False, finalizers=(), blocks=False):
    references = tuple({"uid": owner, "name": owner, "blockOwnerDeletion": blocks} for owner in owners)
    meta = Meta(tuple(finalizers), references, (), "2026-01-01T00:00:00Z" if ends else "")
    return Resource(kind="Thing", namespace=namespace, name=uid, core_name=uid, uid=uid, meta=meta)


def test_what_cannot_be_read_is_not_gone():
    child = thing("child", "owner")
    assert Owners([child]).due() == [Remove(child)]
    hidden = Owners([child], is_hidden=lambda reference: reference["name"] == "owner")
    assert hidden.due() == []


def test_what_lives_in_no_namespace_does_not_go_for_an_owner_that_lives_in_one():
    assert Owners([thing("owner"), thing("child", "owner", namespace="")]).due() == []


def test_each_suspect_is_looked_at_once():
    owner, child = thing("owner"), thing("child", "owner")
    owners = Owners([owner, child])
    assert owners.due() == []
    owners.drop(owner)
    assert owners.due() == [Remove(child)]
    assert owners.due() == []
    owners.suspect(child)
    assert owners.due() == [Remove(child)]


def test_the_order_of_arrival_does_not_matter():
    owner = thing("owner", ends=True, finalizers=[FOREGROUND])
    child, grandchild = thing("child", "owner", blocks=True), thing("grandchild", "child")
    for order in ([owner, child, grandchild], [grandchild, child, owner]):
        assert Owners(order).due() == [Remove(child, in_foreground=True)]
    gone = thing("child", "owner", blocks=True, ends=True, finalizers=["x"])
    assert Owners([owner, gone]).due() == []
    assert Owners([owner]).due() == [Release(owner, FOREGROUND)]
    orphaning = thing("owner", ends=True, finalizers=[ORPHAN])
    assert Owners([orphaning, child]).due() == [Disown(child, "owner")]
    assert Owners([orphaning]).due() == [Release(orphaning, ORPHAN)]
