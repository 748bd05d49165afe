"""Appliers say what they want: it is merged, owned, shared, refused, and goes when nobody wants it."""

import copy

import pytest

from koguma.kube import server_side_apply
from koguma.kube.server_side_apply import FieldConflicts
from koguma.model.errors import BadRequest, Invalid
from tests.kube.ownership import OTHER_VERSION, SCHEMA, Thing, at, config, stored


def test_an_apply_creates_what_is_not_there():
    thing = Thing().apply("one", config({"size": 1}, {"labels": {"a": "b"}}, status={"ready": True}))
    assert thing.document == {
        **config({"size": 1}),
        "metadata": {
            "name": "x",
            "labels": {"a": "b"},
            "managedFields": [
                {
                    "manager": "one",
                    "operation": "Apply",
                    "apiVersion": "kuma.io/v1alpha1",
                    "time": at(1),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:size": {}}},
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{size: 1, limits: {low: 1}}", [".spec.limits.low", ".spec.size"]),
        ("{selector: {a: 1, b: 2}, steps: [x, y]}", [".spec.selector", ".spec.steps"]),
        ("{tags: [b, a]}", ['.spec.tags[="a"]', '.spec.tags[="b"]']),
        ("{extra: {a: {b: 1}}, free: {c: [1]}}", [".spec.extra.a.b", ".spec.free.c"]),
        ("{limits: {}, tags: [], color: null}", [".spec.color", ".spec.limits", ".spec.tags"]),
        (
            "{ports: [{port: 80, name: http}]}",
            [
                '.spec.ports[port=80,protocol="tcp"].name',
                '.spec.ports[port=80,protocol="tcp"].port',
            ],
        ),
        ("{}", [".spec"]),
    ],
)
def test_an_applier_owns_what_it_says(spec, expected):
    assert Thing().apply("one", spec).owners == {"one/Apply": expected}


def test_items_and_entries_of_maps_are_owned_beside_what_is_in_them():
    owned = Thing().apply("one", "{ports: [{port: 80}], extra: {a: {b: 1}}}").entries[0]["fieldsV1"]
    assert owned["f:spec"]["f:ports"] == {'k:{"port":80,"protocol":"tcp"}': {".": {}, "f:port": {}}}
    assert owned["f:spec"]["f:extra"] == {"f:a": {".": {}, "f:b": {}}}


@pytest.mark.parametrize(
    ("live", "sent", "expected"),
    [
        ("{size: 1}", "{color: red}", "{size: 1, color: red}"),
        ("{limits: {low: 1}}", "{limits: {high: 2}}", "{limits: {low: 1, high: 2}}"),
        ("{tags: [a, b]}", "{tags: [c]}", "{tags: [a, b, c]}"),
        ("{tags: [a, b]}", "{tags: [b, c, a]}", "{tags: [b, c, a]}"),
        ("{tags: [a, x, b]}", "{tags: [a, c, b]}", "{tags: [a, x, c, b]}"),
        ("{tags: [x, a, y, b, z]}", "{tags: [b, a]}", "{tags: [x, b, a, y, z]}"),
        (
            "{ports: [{port: 1, name: a}, {port: 2, name: b}]}",
            "{ports: [{port: 2, deep: {note: n}}, {port: 3}]}",
            "{ports: [{port: 1, name: a}, {port: 2, name: b, deep: {note: n}}, {port: 3}]}",
        ),
        (
            "{ports: [{port: 1, protocol: tcp}]}",
            "{ports: [{port: 1}]}",
            "{ports: [{port: 1, protocol: tcp}]}",
        ),
        ("{free: {a: {b: 1}}}", "{free: {a: {c: [2]}}}", "{free: {a: {b: 1, c: [2]}}}"),
        ("{limits: {low: 1}}", "{limits: {}}", "{limits: {low: 1}}"),
    ],
)
def test_what_is_said_is_merged_over_what_is_there(live, sent, expected):
    thing = Thing().apply("one", live).apply("two", sent)
    assert thing.spec == config(expected)["spec"]


@pytest.mark.parametrize(
    ("live", "sent", "expected"),
    [
        ("{selector: {a: 1}}", "{selector: {b: 2}}", "{selector: {b: 2}}"),
        ("{steps: [a, b]}", "{steps: [c]}", "{steps: [c]}"),
        ("{free: {a: 1}}", "{free: [1]}", "{free: [1]}"),
        ("{limits: {low: 1}}", "{limits: null}", "{limits: null}"),
    ],
)
def test_a_whole_value_is_replaced_and_that_is_a_conflict(live, sent, expected):
    thing = Thing().apply("one", live)
    with pytest.raises(FieldConflicts):
        thing.apply("two", sent)
    assert thing.apply("two", sent, force=True).spec == config(expected)["spec"]
    assert list(thing.owners) == ["two/Apply"]


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("{size: 1, color: red}", "{size: 1}", "{size: 1}"),
        ("{size: 1, limits: {low: 1}}", "{size: 1}", "{size: 1}"),
        ("{limits: {low: 1, high: 2}}", "{limits: {low: 1}}", "{limits: {low: 1}}"),
        ("{tags: [a, b], size: 1}", "{size: 1}", "{size: 1}"),
        ("{tags: [a, b]}", "{tags: []}", "{tags: []}"),
        ("{limits: {low: 1}}", "{limits: {}}", "{limits: {}}"),
        ("{ports: [{port: 1}, {port: 2, name: b}]}", "{ports: [{port: 2}]}", "{ports: [{port: 2}]}"),
        ("{extra: {a: {b: 1}, c: {}}}", "{extra: {a: {}}}", "{extra: {a: {}}}"),
        ("{free: {a: {b: {c: 1}}, d: 1}}", "{free: {d: 1}}", "{free: {d: 1}}"),
        ("{size: 1}", "{}", "{}"),
    ],
)
def test_what_an_applier_leaves_out_goes(first, then, expected):
    assert Thing().apply("one", first).apply("one", then).spec == config(expected)["spec"]


