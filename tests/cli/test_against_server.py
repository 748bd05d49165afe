"""The command line against a real control plane. Each test has a mesh of its own."""

import base64
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

TIMEOUT = """
type: MeshTimeout
name: quick
mesh: {mesh}
labels: {{team: blue}}
spec:
  to:
    - targetRef: {{kind: Mesh}}
      default: {{connectionTimeout: 2s}}
"""
KUBERNETES = """
apiVersion: kuma.io/v1alpha1
kind: MeshTimeout
metadata:
  name: quick
  namespace: team-{mesh}
  labels: {{kuma.io/mesh: {mesh}}}
spec:
  to:
    - targetRef: {{kind: Mesh}}
      default: {{connectionTimeout: 2s}}
"""

WRONG = """
type: MeshTimeout
name: Bad_Name
mesh: {mesh}
spec:
  to:
  - targetRef: {{kind: Nothing}}
    deflt: {{}}
"""


def test_both_forms_are_applied_at_once_and_then_unchanged(cli, mesh):
    given = f"{TIMEOUT}---{KUBERNETES}".format(mesh=mesh)
    lines = [f"meshtimeout/quick (mesh {mesh})", f"meshtimeout/quick.team-{mesh} (mesh {mesh})"]
    tried = cli("apply", "-f", "-", "--dry-run", given=given)
    assert tried.out.splitlines() == [f"{line} created (dry run)" for line in lines]
    for action in ("created", "unchanged"):
        ended = cli("apply", "-f", "-", given=given)
        assert (ended.code, ended.out.splitlines()) == (0, [f"{line} {action}" for line in lines])
    changed = cli("apply", "-f", "-", given=given.replace("2s", "3s", 1))
    assert changed.out.splitlines() == [f"{lines[0]} configured", f"{lines[1]} unchanged"]


def test_everything_that_is_wrong_is_told_with_its_place_and_nothing_is_written(cli, mesh, tmp_path):
    file = tmp_path / "objects.yaml"
    file.write_text(f"{TIMEOUT}---{WRONG}".format(mesh=mesh).lstrip())
    ended = cli("apply", "-f", str(file))
    assert (ended.code, ended.out) == (1, "")
    places = [line.split(": ")[:2] for line in ended.err.splitlines()[1:]]
    assert places == [
        [f"{file}:11:7", "name"],
        [f"{file}:15:23", "spec.to[0].targetRef.kind"],
        [f"{file}:16:12", "spec.to[0].deflt"],
    ]
    assert cli("get", "mt", "-m", mesh).err == f"no meshtimeouts in mesh {mesh}\n"


def test_unknown_fields_can_be_warned_about(cli, mesh, tmp_path):
    file = tmp_path / "objects.yaml"
    file.write_text(TIMEOUT.format(mesh=mesh).lstrip() + "  extra: 1\n")
    ended = cli("apply", "-f", str(file), "--field-validation", "warn")
    assert ended.code == 0
    assert ended.err.startswith(f'warning: {file}:9:10: spec.extra: unknown field "extra"')


def test_a_set_is_pruned(cli, mesh):
    both = TIMEOUT.format(mesh=mesh) + "---" + TIMEOUT.format(mesh=mesh).replace("quick", "other")
    assert cli("apply", "-f", "-", "--set", mesh, given=both).code == 0
    words = ("-f", "-", "--set", mesh, "--prune")
    compared = cli("diff", *words, given=TIMEOUT.format(mesh=mesh))
    assert compared.code == 1
    assert f"--- stored meshtimeout/other (mesh {mesh})" in compared.out
    ended = cli("apply", *words, given=TIMEOUT.format(mesh=mesh))
    assert ended.out.splitlines() == [
        f"meshtimeout/quick (mesh {mesh}) unchanged",
        f"meshtimeout/other (mesh {mesh}) deleted",
    ]


