"""What `koguma diff` shows, and what it hides."""

from koguma.cli import comparison, kind_lookup

KINDS = kind_lookup.local_kinds()
STORED = {
    "type": "MeshTimeout",
    "mesh": "default",
    "name": "a",
    "labels": {"kuma.io/display-name": "a", "kuma.io/zone": "z", "team": "blue"},
    "creationTime": "2026-01-01T00:00:00Z",
    "modificationTime": "2026-01-01T00:00:00Z",
    "kri": "kri_mt_default_z__a_",
    "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}]},
}


def changed(stored, written, kind="MeshTimeout"):
    lines = list(comparison.lines("x", stored, written, KINDS[kind]))
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def test_only_what_differs_is_shown():
    written = {
        "type": "MeshTimeout",
        "name": "a",
        "labels": {"team": "red"},
        "spec": {"to": [{"default": {"idleTimeout": "2s"}, "targetRef": {"kind": "Mesh"}}]},
    }
    assert changed(STORED, written) == [
        "-  team: blue",
        "+  team: red",
        "-      idleTimeout: 1s",
        "+      idleTimeout: 2s",
    ]


def test_what_the_server_computes_is_no_difference():
    written = {name: STORED[name] for name in ("type", "name", "spec")} | {"labels": {"team": "blue"}}
    assert list(comparison.lines("x", STORED, written, KINDS["MeshTimeout"])) == [
        "x: would be written again; only what the server computes changes"
    ]


def test_a_new_object_is_all_new_and_a_pruned_one_all_gone():
    written = {"type": "Mesh", "name": "a"}
    assert changed(None, written, "Mesh") == ["+type: Mesh", "+name: a"]
    assert changed(written, None, "Mesh") == ["-type: Mesh", "-name: a"]


def test_the_kubernetes_form_is_compared_as_such():
    metadata = {
        "name": "a",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "3",
        "labels": {"kuma.io/zone": "z"},
    }
    stored = {"apiVersion": "v", "kind": "MeshTimeout", "metadata": metadata, "kri": "k", "spec": {"to": []}}
    written = {
        "apiVersion": "v",
        "kind": "MeshTimeout",
        "metadata": {"name": "a", "annotations": {"x": "y"}},
        "spec": {"to": []},
    }
    assert changed(stored, written) == ["+  annotations:", "+    x: y"]


def test_secrets_are_masked_and_still_seen_to_change():
    stored = {"type": "Secret", "mesh": "m", "name": "s", "data": "b2xkLXNlY3JldA=="}
    assert changed(stored, {**stored, "data": "bmV3LXNlY3JldA=="}, "Secret") == [
        "-data: '*****'",
        "+data: '***** (changed)'",
    ]
    labelled = {**stored, "labels": {"a": "b"}}
    assert changed(stored, labelled, "Secret") == ["+labels:", "+  a: b"]
    assert "+data: '*****'" in changed(None, stored, "Secret")


def test_secrets_in_the_kubernetes_form_are_masked_too():
    metadata = {"name": "s", "namespace": "kuma-system"}
    stored = {"apiVersion": "v", "kind": "Secret", "metadata": metadata, "spec": {"data": "b2xk"}}
    written = {**stored, "spec": {"data": "bmV3"}}
    assert changed(stored, written, "Secret") == ["-  data: '*****'", "+  data: '***** (changed)'"]


def test_the_state_that_a_probe_found_is_no_difference():
    inbound = {"port": 80, "serviceProbe": {"tcp": {}}}
    given = {"networking": {"address": "10.0.0.1", "inbound": [inbound]}}
    computed = {"state": "NotReady", "health": {"ready": False}}
    known = {"networking": {"address": "10.0.0.2", "inbound": [{**inbound, **computed}]}}
    expected = ["-  address: 10.0.0.2", "+  address: 10.0.0.1"]
    plain = {"type": "Dataplane", "mesh": "default", "name": "a"}
    assert changed({**plain, **known}, {**plain, **given}, "Dataplane") == expected
    kube = {"apiVersion": "kuma.io/v1alpha1", "kind": "Dataplane", "metadata": {"name": "a"}}
    shown = changed({**kube, "spec": known}, {**kube, "spec": given}, "Dataplane")
    assert [line.replace("  ", "") for line in shown] == [line.replace("  ", "") for line in expected]
