"""Owners: what belongs to an object goes with it, waits for it, or is let go."""

from koguma.kube.owner_graph import (
    FOREGROUND,
    ORPHAN,
    DeleteDependent,
    OwnerGraph,
    RemoveFinalizer,
    RemoveOwnerReference,
)
from koguma.model.resource import Meta, Resource
from tests.kube_client import CORE, KOGUMA, accepted, timeout_spec
from tests.waiting import until


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


def test_what_belongs_to_an_object_goes_with_it(config_maps):
    timeouts, leases = (
        config_maps.other("kuma.io/v1alpha1", "MeshTimeout"),
        config_maps.other("coordination.k8s.io/v1", "Lease"),
    )
    owner = accepted(config_maps.create("owner"))
    child = accepted(timeouts.create("child", metadata=owned_by(owner), spec=timeout_spec()))
    accepted(leases.create("grandchild", metadata=owned_by(child), spec={}))
    accepted(config_maps.create("free"))
    assert config_maps.delete("owner", {"propagationPolicy": "Background"}).json["status"] == "Success"
    until(lambda: not timeouts.exists("child") and not leases.exists("grandchild"))
    assert config_maps.exists("free")


def test_the_version_in_a_reference_does_not_matter(config_maps):
    timeouts = config_maps.other("kuma.io/v1alpha1", "MeshTimeout")
    owner = accepted(timeouts.create("owner", spec=timeout_spec()))
    for name, version in (("a", "kuma.io/v1alpha1"), ("b", KOGUMA)):
        accepted(config_maps.create(name, metadata=owned_by({**owner, "apiVersion": version})))
    accepted(config_maps.create("last"))
    assert timeouts.other(KOGUMA).delete("owner").status == 200
    until(lambda: not config_maps.exists("a") and not config_maps.exists("b"))
    assert config_maps.exists("last")


def test_the_last_owner_takes_it_along(config_maps):
    owners = [accepted(config_maps.create(name)) for name in ("one", "two")]
    accepted(config_maps.create("child", metadata=owned_by(*owners)))
    assert config_maps.delete("one").status == 200
    accepted(config_maps.create("later", metadata=owned_by(owners[0])))
    until(lambda: not config_maps.exists("later"))  # then the first deletion has been looked at
    until(lambda: len(config_maps.get("child")["metadata"]["ownerReferences"]) == 1)
    assert config_maps.get("child")["metadata"]["ownerReferences"][0]["name"] == "two"
    assert config_maps.delete("two").status == 200
    until(lambda: not config_maps.exists("child"))


def test_all_references_to_owners_that_are_gone_go(config_maps):
    owners = [accepted(config_maps.create(name)) for name in ("one", "two", "three")]
    dead = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dead", "uid": "never-was"}}
    child = accepted(config_maps.create("child", metadata=owned_by(dead, *owners)))
    for name in ("one", "three"):
        assert config_maps.delete(name).status == 200
    until(lambda: len(config_maps.get("child")["metadata"]["ownerReferences"]) == 1)
    assert config_maps.get("child")["metadata"]["ownerReferences"] == owned_by(owners[1])["ownerReferences"]
    assert config_maps.get("child")["metadata"]["uid"] == child["metadata"]["uid"]


def test_an_owner_in_the_foreground_lets_go_what_another_one_owns(config_maps):
    owners = [accepted(config_maps.create(name)) for name in ("one", "two")]
    accepted(config_maps.create("child", metadata=owned_by(*owners, blocks=True)))
    accepted(config_maps.delete("one", {"propagationPolicy": "Foreground"}))
    until(lambda: not config_maps.exists("one"))
    assert [owner["name"] for owner in config_maps.get("child")["metadata"]["ownerReferences"]] == ["two"]


def test_an_owner_in_another_namespace_is_none(config_maps):
    elsewhere = config_maps.other(namespace=f"{config_maps.namespace}-other")
    owner = accepted(elsewhere.create("owner"))
    accepted(config_maps.create("child", metadata=owned_by(owner)))
    until(lambda: not config_maps.exists("child"))
    assert elsewhere.exists("owner")


def test_objects_of_a_mesh_s_own_namespace_are_of_one_namespace(config_maps, mesh):
    """What has no namespace of its own is where the form shows it."""
    here = config_maps.other(namespace=f"mesh-{mesh}")
    timeouts = here.other("kuma.io/v1alpha1", "MeshTimeout")
    owner = accepted(here.create("owner"))
    accepted(timeouts.create("child", metadata=owned_by(owner), spec=timeout_spec()))
    policy = accepted(timeouts.create("policy", spec=timeout_spec()))
    accepted(here.create("its", metadata=owned_by(policy)))
    accepted(config_maps.create("foreign", metadata=owned_by(policy)))
    until(lambda: not config_maps.exists("foreign"))
    assert timeouts.exists("child")
    assert here.exists("its")
    assert here.delete("owner").status == 200
    until(lambda: not timeouts.exists("child"))


def test_what_lives_everywhere_may_own_everywhere(config_maps):
    roles = config_maps.other("rbac.authorization.k8s.io/v1", "ClusterRole", namespace="")
    owner = accepted(roles.create(config_maps.namespace, rules=[]))
    accepted(config_maps.create("child", metadata=owned_by(owner)))
    accepted(
        config_maps.create("orphan", metadata=owned_by({**owner, "metadata": {"name": "x", "uid": "gone"}}))
    )
    until(lambda: not config_maps.exists("orphan"))
    assert config_maps.exists("child")
    assert roles.delete(config_maps.namespace).status == 200
    until(lambda: not config_maps.exists("child"))


