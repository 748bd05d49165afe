"""Writes that are no apply: what they change is the writer's, and the list stays short and in order."""

import pytest

from koguma.kube import managed_fields
from koguma.model.errors import Invalid
from tests.kube.ownership import OTHER_VERSION, Thing, at, config, stored


def entry(manager="m", operation="Update", **more):
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "kuma.io/v1alpha1",
        "time": at(0),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:size": {}}},
        **more,
    }


def test_who_creates_owns_everything_and_the_containers():
    sent = config("{size: 1, limits: {low: 1}, tags: [a]}", {"labels": {"a": "b"}, "generateName": "x-"})
    assert Thing().update("creator", sent).entries == [
        {
            "manager": "creator",
            "operation": "Update",
            "apiVersion": "kuma.io/v1alpha1",
            "time": at(1),
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                "f:spec": {
                    ".": {},
                    "f:limits": {".": {}, "f:low": {}},
                    "f:size": {},
                    "f:tags": {".": {}, 'v:"a"': {}},
                },
            },
        }
    ]


@pytest.mark.parametrize(
    ("spec", "creator", "editor"),
    [
        ("{size: 2, color: red}", [".spec.color"], [".spec.size"]),
        ("{size: 1, color: red, tags: [a]}", [".spec.color", ".spec.size"], ['.spec.tags[="a"]']),
        ("{size: 1}", [".spec.size"], None),
        ("{size: true, color: red}", [".spec.color"], [".spec.size"]),
        ("{size: {a: 1}, color: red}", [".spec.color"], [".spec.size"]),
        ("{size: 1, color: red, free: {a: {b: 1}}}", [".spec.color", ".spec.size"], [".spec.free.a.b"]),
        ("{size: 1, color: null}", [".spec.size"], [".spec.color"]),
    ],
)
def test_who_changes_a_field_takes_it(spec, creator, editor):
    thing = Thing().update("creator", "{size: 1, color: red}").update("editor", spec)
    expected = {"creator/Update": creator, "editor/Update": editor}
    assert thing.owners == {name: owned for name, owned in expected.items() if owned}


def test_who_removes_a_container_removes_all_claims_to_what_was_in_it():
    thing = Thing().apply("one", "{limits: {low: 1}, size: 1}").update("two", "{size: 1}")
    assert thing.owners == {"one/Apply": [".spec.size"]}


def test_a_leaf_and_a_container_can_take_each_others_place():
    thing = Thing().update("one", "{free: {a: {b: 1}}}").update("two", "{free: {a: 5}}")
    assert thing.owners == {"one/Update": [".spec.free"], "two/Update": [".spec.free.a"]}
    thing.update("three", "{free: {a: {c: 1}}}")
    assert thing.owners == {"one/Update": [".spec.free"], "three/Update": [".spec.free.a.c"]}


def test_the_order_of_named_items_belongs_to_nobody():
    thing = Thing().update("one", "{tags: [a, b], ports: [{port: 1}, {port: 2}]}")
    before = thing.entries
    assert thing.update("two", "{tags: [b, a], ports: [{port: 2}, {port: 1}]}").entries == before


def test_a_write_that_changes_nothing_leaves_the_list_alone():
    thing = Thing().update("one", "{size: 1}")
    before = thing.entries
    assert thing.update("two", "{size: 1}").update("one", "{size: 1}").entries == before


def test_an_updater_has_one_entry_for_each_version():
    thing = Thing().update("one", "{size: 1}").update("one", "{size: 2}").update("one", "{size: 2, color: a}")
    assert [(each["time"], each["apiVersion"]) for each in thing.entries] == [(at(3), "kuma.io/v1alpha1")]
    thing.update("one", "{size: 3, color: a}", version=OTHER_VERSION)
    assert [each["apiVersion"] for each in thing.entries] == ["kuma.io/v1alpha1", OTHER_VERSION]
    assert [each["time"] for each in thing.entries] == [at(3), at(4)]


def test_an_applier_that_also_updates_has_two_entries():
    thing = Thing().apply("one", "{size: 1, color: red}").update("one", "{size: 2, color: red}")
    assert thing.owners == {"one/Apply": [".spec.color"], "one/Update": [".spec.size"]}


def test_status_is_tracked_for_writers_of_status_only():
    thing = Thing().update("one", config("{size: 1}", status={"ready": False}))
    thing.update(
        "two", config("{size: 9}", {"labels": {"a": "b"}}, status={"ready": True}), subresource="status"
    )
    one, two = thing.entries
    assert one["fieldsV1"] == {"f:spec": {".": {}, "f:size": {}}}
    assert two["fieldsV1"] == {"f:status": {"f:ready": {}}}
    assert two["subresource"] == "status"
    assert thing.update("one", {**thing.document, "status": None}).entries == [one, two]


def test_fields_of_another_version_that_the_document_lacks_are_given_up():
    thing = Thing().update("one", "{size: 1, color: red}")
    thing.document["spec"] = {"size": 1, "colour": "red"}
    thing.update("two", "{size: 1, colour: blue}", version=OTHER_VERSION)
    assert thing.owners == {"one/Update": [".spec.size"], "two/Update": [".spec.colour"]}


def test_what_is_not_tracked_stays_so():
    thing = Thing(stored("{size: 1}")).update("one", stored("{size: 2}"))
    assert thing.entries == []


@pytest.mark.parametrize("blank", [config(), config("{}"), config("{limits: {}, tags: []}")], ids=str)
def test_what_holds_nothing_yet_is_tracked_from_its_first_field_on(blank):
    thing = Thing(blank).update("one", {**blank, "spec": {"size": 1}})
    assert thing.owners["one/Update"] == [".spec.size"]


