"""`koguma edit` against a real control plane, with an editor that does what the test says."""

import json
import stat
import sys
from pathlib import Path

import pytest
import yaml

from tests.build import timeout

pytestmark = pytest.mark.slow


EDITOR = """\
import json, os, pathlib, sys, urllib.request
here, file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
steps = json.loads((here / "steps.json").read_text())
number = len(list(here.glob("shown-*")))
(here / f"shown-{number}").write_text(file.read_text())
(here / "mode").write_text(oct(file.stat().st_mode & 0o777))
step = steps[number]
if "other" in step:
    request = urllib.request.Request(step["url"], json.dumps(step["other"]).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request).close()
for old, new in step.get("replace", ()):
    text = file.read_text()
    assert old in text, old
    file.write_text(text.replace(old, new))
if "text" in step:
    file.write_text(step["text"])
sys.exit(step.get("code", 0))
"""


@pytest.fixture
def cli(koguma, monkeypatch, control_plane, tmp_path):
    """`koguma` with the control plane's address in the environment, and a folder of its own for drafts."""
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    monkeypatch.setattr("tempfile.tempdir", str(drafts))
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    return koguma


@pytest.fixture
def drafts(tmp_path):
    """The texts that were left behind."""
    return lambda: sorted((tmp_path / "drafts").iterdir())


@pytest.fixture
def mesh(control_plane, mesh):
    """A new mesh with one policy."""
    policy = timeout("slow", mesh, labels={"team": "blue"})
    assert control_plane("PUT", f"/meshes/{mesh}/meshtimeouts/slow", policy).status == 201
    return mesh


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """An editor with a list of steps, one for each time that it is opened; answers what it was shown."""
    script = tmp_path / "an editor.py"
    script.write_text(EDITOR)

    def prepared(*steps, variable="KOGUMA_EDITOR"):
        (tmp_path / "steps.json").write_text(json.dumps(steps))
        monkeypatch.setenv(variable, f"'{sys.executable}' '{script}' '{tmp_path}'")
        return lambda: [file.read_text() for file in sorted(tmp_path.glob("shown-*"))]

    return prepared


def stored(plane, mesh, name="slow"):
    return plane("GET", f"/meshes/{mesh}/meshtimeouts/{name}").json


def idle(plane, mesh):
    return stored(plane, mesh)["spec"]["to"][0]["default"]["idleTimeout"]


def change(old, new):
    return {"replace": [[f"idleTimeout: {old}", f"idleTimeout: {new}"]]}


@pytest.mark.parametrize("variable", ["KOGUMA_EDITOR", "VISUAL", "EDITOR"])
def test_what_is_saved_is_written_and_the_difference_shown(
    cli, mesh, control_plane, editor, drafts, tmp_path, variable
):
    shown = editor(change("5s", "9s"), variable=variable)
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"--- stored meshtimeout/slow (mesh {mesh})"
    assert [line for line in lines[2:] if line[0] in "+-"] == [
        "-      idleTimeout: 5s",
        "+      idleTimeout: 9s",
    ]
    assert lines[-1] == f"meshtimeout/slow (mesh {mesh}) configured"
    assert idle(control_plane, mesh) == "9s"
    assert stored(control_plane, mesh)["labels"]["team"] == "blue"
    assert (drafts(), (tmp_path / "mode").read_text()) == ([], oct(0o600))
    own = {"team": "blue", "kuma.io/env": "universal"}
    assert yaml.safe_load(shown()[0]) == timeout("slow", mesh, labels=own)


def test_the_first_variable_that_says_something_names_the_editor(
    cli, mesh, control_plane, editor, monkeypatch
):
    editor(change("5s", "9s"), variable="VISUAL")
    monkeypatch.setenv("KOGUMA_EDITOR", " ")
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert cli("edit", "mt/slow", "-m", mesh).code == 0
    assert idle(control_plane, mesh) == "9s"


def test_an_object_can_be_named_by_its_kri(cli, mesh, control_plane, editor):
    editor(change("5s", "9s"))
    kri = stored(control_plane, mesh)["kri"]
    assert cli("edit", kri).code == 0
    assert idle(control_plane, mesh) == "9s"