def test_a_whole_spec_that_is_left_out_goes():
    thing = Thing().apply("one", "{size: 1}").apply("one")
    assert "spec" not in thing.document
    assert thing.entries == []


@pytest.mark.parametrize(
    ("own", "theirs", "expected"),
    [
        ("{size: 1, color: red}", "{color: red}", "{color: red}"),
        ("{tags: [a, b]}", "{tags: [b]}", "{tags: [b]}"),
        ("{ports: [{port: 1, name: a}]}", "{ports: [{port: 1}]}", "{ports: [{port: 1}]}"),
        (
            "{ports: [{port: 1, name: a}]}",
            "{ports: [{port: 1, deep: {note: n}}]}",
            "{ports: [{port: 1, deep: {note: n}}]}",
        ),
        ("{limits: {low: 1}}", "{limits: {high: 1}}", "{limits: {high: 1}}"),
        ("{limits: {low: 1}}", "{limits: {}}", "{limits: {}}"),
        ("{extra: {a: {b: 1}}}", "{extra: {a: {c: 1}}}", "{extra: {a: {c: 1}}}"),
    ],
)
def test_what_somebody_else_owns_stays(own, theirs, expected):
    thing = Thing().apply("one", own).apply("two", theirs).apply("one")
    assert thing.spec == config(expected)["spec"]
    assert list(thing.owners) == ["two/Apply"]


def test_what_an_update_has_set_stays_when_an_applier_leaves_it():
    thing = Thing().apply("one", "{ports: [{port: 1, name: a}], size: 1}")
    thing.update("editor", {**thing.document, "spec": {"size": 1, "ports": [{"port": 1, "name": "b"}]}})
    assert thing.owners["editor/Update"] == ['.spec.ports[port=1,protocol="tcp"].name']
    assert thing.apply("one", "{size: 1}").spec == {"size": 1, "ports": [{"port": 1, "name": "b"}]}


def test_what_nobody_owns_goes_with_an_item_and_stays_in_an_object():
    thing = Thing().apply("one", "{size: 1, ports: [{port: 1}], limits: {low: 1}}")
    defaulted = {"size": 1, "ports": [{"port": 1, "protocol": "tcp"}], "limits": {"low": 1, "high": 9}}
    thing.document["spec"] = defaulted
    assert thing.apply("one", "{size: 1}").spec == {"size": 1, "limits": {"high": 9}}


def test_equal_values_are_shared():
    thing = Thing().apply("one", "{size: 1}").apply("two", "{size: 1}")
    assert thing.owners == {"one/Apply": [".spec.size"], "two/Apply": [".spec.size"]}
    with pytest.raises(FieldConflicts):
        thing.apply("one", "{size: 2}")
    assert thing.apply("one").spec == {"size": 1}


def test_force_takes_the_field_from_all():
    thing = Thing().apply("one", "{size: 1, color: red}").apply("two", "{size: 1}")
    thing.apply("three", "{size: 3}", force=True)
    assert thing.spec == {"size": 3, "color": "red"}
    assert thing.owners == {"one/Apply": [".spec.color"], "three/Apply": [".spec.size"]}


