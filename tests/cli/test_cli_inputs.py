"""Objects in files, and the places that errors point at."""

import json

import click
import pytest

from koguma.cli import file_identities, inputs
from koguma.cli.failures import ApiError, CommandFailure, ExitCode, InvalidParameter

TWO = "type: Mesh\nname: a\n---\ntype: Mesh\nname: b\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "b.yaml": "type: Mesh\nname: b",
        "a.yml": "type: Mesh\nname: a",
        "c/d.json": '{\n\t"type": "Mesh", "name": "d"}',
        ".git/e.yaml": "type: Mesh\nname: e",
        "f.txt": "no object",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def names(read):
    return [document.value["name"] for document in read]


def test_a_folder_is_read_in_the_order_of_its_names(folder):
    assert names(inputs.read([str(folder)])) == ["a", "b", "d"]


def test_files_are_read_in_the_order_given(folder):
    assert names(inputs.read([str(folder / "b.yaml"), str(folder / "a.yml")])) == ["b", "a"]


def test_lists_are_taken_apart_and_keep_their_places(tmp_path):
    file = tmp_path / "list.yaml"
    file.write_text("items:\n- {type: Mesh, name: a}\n- type: Mesh\n  name: b\n")
    read = inputs.read([str(file)])
    assert names(read) == ["a", "b"]
    assert inputs.place(read[1], "name") == f"{file}:4:9"


def test_a_kubernetes_list_is_taken_apart(tmp_path):
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [{"name": "a"}, {"name": "b"}]}))
    assert names(inputs.read([str(file)])) == ["a", "b"]


def test_an_object_with_items_of_its_own_stays_whole(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("type: Thing\nitems: [1, 2]")
    assert len(inputs.read([str(file)])) == 1


def test_every_file_that_cannot_be_read_is_told_with_its_place(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("a: [\n")
    second.write_text("b: 1\nb: 2\n")
    with pytest.raises(CommandFailure) as failed:
        inputs.read([str(tmp_path)])
    assert [line.split(": ")[0] for line in failed.value.lines] == [f"{first}:2:1", f"{second}:2:1"]
    assert failed.value.code is ExitCode.REFUSED


@pytest.mark.parametrize("make", [lambda path: path / "nothing.yaml", lambda path: path])
def test_nothing_to_read_is_wrong_usage(tmp_path, make):
    with pytest.raises(click.UsageError):
        inputs.read([str(make(tmp_path))])


def test_files_without_objects_are_refused(tmp_path):
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n---\n")
    with pytest.raises(CommandFailure, match="no objects"):
        inputs.read([str(file)])


def test_what_the_server_says_points_at_files(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text("type: Mesh\nname: a\n---\ntype: Mesh\nname: b\nmtls:\n  backends:\n  - name: x\n")
    refused = ApiError(
        400,
        "Could not apply resources",
        "Resource is not valid",
        (
            InvalidParameter("objects[0].name", "is bad"),
            InvalidParameter("objects[1].mtls.backends[0].type", "must be set"),
            InvalidParameter('objects[1].labels["a"]', "is bad"),
            InvalidParameter("objects[1]", "is the same object as objects[0]"),
            InvalidParameter("set", "is bad"),
        ),
    )
    located = inputs.located(inputs.read([str(file)]), refused)
    assert located.lines == (
        f"{file}:2:7: name: is bad",
        f"{file}:8:5: mtls.backends[0].type: must be set",
        f'{file}:4:1: labels["a"]: is bad',
        f"{file}:4:1: is the same object as {file}:1:1",
        " - set: is bad",
    )


def test_a_refusal_without_places_stays_as_it_is(tmp_path):
    refused = ApiError(404, "Failed to retrieve Mesh", "Not found")
    assert inputs.located((), refused) is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{type: Mesh, name: a}", ("Mesh", "", ("a",))),
        ("{type: MeshTimeout, name: a}", ("MeshTimeout", "default", ("a",))),
        (
            "{type: MeshTimeout, name: a, mesh: m, labels: {k8s.kuma.io/namespace: n}}",
            ("MeshTimeout", "m", ("a", "a.n")),
        ),
        (
            "{apiVersion: kuma.io/v1alpha1, kind: MeshTimeout, metadata: {name: a, namespace: n}}",
            ("MeshTimeout", "default", ("a.n", "a")),
        ),
        (
            "{apiVersion: kuma.io/v1alpha1, kind: Mesh, metadata: {name: a}}",
            ("Mesh", "", ("a",)),
        ),
    ],
)
def test_objects_of_both_forms_are_known_by_their_stored_names(tmp_path, text, expected):
    file = tmp_path / "one.yaml"
    file.write_text(text)
    assert file_identities.identities(inputs.read([str(file)])) == [expected]


def test_objects_that_are_none_are_all_told(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("type: Nothing\n---\n- 3\n- {name: a}\n")
    with pytest.raises(CommandFailure) as failed:
        file_identities.drafts(inputs.read([str(file)]))
    assert [line.split(": ")[0] for line in failed.value.lines] == [
        f"{file}:1:7",
        f"{file}:3:3",
        f"{file}:4:3",
    ]
