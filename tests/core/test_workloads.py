"""Which Workloads follow from Dataplanes, and the step towards them."""

from koguma.core import pipeline, workloads
from koguma.core.services import CreateObject, DeleteObject
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.resource import Key
from tests.core.destinations import database, stored, stored_dataplane

SPEC = stored_dataplane("x", "web").spec


def proxy(name, workload="", **more):
    own = {"kuma.io/workload": workload} if workload else {}
    return stored("Dataplane", name, SPEC, labels=own, **more)


def generated(name, **more):
    own = {"kuma.io/managed-by": workloads.GENERATOR}
    return stored("Workload", name, {}, labels=own, **more)


def key(name, namespace=""):
    return Key("Workload", "shop", "east", namespace, name)


def plan(db):
    return workloads.plan(workloads.desired(db, "shop"), workloads.stored(db, "shop"), "east")


def test_labels_name_workloads_and_annotations_where_there_is_no_label():
    noted = {"annotations": {"kuma.io/workload": "noted"}}
    db = database(
        proxy("a", "backend"),
        proxy("b", "backend", **noted),
        proxy("c", **noted),
        proxy("d", "spaced", namespace="team"),
        proxy("e", "foreign", zone="west"),
        proxy("f"),
    )
    found = workloads.desired(db, "shop")
    assert found.workloads == (key("backend"), key("noted"), key("spaced", "team"))
    assert [each.name for each in workloads.members(db, key("backend"))] == ["a", "b"]
    assert (
        workloads.desired(
            database(proxy("a", "b"), control_plane=ControlPlaneInfo(mode=Mode.GLOBAL)), "shop"
        ).workloads
        == ()
    )


def test_a_name_that_is_no_label_of_a_host_name_is_a_problem():
    found = workloads.desired(database(proxy("a", "back.end"), proxy("b", "ok")), "shop")
    assert found.workloads == (key("ok"),)
    assert [(each.about.name, each.rule) for each in found.problems] == [("a", "workload-name")]


def test_missing_workloads_are_created_and_unnamed_ones_deleted():
    left, foreign = generated("left"), generated("foreign", zone="west")
    db = database(proxy("a", "new", namespace="team"), left, foreign, stored("Workload", "by-hand", {}))
    create, remove = plan(db)
    assert isinstance(create, CreateObject)
    assert (create.key, create.document["name"]) == (key("new", "team"), "new.team")
    assert create.document["labels"] == {
        "kuma.io/managed-by": workloads.GENERATOR,
        "k8s.kuma.io/namespace": "team",
    }
    assert remove == DeleteObject(left)


def test_a_name_that_is_taken_by_another_object_is_left_alone():
    holder = stored("Workload", "other", {}, core_name="backend")
    assert plan(database(proxy("a", "backend"), holder)) == ()


def test_one_more_proxy_of_a_workload_changes_nothing_but_its_members():
    db = database(proxy("a", "backend"), generated("backend"))
    before = workloads.desired(db, "shop")
    db.watch(workloads.desired, "shop")
    pipeline.take(db, [proxy("b", "backend")])
    assert db.changed() == []
    assert workloads.desired(db, "shop") == before
    assert len(workloads.members(db, key("backend"))) == 2
    pipeline.take(db, [], [proxy("a").key, proxy("b").key])
    assert plan(db) == (DeleteObject(generated("backend")),)