def test_one_conflict_is_told_as_kubernetes_tells_it():
    thing = Thing().apply("one", "{size: 1}")
    with pytest.raises(FieldConflicts) as refused:
        thing.apply("two", "{size: 2}")
    assert refused.value.status == 409
    assert refused.value.detail == 'Apply failed with 1 conflict: conflict with "one": .spec.size'
    assert refused.value.conflicts == (
        server_side_apply.FieldConflict(".spec.size", "one", 'conflict with "one"'),
    )
    (cause,) = refused.value.violations
    assert (cause.field, cause.rule) == (".spec.size", "FieldManagerConflict")


def test_many_conflicts_are_told_manager_by_manager():
    thing = Thing().apply("one", "{size: 1}").update("editor", "{size: 1, color: red, tags: [a]}")
    thing.update("status-keeper", {**thing.document, "status": {"ready": True}}, subresource="status")
    with pytest.raises(FieldConflicts) as refused:
        thing.apply("two", config("{size: 2, color: blue, tags: [a]}", status={"ready": False}))
    assert refused.value.detail == (
        "Apply failed with 2 conflicts: "
        'conflicts with "editor" using kuma.io/v1alpha1 at 2026-01-01T00:02:00Z:\n'
        "- .spec.color\n"
        'conflicts with "one":\n'
        "- .spec.size"
    )
    assert [each.field for each in refused.value.conflicts] == [".spec.color", ".spec.size"]


def test_an_applier_conflicts_with_its_own_updates():
    thing = Thing().update("kubectl", "{size: 1}")
    with pytest.raises(FieldConflicts, match=r'conflict with "kubectl" using kuma\.io/v1alpha1 at'):
        thing.apply("kubectl", "{size: 2}")


def test_applying_the_same_again_changes_nothing():
    thing = Thing().apply("one", "{size: 1, tags: [b, a]}")
    before = thing.document
    assert thing.apply("one", "{tags: [b, a], size: 1}").document == before


def test_changing_a_value_changes_the_time_and_keeping_the_fields_does_not_hinder_it():
    thing = Thing().apply("one", "{size: 1}").apply("one", "{size: 2}")
    assert [each["time"] for each in thing.entries] == [at(2)]


def test_what_was_there_before_anybody_was_tracked_belongs_to_somebody():
    thing = Thing(stored("{size: 1, color: red}", {"labels": {"a": "b"}}, status={"ready": True}))
    thing.apply("one", "{size: 1}")
    assert thing.owners == {
        "one/Apply": [".spec.size"],
        "before-first-apply/Update": [".metadata.labels.a", ".spec.color", ".spec.size"],
    }
    with pytest.raises(FieldConflicts, match="before-first-apply"):
        thing.apply("one", "{size: 2}")


def test_what_the_server_keeps_is_not_the_appliers():
    live = stored("{size: 1}", status={"ready": True})
    sent = config("{size: 1}", {"creationTimestamp": None, "uid": "other", "resourceVersion": "1"})
    document = Thing(live).apply("one", {**sent, "status": {"ready": False}}).document
    assert {**document["metadata"], "managedFields": None} == {**live["metadata"], "managedFields": None}
    assert document["status"] == {"ready": True}
    assert document["kri"] == live["kri"]
    assert list(document) == list(live)


def test_who_applies_status_owns_only_status():
    live = Thing().apply("one", "{size: 1}").document
    sent = config("{size: 5}", {"labels": {"a": "b"}}, status={"ready": True})
    writer = server_side_apply.FieldManager("keeper", "kuma.io/v1alpha1", at(9), "status")
    document = server_side_apply.applied(live, sent, writer, SCHEMA, force=False)
    assert document["spec"] == {"size": 1}
    assert document["status"] == {"ready": True}
    assert "labels" not in document["metadata"]
    keeper = document["metadata"]["managedFields"][1]
    assert keeper["subresource"] == "status"
    assert keeper["fieldsV1"] == {"f:status": {"f:ready": {}}}
    gone = server_side_apply.applied(document, config(), writer, SCHEMA, force=False)
    assert gone == live


def test_an_applier_is_the_same_in_another_version():
    thing = Thing().apply("one", "{size: 1, color: red}").apply("one", "{size: 1}", version=OTHER_VERSION)
    assert thing.spec == {"size": 1}
    assert [each["apiVersion"] for each in thing.entries] == [OTHER_VERSION]
    thing.apply("one", "{size: 1}")
    assert [each["apiVersion"] for each in thing.entries] == ["kuma.io/v1alpha1"]