def test_an_empty_list_takes_nobody_s_fields_away():
    thing = Thing().update("one", "{size: 1}")
    thing.update("one", config("{size: 1}", {"managedFields": []}))
    assert thing.owners["one/Update"] == [".spec.size"]


def test_a_writer_can_end_the_tracking():
    thing = Thing().update("one", "{size: 1}")
    thing.update("one", config("{size: 1}", {"managedFields": [{}]}))
    assert thing.entries == []
    assert thing.update("two", "{size: 2}").entries == []
    assert list(thing.apply("three", "{size: 2}").owners) == ["three/Apply", "before-first-apply/Update"]


@pytest.mark.parametrize("sent", [[{}], []], ids=str)
def test_what_is_created_is_tracked_whatever_it_says(sent):
    assert list(Thing().update("one", config("{size: 1}", {"managedFields": sent})).owners) == ["one/Update"]


def test_a_writer_can_hand_fields_over():
    thing = Thing().update("kubectl-client-side-apply", "{size: 1, color: red}")
    (old,) = thing.entries
    new = {**old, "manager": "kubectl", "operation": "Apply"}
    thing.update("kubectl", config("{size: 1, color: red}", {"managedFields": [new]}))
    assert thing.entries == [new]
    assert thing.apply("kubectl", "{size: 1}").spec == {"size": 1}


def test_what_a_writer_says_of_owners_holds_before_what_it_changes():
    thing = Thing().update("one", "{size: 1, color: red}")
    sent = [entry("two", fieldsV1={"f:spec": {"f:size": {}, "f:color": {}}})]
    thing.update("three", config("{size: 2, color: red}", {"managedFields": sent}))
    assert thing.owners == {"two/Update": [".spec.color"], "three/Update": [".spec.size"]}


def test_a_writer_of_a_subresource_cannot_say_who_owns_what():
    thing = Thing().update("one", "{size: 1}")
    before = thing.entries
    sent = config("{size: 1}", {"managedFields": [entry("two")]})
    assert thing.update("two", sent, subresource="status").entries == before


def test_two_entries_of_one_identity_become_one():
    thing = Thing().update("one", "{size: 1}")
    sent = [entry("two"), entry("two", fieldsV1={"f:spec": {"f:color": {}}}), entry("three", fieldsV1={})]
    thing.update("one", config("{size: 1}", {"managedFields": sent}))
    assert thing.owners == {"two/Update": [".spec.color", ".spec.size"]}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, [("metadata.managedFields", "type")]),
        ([5], [("metadata.managedFields[0]", "type")]),
        ([entry(operation="Steal")], [("metadata.managedFields[0].operation", "enum")]),
        ([entry(), entry(fieldsType="V2")], [("metadata.managedFields[1].fieldsType", "enum")]),
        ([entry("x" * 129)], [("metadata.managedFields[0].manager", "length")]),
        ([entry(manager=5)], [("metadata.managedFields[0].manager", "type")]),
        ([entry(time="soon")], [("metadata.managedFields[0].time", "format")]),
        ([entry(fieldsV1={"spec": {}})], [("metadata.managedFields[0].fieldsV1", "format")]),
        ([entry(fieldsV1=[])], [("metadata.managedFields[0].fieldsV1", "format")]),
        (
            [{}, {}],
            [
                (f"metadata.managedFields[{n}].{f}", "enum")
                for n in (0, 1)
                for f in ("operation", "fieldsType")
            ],
        ),
    ],
    ids=str,
)
def test_a_list_that_is_none_is_refused(sent, expected):
    thing = Thing().update("one", "{size: 1}")
    with pytest.raises(Invalid) as refused:
        thing.update("one", config("{size: 1}", {"managedFields": sent}))
    assert [(each.field, each.rule) for each in refused.value.violations] == expected


def test_only_the_newest_updaters_are_told_apart():
    thing = Thing().apply("applier", "{size: 1}")
    for number in range(12):
        document = thing.document
        labels = {**document["metadata"].get("labels", {}), f"l{number}": "x"}
        thing.update(f"m{number}", {**document, "metadata": {**document["metadata"], "labels": labels}})
    assert [each["manager"] for each in thing.entries] == [
        "applier",
        "ancient-changes",
        *(f"m{number}" for number in range(3, 12)),
    ]
    assert thing.owners["ancient-changes/Update"] == [f".metadata.labels.l{number}" for number in range(3)]
    assert thing.entries[1]["time"] == at(4)


def test_ancient_changes_are_kept_apart_by_version_and_subresource():
    found = [
        entry(f"m{number:02}", time=at(number), apiVersion=version, subresource=sub)
        for number, (version, sub) in enumerate(
            [("v1", ""), ("v2", ""), ("v1", "status"), *[("v1", "")] * 10]
        )
    ]
    listed = managed_fields.encoded(managed_fields.checked(found))
    ancient = [each for each in listed if each["manager"] == "ancient-changes"]
    assert [(each["apiVersion"], each.get("subresource")) for each in ancient] == [
        ("v2", None),
        ("v1", "status"),
        ("v1", None),
    ]
    assert len(listed) == 10


def test_entries_are_sorted_by_operation_then_time_then_manager():
    found = [
        entry("a", time=at(3)),
        entry("c", time=at(1)),
        entry("b", time=at(1)),
        entry("z", "Apply", time=at(9)),
        entry("y", "Apply", time=at(1)),
    ]
    assert [each["manager"] for each in managed_fields.encoded(managed_fields.checked(found))] == [
        "y",
        "z",
        "b",
        "c",
        "a",
    ]