def test_objects_are_listed_filtered_and_shown(cli, mesh):
    cli("apply", "-f", "-", given=f"{TIMEOUT}---{KUBERNETES}".format(mesh=mesh))
    table = cli("get", "meshtimeouts", "-m", mesh).out.splitlines()
    assert table[0].split() == ["NAME", "MESH", "TARGET", "AGE"]
    assert [line.split()[:3] for line in table[1:]] == [
        ["quick", mesh, "Mesh"],
        [f"quick.team-{mesh}", mesh, "Mesh"],
    ]
    assert cli("get", "mt", "-m", mesh, "-l", "team=blue", "-o", "name").out == "meshtimeout/quick\n"
    wide = cli("get", "MeshTimeout", f"quick.team-{mesh}", "-m", mesh, "-o", "wide").out
    assert f"team-{mesh}" in wide.splitlines()[1].split()
    assert [line.split()[0] for line in cli("get", "meshes").out.splitlines()].count(mesh) == 1


def test_what_get_prints_can_be_applied(cli, mesh):
    cli("apply", "-f", "-", given=f"{TIMEOUT}---{KUBERNETES}".format(mesh=mesh))
    for form in ("yaml", "json"):
        shown = cli("get", "mt", "-m", mesh, "-o", form).out
        ended = cli("apply", "-f", "-", given=shown)
        assert [line.rpartition(" ")[2] for line in ended.out.splitlines()] == ["unchanged", "unchanged"]


def test_objects_are_found_by_their_kri(cli, mesh):
    cli("apply", "-f", "-", given=KUBERNETES.format(mesh=mesh))
    kri = cli("get", "mt", "-m", mesh, "-o", "kri").out.strip()
    assert kri.endswith(f"_team-{mesh}_quick_")
    assert yaml.safe_load(cli("get", kri, "-o", "yaml").out)["name"] == f"quick.team-{mesh}"
    assert json.loads(cli("get", kri, "-o", "json").out)["kri"] == kri
    assert f"KRI:        {kri}" in cli("describe", kri).out
    assert cli("delete", kri).out == f"meshtimeout/quick.team-{mesh} (mesh {mesh}) deleted\n"
    assert cli("get", kri).code == 1


def test_an_object_is_described(cli, mesh):
    cli("apply", "-f", "-", given=KUBERNETES.format(mesh=mesh))
    out = cli("describe", f"meshtimeout/quick.team-{mesh}", "-m", mesh).out
    shown = dict(line.split(": ", 1) for line in out.split("Labels:")[0].splitlines())
    assert {name: shown[name].strip() for name in ("Name", "Kind", "Namespace", "Role", "Core name")} == {
        "Name": "quick",
        "Kind": "MeshTimeout (mt)",
        "Namespace": f"team-{mesh}",
        "Role": "consumer",
        "Core name": f"quick.team-{mesh}",
    }
    assert shown["Revision"].strip().isdigit()
    assert "      connectionTimeout: 2s" in out