@pytest.mark.parametrize(
    "step",
    [{}, {"text": ""}, {"text": "# nothing\n\n"}, {"replace": [["# meshtimeout", "# x"]]}],
    ids=["saved as it is", "empty", "only comments", "another comment"],
)
def test_nothing_new_changes_nothing(cli, mesh, control_plane, editor, drafts, step):
    before = stored(control_plane, mesh)
    editor(step)
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert (ended.code, ended.out) == (0, f"meshtimeout/slow (mesh {mesh}) unchanged\n")
    assert stored(control_plane, mesh) == before
    assert drafts() == []


def test_a_dry_run_writes_nothing(cli, mesh, control_plane, editor, drafts):
    editor(change("5s", "9s"))
    ended = cli("edit", "mt", "slow", "-m", mesh, "--dry-run")
    assert ended.out.endswith(
        f"+      idleTimeout: 9s\nmeshtimeout/slow (mesh {mesh}) configured (dry run)\n"
    )
    assert idle(control_plane, mesh) == "5s"
    assert drafts() == []


def test_a_refusal_is_shown_above_the_text_with_lines_until_it_is_mended(cli, mesh, control_plane, editor):
    shown = editor(
        change("5s", "soon"),
        {"replace": [["idleTimeout: soon", "idelTimeout: 7s"]]},
        {"replace": [["idelTimeout: 7s", "idleTimeout: 7s"]]},
    )
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert (ended.code, idle(control_plane, mesh)) == (0, "7s")
    _, second, third = shown()
    for text, field in ((second, "idleTimeout"), (third, "idelTimeout")):
        remarks = [line for line in text.splitlines() if line.startswith("# line ")]
        (remark,) = [line for line in remarks if f".{field}: " in line]
        number = remark.removeprefix("# line ").partition(": ")[0]
        assert text.splitlines()[int(number) - 1].strip().startswith(f"{field}: ")
    assert third.count("# It was not written") == 1  # only the newest reasons are on top
    assert "soon" not in third


def test_what_is_no_yaml_is_opened_again_at_its_line(cli, mesh, control_plane, editor):
    shown = editor({"replace": [["spec:", "spec: ["]]}, {"replace": [["spec: [", "spec:"], ["5s", "6s"]]})
    assert cli("edit", "mt", "slow", "-m", mesh).code == 0
    assert idle(control_plane, mesh) == "6s"
    assert any(line.startswith("# line ") for line in shown()[1].splitlines())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n---\nb: 2\n", "one object is edited, and here begins another"),
        ("- 1\n", "an object is needed here"),
        ("---\n", "an object is needed here"),
    ],
)
def test_a_text_is_one_object(cli, mesh, editor, text, problem):
    shown = editor({"text": text}, {"text": ""})
    assert cli("edit", "mt", "slow", "-m", mesh).code == 0
    assert problem in shown()[1]


def test_a_text_that_stays_refused_is_kept_and_named(cli, mesh, control_plane, editor, drafts):
    editor(change("5s", "soon"), {})
    ended = cli("edit", "mt", "slow", "-m", mesh)
    (kept,) = drafts()
    assert ended.code == 1
    assert ended.err == (
        f"error: the text was left as it was refused; nothing is written\n - your text is kept in {kept}\n"
    )
    assert "idleTimeout: soon" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert idle(control_plane, mesh) == "5s"


def test_what_somebody_else_wrote_is_shown_and_not_lost_by_accident(cli, mesh, control_plane, editor):
    url = f"{control_plane.address}/meshes/{mesh}/meshtimeouts/slow"
    theirs = timeout("slow", mesh, idle="8s", labels={"team": "red"})
    shown = editor({"other": theirs, "url": url, **change("5s", "9s")}, change("9s", "10s"))
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert ended.code == 0
    second = shown()[1].splitlines()
    assert any(line.startswith("# Somebody else changed it") for line in second)
    assert {"# -  team: blue", "# +  team: red", "# +      idleTimeout: 8s"} <= set(second)
    assert (idle(control_plane, mesh), stored(control_plane, mesh)["labels"]["team"]) == ("10s", "blue")
    assert "-      idleTimeout: 8s" in ended.out  # the difference is to what was there