def test_an_owner_in_the_foreground_waits_for_those_that_block_it(config_maps):
    owner = accepted(config_maps.create("owner"))
    held = {"finalizers": ["example.com/hold"]}
    accepted(config_maps.create("blocks", metadata={**owned_by(owner, blocks=True), **held}))
    accepted(config_maps.create("free", metadata={**owned_by(owner), **held}))
    ends = accepted(config_maps.delete("owner", {"propagationPolicy": "Foreground"}))
    assert ends["metadata"]["finalizers"] == ["foregroundDeletion"]
    for name in ("blocks", "free"):
        until(lambda name=name: "deletionTimestamp" in config_maps.get(name)["metadata"])
    assert config_maps.exists("owner")
    accepted(config_maps.patch("blocks", {"metadata": {"finalizers": None}}))
    until(lambda: not config_maps.exists("owner"))
    assert config_maps.exists("free")
    accepted(config_maps.patch("free", {"metadata": {"finalizers": None}}))


def test_a_whole_tree_goes_in_the_foreground(config_maps):
    root = accepted(config_maps.create("root"))
    branch = accepted(config_maps.create("branch", metadata=owned_by(root, blocks=True)))
    leaf = {**owned_by(branch, blocks=True), "finalizers": ["example.com/hold"]}
    accepted(config_maps.create("leaf", metadata=leaf))
    accepted(config_maps.delete("root", {"propagationPolicy": "Foreground"}))
    until(lambda: "deletionTimestamp" in config_maps.get("leaf")["metadata"])
    assert config_maps.exists("branch")
    assert config_maps.exists("root")
    accepted(config_maps.patch("leaf", {"metadata": {"finalizers": None}}))
    until(lambda: not config_maps.exists("root"))
    assert not config_maps.exists("branch")


def test_orphans_stay_and_know_no_owner_any_more(config_maps):
    owner, other = accepted(config_maps.create("owner")), accepted(config_maps.create("other"))
    accepted(config_maps.create("child", metadata=owned_by(owner, other)))
    accepted(config_maps.create("only", metadata=owned_by(owner)))
    ends = accepted(config_maps.delete("owner", {"propagationPolicy": "Orphan"}))
    assert ends["metadata"]["finalizers"] == ["orphan"]
    until(lambda: not config_maps.exists("owner"))
    assert config_maps.get("child")["metadata"]["ownerReferences"] == owned_by(other)["ownerReferences"]
    assert "ownerReferences" not in config_maps.get("only")["metadata"]


def test_a_namespace_that_belongs_to_something_is_emptied_before_it_goes(config_maps):
    spaces = config_maps.other(CORE, "Namespace", namespace="")
    roles = config_maps.other("rbac.authorization.k8s.io/v1", "ClusterRole", namespace="")
    owner = accepted(roles.create(config_maps.namespace, rules=[]))
    accepted(spaces.create(config_maps.namespace, metadata=owned_by(owner)))
    accepted(config_maps.create("inside", metadata={"finalizers": ["example.com/hold"]}))
    assert roles.delete(config_maps.namespace).status == 200
    until(lambda: spaces.get(config_maps.namespace)["status"]["phase"] == "Terminating")
    until(lambda: "deletionTimestamp" in config_maps.get("inside")["metadata"])
    accepted(config_maps.patch("inside", {"metadata": {"finalizers": None}}))
    until(lambda: not spaces.exists(config_maps.namespace))


# The rules alone.


def thing(uid, *owners, namespace="here", ends=False, finalizers=(), blocks=False):
    references = tuple({"uid": owner, "name": owner, "blockOwnerDeletion": blocks} for owner in owners)
    meta = Meta(tuple(finalizers), references, (), "2026-01-01T00:00:00Z" if ends else "")
    return Resource(kind="Thing", namespace=namespace, name=uid, core_name=uid, uid=uid, meta=meta)


def test_what_cannot_be_read_is_not_gone():
    child = thing("child", "owner")
    assert OwnerGraph([child]).due() == [DeleteDependent(child)]
    hidden = OwnerGraph([child], is_hidden=lambda reference: reference["name"] == "owner")
    assert hidden.due() == []


def test_what_lives_in_no_namespace_does_not_go_for_an_owner_that_lives_in_one():
    assert OwnerGraph([thing("owner"), thing("child", "owner", namespace="")]).due() == []


def test_each_suspect_is_looked_at_once():
    owner, child = thing("owner"), thing("child", "owner")
    owners = OwnerGraph([owner, child])
    assert owners.due() == []
    owners.drop(owner)
    assert owners.due() == [DeleteDependent(child)]
    assert owners.due() == []
    owners.suspect(child)
    assert owners.due() == [DeleteDependent(child)]


def test_the_order_of_arrival_does_not_matter():
    owner = thing("owner", ends=True, finalizers=[FOREGROUND])
    child, grandchild = thing("child", "owner", blocks=True), thing("grandchild", "child")
    for order in ([owner, child, grandchild], [grandchild, child, owner]):
        assert OwnerGraph(order).due() == [DeleteDependent(child, in_foreground=True)]
    gone = thing("child", "owner", blocks=True, ends=True, finalizers=["x"])
    assert OwnerGraph([owner, gone]).due() == []
    assert OwnerGraph([owner]).due() == [RemoveFinalizer(owner, FOREGROUND)]
    orphaning = thing("owner", ends=True, finalizers=[ORPHAN])
    assert OwnerGraph([orphaning, child]).due() == [RemoveOwnerReference(child, "owner")]
    assert OwnerGraph([orphaning]).due() == [RemoveFinalizer(orphaning, ORPHAN)]