def test_a_diff_shows_lines_and_its_exit_code_says_whether_there_are_any(cli, mesh):
    given = f"{TIMEOUT}---{KUBERNETES}".format(mesh=mesh)
    assert "+type: MeshTimeout" in cli("diff", "-f", "-", given=given).out
    cli("apply", "-f", "-", given=given)
    same = cli("diff", "-f", "-", given=given)
    assert (same.code, same.out) == (0, "")
    changed = cli("diff", "-f", "-", given=given.replace("2s", "3s").replace("blue", "red"))
    assert changed.code == 1
    marks = [line for line in changed.out.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert marks == [
        "-  team: blue",
        "+  team: red",
        "-      connectionTimeout: 2s",
        "+      connectionTimeout: 3s",
        "-      connectionTimeout: 2s",
        "+      connectionTimeout: 3s",
    ]
    assert cli("diff", "-f", "-", given="type: Nothing").code == 2


def test_secrets_are_hidden_but_not_from_who_asks(cli, mesh):
    secret = f"{{type: Secret, name: s, mesh: {mesh}, data: b2xkLXNlY3JldA==}}"
    cli("apply", "-f", "-", given=secret)
    assert "b2xk" not in cli("describe", "secret", "s", "-m", mesh).out
    compared = cli("diff", "-f", "-", given=secret.replace("b2xk", "bmV3"))
    assert (compared.code, "b2xk" in compared.out, "bmV3" in compared.out) == (1, False, False)
    assert "b2xkLXNlY3JldA==" in cli("get", "secret", "s", "-m", mesh, "-o", "yaml").out


def test_files_are_deleted_in_an_order_that_works(cli, mesh):
    first = "type: Mesh\nname: {mesh}\n---\n{{type: Secret, name: s, mesh: {mesh}, data: YQ==}}\n"
    given = f"{first}---{TIMEOUT}---{KUBERNETES}".format(mesh=mesh)
    cli("apply", "-f", "-", given=given)
    ended = cli("delete", "-f", "-", given=given)
    assert (ended.code, ended.out.splitlines()) == (
        0,
        [
            f"meshtimeout/quick.team-{mesh} (mesh {mesh}) deleted",
            f"meshtimeout/quick (mesh {mesh}) deleted",
            f"mesh/{mesh} deleted",
            f"secret/s (mesh {mesh}) deleted with its mesh",
        ],
    )
    assert cli("delete", "-f", "-", given=given).code == 1
    assert cli("delete", "-f", "-", "--ignore-not-found", given=given).code == 0


def test_what_is_not_there_is_named(cli, mesh):
    ended = cli("delete", "mt", "nothing", "-m", mesh)
    assert (ended.code, ended.err) == (1, f"meshtimeout/nothing (mesh {mesh}) not found\n")
    assert cli("delete", "mt", "nothing", "-m", mesh, "--ignore-not-found").code == 0
    ended = cli("get", "mt", "nothing", "-m", mesh)
    assert ended.code == 1
    assert ended.err.startswith(f"error: meshtimeout/nothing (mesh {mesh}): ")
    assert cli("get", "nothing").code == 2


def test_a_dry_run_deletes_nothing(cli, mesh):
    assert cli("delete", "mesh", mesh, "--dry-run").out == f"mesh/{mesh} deleted (dry run)\n"
    assert cli("get", "mesh", mesh, "-o", "name").out == f"mesh/{mesh}\n"


def test_a_user_token_works_until_it_is_revoked(cli, tmp_path):
    token = cli("token", "user", "--name", "joe", "--group", "mesh-system:admin", "--valid-for", "1h").out
    file = tmp_path / "token"
    file.write_text(token)
    assert cli("get", "meshes", "--token-file", str(file)).code == 0
    assert cli("token", "revoke", "user", "-", given=token).out.endswith(" revoked\n")
    assert cli("token", "revoke", "user", "-", given=token).out.endswith(" was revoked before\n")
    ended = cli("get", "meshes", "--token-file", str(file))
    assert ended.code == 4
    assert "revoked" in ended.err


def test_a_user_without_rights_gets_the_exit_code_for_it(cli, tmp_path):
    file = tmp_path / "token"
    file.write_text(cli("token", "user", "--name", "joe", "--valid-for", "1h").out)
    ended = cli("get", "meshes", "--token-file", str(file))
    assert ended.code == 4
    assert "joe" in ended.err


def test_tokens_of_proxies_and_zones_are_issued_and_revoked(cli, mesh):
    proxy = cli("token", "dataplane", "-m", mesh, "--tag", "a=b", "--tag", "a=c", "--valid-for", "1h").out
    shown = json.loads(cli("token", "inspect", "-", "-o", "json", given=proxy).out)["claims"]
    assert (shown["Mesh"], shown["Tags"]) == (mesh, {"a": ["b", "c"]})
    assert cli("token", "revoke", "dataplane", proxy.strip()).code == 0
    assert cli("token", "revoke", "dataplane", "another-id", "-m", mesh).code == 0
    secret = cli("get", "secret", f"dataplane-token-revocations-{mesh}", "-m", mesh, "-o", "json").out
    assert base64.b64decode(json.loads(secret)["data"]).decode() == f"{shown['jti']},another-id"
    zone = cli("token", "zone", "--zone", "east", "--scope", "cp").out
    assert json.loads(cli("token", "inspect", "-", "-o", "json", given=zone).out)["claims"]["Scope"] == ["cp"]
    assert cli("token", "revoke", "zone", "-", given=zone).code == 0
    assert cli("token", "dataplane", "-m", "nothing").code == 1


def test_a_token_names_services_in_short(cli, mesh):
    flags = ("--service", "web", "--service", "admin", "--tag", "kuma.io/service=old", "--tag", "version=v1")
    proxy = cli("token", "dataplane", "-m", mesh, *flags).out
    shown = json.loads(cli("token", "inspect", "-", "-o", "json", given=proxy).out)["claims"]
    assert shown["Tags"] == {"kuma.io/service": ["old", "web", "admin"], "version": ["v1"]}


def test_revocations_at_the_same_time_are_all_kept(cli, control_plane, mesh):
    from koguma.cli import revocations
    from koguma.cli.client import ApiClient
    from koguma.cli.target import ServerTarget

    def revoke(jti: str) -> None:
        with contextlib.closing(ApiClient(ServerTarget(control_plane.address, "a test"))) as client:
            revocations.revoke(client, revocations.parse("dataplane", jti, mesh))

    threads = [threading.Thread(target=revoke, args=(f"id-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        ended = cli("token", "revoke", "dataplane", f"id-{n}", "-m", mesh)
        assert ended.out == f"dataplane token id-{n} was revoked before\n"


def test_kinds_and_versions_are_the_servers(cli):
    assert "MeshTimeout" in cli("kinds").out
    lines = cli("version").out.splitlines()
    assert [line.split()[0] for line in lines] == ["client:", "server:"]
    assert lines[0].split()[2] == lines[1].split()[2]


def test_a_control_plane_passes_its_check(cli):
    ended = cli("check", "-o", "json")
    checks = json.loads(ended.out)["checks"]
    assert ended.code == 0, [check for check in checks if check["status"] == "error"]
    assert {"reachable", "versions", "clock", "ready", "user", "store", "server: store"} <= {
        check["name"] for check in checks
    }


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, with the environment of the test; it never outlives the test."""
    command = [str(Path(sys.executable).parent / "koguma"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_watch_prints_changes_until_it_is_interrupted_in_silence(cli, mesh):
    cli("apply", "-f", "-", given=TIMEOUT.format(mesh=mesh))
    with started("get", "mt", "-m", mesh, "-w") as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["EVENT", "NAME", "MESH", "TARGET", "AGE"]
        assert process.stdout.readline().split()[:2] == ["added", "quick"]
        cli("apply", "-f", "-", given=TIMEOUT.format(mesh=mesh).replace("2s", "3s"))
        assert process.stdout.readline().split()[:2] == ["modified", "quick"]
        cli("delete", "mt", "quick", "-m", mesh)
        assert process.stdout.readline().split()[:2] == ["deleted", "quick"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "")


def test_a_watch_can_print_objects(cli, mesh):
    cli("apply", "-f", "-", given=f"{TIMEOUT}---{KUBERNETES}".format(mesh=mesh))
    with started("get", "mt", "quick", "-m", mesh, "-w", "-o", "json") as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
        assert (event["type"], event["object"]["name"]) == ("ADDED", "quick")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")


def test_a_reader_that_leaves_is_no_error(cli, mesh):
    many = "---".join(TIMEOUT.format(mesh=mesh).replace("quick", f"quick-{n}") for n in range(500))
    assert cli("apply", "-f", "-", given=many).code == 0
    with started("get", "mt", "-m", mesh, "-o", "yaml") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == ""


def test_lists_longer_than_a_page_are_whole(cli, mesh):
    many = "---".join(TIMEOUT.format(mesh=mesh).replace("quick", f"quick-{n}") for n in range(1001))
    assert cli("apply", "-f", "-", given=many).code == 0
    assert len(cli("get", "mt", "-m", mesh, "-o", "name").out.splitlines()) == 1001
