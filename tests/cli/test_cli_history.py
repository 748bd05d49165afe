"""`koguma history`, `undo`, `diff` of revisions, and --at, against a control plane."""

import json

import pytest

from tests.build import dataplane, timeout


@pytest.fixture
def changed(cli, mesh, tmp_path):
    """A timeout that was written, changed and deleted; its revisions, oldest first."""
    file = tmp_path / "a.json"
    for idle, reason in (("1s", "first"), ("2s", "größer")):
        file.write_text(json.dumps(timeout("slow", mesh, idle)))
        assert cli("apply", "-f", str(file), "--reason", reason).code == 0
    assert cli("delete", "mt", "slow", "-m", mesh, "--reason", "gone").code == 0
    items = json.loads(cli("history", "mt", "slow", "-m", mesh, "-o", "json").out)["items"]
    return [item["revision"] for item in reversed(items)]


def test_the_history_is_a_table_with_reasons(cli, mesh, changed):
    shown = cli("history", "meshtimeout/slow", "-m", mesh)
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["REVISION", "TIME", "AUTHOR", "WHAT", "REASON"]
    assert [(int(row[0]), row[3], row[-1]) for row in rows[1:]] == [
        (changed[2], "deleted", "gone"),
        (changed[1], "changed", "größer"),
        (changed[0], "created", "first"),
    ]
    limited = cli("history", "-m", mesh, "--limit", "1")
    assert len(limited.out.splitlines()) == 2
    assert "there are older ones" in limited.err
    whole = json.loads(cli("history", "-m", mesh, "-o", "json").out)["items"]
    assert [(item["type"], item["name"], item["action"]) for item in whole][-1] == ("Mesh", mesh, "created")
    assert {item["mesh"] for item in whole[:-1]} == {mesh}
    of_kind = json.loads(cli("history", "mesh", "-m", mesh, "-o", "json").out)["items"]
    assert [(item["type"], item["name"]) for item in of_kind] == [("Mesh", mesh)]
    wide = cli("history", "mt", "-m", mesh, "--since", "1h", "-o", "wide")
    assert wide.out.splitlines()[0].split()[4] == "PROXIES"
    assert [line.split()[-2] for line in wide.out.splitlines()[1:]] == ["0", "0", "0"]
    assert cli("history", "-m", mesh, "--by", "nobody").err == "no changes\n"
    assert cli("history", "--since", "noon").code == 1


def test_a_past_moment_is_shown(cli, mesh, changed):
    assert cli("get", "mt", "slow", "-m", mesh).code == 1
    assert "2s" in cli("get", "mt", "slow", "-m", mesh, "--at", str(changed[1]), "-o", "yaml").out
    assert "1s" in cli("describe", "mt", "slow", "-m", mesh, "--at", str(changed[0])).out
    assert "slow" in cli("get", "mt", "-m", mesh, "--at", str(changed[0]), "-o", "name").out
    assert "slow" in cli("inspect", "policy", "mt", "slow", "-m", mesh, "--at", str(changed[0])).out
    assert "slow" in cli("get", "all", "-m", mesh, "--at", str(changed[0]), "-o", "name").out
    wrong = cli("get", "mt", "-m", mesh, "--at", "noon")
    assert (wrong.code, "a time such as" in wrong.err) == (1, True)
    for words in (("get", "proxies", "--at", "1h"), ("get", "mt", "-w", "--at", "1h")):
        assert cli(*words).code == 2
    assert cli("inspect", "dataplane", "x", "--type", "stats", "--at", "1h").code == 2
    of_envoy = ("explain", "dataplane", "x", "-m", mesh, "--envoy", "clusters")
    assert "a time such as" in cli(*of_envoy, "--at", "noon").err
    assert "files have no history" in cli(*of_envoy, "--at", "1h", "-f", ".").err