def test_a_failing_editor_ends_it(cli, mesh, control_plane, editor, drafts):
    editor({"code": 3})
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert ended.code == 1
    assert "ended with 3; nothing is written" in ended.err
    assert drafts() == []  # nothing was changed in it
    editor({}, {**change("5s", "9s"), "code": 3})  # the second time that the editor opens
    ended = cli("edit", "mt", "slow", "-m", mesh)
    (kept,) = drafts()
    assert f"your text is kept in {kept}" in ended.err
    assert idle(control_plane, mesh) == "5s"


def test_an_editor_that_is_not_there_is_named(cli, mesh, monkeypatch):
    monkeypatch.setenv("KOGUMA_EDITOR", "no-such-editor --wait")
    ended = cli("edit", "mt", "slow", "-m", mesh)
    assert ended.code == 1
    assert "cannot start the editor `no-such-editor --wait`: No such file or directory" in ended.err
    assert "name another with KOGUMA_EDITOR, VISUAL or EDITOR" in ended.err


def test_a_secret_is_edited_in_the_open_and_its_difference_masked(cli, mesh, control_plane, editor):
    path = f"/meshes/{mesh}/secrets/word"
    control_plane("PUT", path, {"type": "Secret", "mesh": mesh, "name": "word", "data": "YmVhcg=="})
    editor({"replace": [["YmVhcg==", "Y3Vi"]]})
    ended = cli("edit", "secret", "word", "-m", mesh)
    assert ended.code == 0
    assert "***** (changed)" in ended.out
    assert "Y3Vi" not in ended.out
    assert control_plane("GET", path).json["data"] == "Y3Vi"


def test_who_may_not_write_is_told_before_the_editor_opens(cli, mesh, editor, tmp_path, koguma):
    token = tmp_path / "token"
    token.write_text(cli("token", "user", "--name", "dora", "--valid-for", "1h").out)
    shown = editor({})
    assert cli("edit", "mt", "slow", "-m", mesh, "--token-file", str(token)).code == 4
    assert cli("edit", "zone", "no-such-zone").code == 1
    assert shown() == []


KINDS = {"resources": [{"name": "MeshTimeout", "path": "meshtimeouts", "shortName": "mt", "scope": "Mesh"}]}


def test_what_only_the_server_writes_is_told_before_the_editor_opens(koguma, fake, editor):
    for answer in (KINDS, timeout("slow", "shop"), KINDS):
        fake.answer(200, answer, ETag='"7"')
    fake.answer(405, {"title": "Method not Allowed", "detail": "it is written by the control plane alone"})
    shown = editor({})
    ended = koguma("edit", "mt", "slow", "-m", "shop", "--address", fake.address)
    assert ended.code == 1
    assert "it is written by the control plane alone" in ended.err
    assert shown() == []


def test_a_server_that_goes_away_leaves_the_text_in_a_file(
    koguma, fake, editor, drafts, tmp_path, monkeypatch
):
    (tmp_path / "drafts").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "drafts"))
    for answer in (KINDS, timeout("slow", "shop"), KINDS, {}):
        fake.answer(200, answer, ETag='"7"')
    fake.answer(503, {"title": "Unavailable", "detail": "the store is away"})
    editor(change("5s", "9s"))
    ended = koguma("edit", "mt", "slow", "-m", "shop", "--address", fake.address)
    (kept,) = drafts()
    assert ended.code == 1
    assert ended.err == (
        "error: meshtimeout/slow (mesh shop): Unavailable: the store is away\n"
        f" - your text is kept in {kept}\n"
    )
    assert yaml.safe_load(Path(kept).read_text())["spec"]["to"][0]["default"] == {"idleTimeout": "9s"}
    put = fake.asked[-1]
    assert (put.method, put.headers["If-Match"]) == ("PUT", '"7"')


@pytest.mark.parametrize("words", [("mt",), ("mt", "a", "b"), ("mt/a", "mt/b")])
def test_one_object_is_edited_at_a_time(cli, words):
    ended = cli("edit", *words)
    assert ended.code == 2