def test_fields_of_another_version_hold_where_the_document_has_them():
    thing = Thing().apply("one", "{size: 1, color: red}")
    thing.document["spec"] = {"size": 1, "colour": "red"}
    thing.apply("two", "{size: 1}", version=OTHER_VERSION)
    assert thing.owners == {"one/Apply": [".spec.size"], "two/Apply": [".spec.size"]}
    assert {each["apiVersion"] for each in thing.entries} == {"kuma.io/v1alpha1", OTHER_VERSION}
    with pytest.raises(FieldConflicts):
        thing.apply("two", "{size: 2}", version=OTHER_VERSION)


@pytest.mark.parametrize("sent", [[], [{}], [{"manager": "x"}]], ids=str)
def test_an_applier_does_not_say_who_owns_what(sent):
    with pytest.raises(BadRequest, match=r"metadata\.managedFields must be nil"):
        Thing().apply("one", config("{size: 1}", {"managedFields": sent}))


def test_an_applier_has_a_name():
    with pytest.raises(Invalid, match="fieldManager: Required value: is required for apply patch"):
        Thing().apply("", "{size: 1}")


@pytest.mark.parametrize(
    ("name", "rules"),
    [("kubectl", []), ("", []), ("ä" * 128, []), ("x" * 129, ["length"]), ("a\nb", ["format"])],
)
def test_the_name_of_a_manager_is_short_and_can_be_printed(name, rules):
    found = []
    try:
        server_side_apply.check_manager(name)
    except Invalid as error:
        found = [each.rule for each in error.violations]
    assert found == rules


def test_items_that_cannot_be_told_apart_are_refused():
    with pytest.raises(Invalid, match=r"spec\.ports\[1\]: Duplicate value"):
        Thing().apply("one", "{ports: [{port: 1}, {port: 1}]}")


def test_nothing_that_is_given_changes():
    live = Thing().apply("one", "{size: 1, tags: [a], ports: [{port: 1}]}").document
    sent = config("{size: 2, tags: [b], ports: [{port: 2}]}")
    copies = copy.deepcopy((live, sent))
    Thing(live).apply("one", sent).apply("two", sent)
    Thing(live).update("three", {**live, "spec": sent["spec"]})
    assert (live, sent) == copies


def owned_whole(*managers):
    """A document whose managedFields are of a time when its list of ports was one field."""
    thing = Thing(stored("{size: 1, ports: [{port: 80, name: a}, {port: 81, name: b}]}"))
    thing.document["metadata"]["managedFields"] = [
        {
            "manager": name,
            "operation": operation,
            "apiVersion": "kuma.io/v1alpha1",
            "time": at(0),
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:ports": {}}},
        }
        for name, operation in managers
    ]
    return thing


def test_who_owned_a_whole_list_owns_its_items():
    thing = owned_whole(("one", "Apply")).apply("one", "{ports: [{port: 81, name: b}]}")
    assert thing.spec["ports"] == [{"port": 81, "name": "b"}]
    thing = owned_whole(("one", "Apply"), ("two", "Update"))
    with pytest.raises(FieldConflicts) as conflicts:
        thing.apply("three", "{ports: [{port: 80, name: c}]}")
    fields = {(each.manager, each.field) for each in conflicts.value.conflicts}
    place = '.spec.ports[port=80,protocol="tcp"].name'
    assert fields == {("one", place), ("two", place)}
    thing.apply("three", "{ports: [{port: 82}]}")
    assert [port["port"] for port in thing.spec["ports"]] == [80, 81, 82]
    thing.apply("one", "{ports: [{port: 80, name: a}]}")
    assert [port["port"] for port in thing.spec["ports"]] == [80, 81, 82]  # two owns 81 as well


def test_who_owns_only_the_list_does_not_get_the_items_of_others():
    thing = Thing().update("one", "{ports: [{port: 80}]}")
    thing.apply("two", "{ports: [{port: 80}, {port: 81}]}", force=True)
    thing.update("three", "{ports: [{port: 80}, {port: 81, name: x}]}")
    before = thing.owners
    thing.update("four", "{size: 1, ports: [{port: 80}, {port: 81, name: x}]}")
    assert {name: owned for name, owned in thing.owners.items() if name != "four/Update"} == before


def test_a_stored_list_with_two_items_of_one_key_is_one_value():
    thing = Thing(stored("{ports: [{port: 80, name: a}, {port: 80, name: b}]}"))
    assert thing.apply("one", "{size: 1}").spec["ports"] == [
        {"port": 80, "name": "a"},
        {"port": 80, "name": "b"},
    ]
    replaced = thing.apply("one", "{size: 1, ports: [{port: 81}]}", force=True)
    assert replaced.spec["ports"] == [{"port": 81}]