def test_a_change_is_planned_for_a_past_moment(cli, mesh, changed, tmp_path):
    file = tmp_path / "proxy.json"
    file.write_text(json.dumps(dataplane("web-1", mesh=mesh)))
    now, then = (
        json.loads(cli("plan", "-f", str(file), *at, "--json").out) for at in ((), ("--at", str(changed[1])))
    )
    for plan in (now, then):
        created = [each["name"] for each in plan["objects"] if each["action"] == "created"]
        assert created == ["web-1", "web"]  # and the service that follows from it
    assert cli("plan", "-f", str(file), "--at", "noon").code == 1
    gone = cli("plan", "--delete", "mt/slow", "-m", mesh, "--json")
    assert (gone.code, "slow" in gone.err) == (1, True)
    was_there = cli("plan", "--delete", "mt/slow", "-m", mesh, "--at", str(changed[1]), "--json")
    assert [each["action"] for each in json.loads(was_there.out)["objects"]] == ["deleted"]
    wrong = cli("plan", "-f", str(file), "--at", "1h", "--base", str(file))
    assert (wrong.code, "--base" in wrong.err) == (1, True)


def test_two_revisions_are_compared(cli, changed):
    first, second, third = map(str, changed)
    compared = cli("diff", first, second)
    assert compared.code == 1
    lines = compared.out.splitlines()
    assert lines[0].startswith(f"--- revision {first} meshtimeout/slow")
    assert [line.split()[-1] for line in lines if line.startswith(("-  ", "+  "))] == ["1s", "2s"]
    assert cli("diff", f"{first}..{second}").out == compared.out
    (item,) = [
        each
        for each in json.loads(cli("diff", f"{first}..{third}", "-o", "json").out)["items"]
        if each["name"] == "slow"
    ]
    assert (item["action"], item["after"]) == ("deleted", None)
    assert (cli("diff", first, first).code, cli("diff", "no.yaml").code) == (0, 2)
    assert cli("diff", "1", "99999999").code == 2


def test_undo_shows_what_it_does_and_asks(cli, mesh, changed):
    first, second, third = map(str, changed)
    tried = cli("undo", third, "--dry-run")
    assert (tried.code, "+  name: slow" in tried.out or "+name: slow" in tried.out) == (0, True)
    assert f"takes back: revision {third}," in tried.out
    asked = cli("undo", third)
    assert (asked.code, "give --yes" in asked.err) == (2, True)
    assert cli("get", "mt", "slow", "-m", mesh).code == 1
    done = cli("undo", third, "--yes", "--reason", "it is needed")
    assert (done.code, f"revision {third} is undone by revision" in done.out) == (0, True)
    assert "it is needed" in cli("history", "mt", "slow", "-m", mesh).out
    refused = cli("undo", first, "--yes")
    assert (refused.code, "--discard-later" in refused.err) == (1, True)
    assert f"revision {second} by mesh-system:admin" in refused.err
    discarded = cli("undo", first, "--yes", "--discard-later", "-o", "json")
    assert json.loads(discarded.out)["revision"] > changed[2]
    assert cli("get", "mt", "slow", "-m", mesh).code == 1
    assert cli("undo", "99999999", "-y").code == 1


def test_what_somebody_else_has_undone_in_the_meantime_is_said(koguma, fake):
    item = {"revision": 7, "time": "t", "author": "ed", "action": "created", "reason": ""}
    mesh = {"type": "Mesh", "name": "a"}
    gone = {**mesh, "action": "deleted", "before": mesh, "after": None}
    answer = {"undone": [{**item, **mesh}], "discarded": [], "asOf": 8, "warnings": []}
    fake.answer(200, {**answer, "changes": [gone]})
    fake.answer(200, {**answer, "changes": []})
    ended = koguma("undo", "7", "--yes", "--address", fake.address)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("nothing was changed: nothing of revision 7 is left to take back\n")


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 1001])
def test_a_reason_that_no_header_can_carry_is_a_usage_error(cli, reason):
    assert cli("undo", "1", "--dry-run", "--reason", reason).code == 2
