"""Commands that need no server, their help, and their exit codes."""

import importlib
import json
import os
import re
import subprocess
import sys

import click
import msgspec
import pytest
import yaml

from koguma import __version__
from koguma.cli import cp, kind_lookup, root
from koguma.runtime.settings import Settings, load
from tests.ports import free_port


@pytest.mark.parametrize("name", root.COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name):
    command = importlib.import_module(f"koguma.cli.{root.MODULES.get(name, name)}").command
    assert command.name == name
    assert command.get_short_help_str(200).startswith(root.COMMANDS[name].rstrip("."))


@pytest.mark.parametrize("name", root.COMMANDS)
def test_every_command_explains_itself(koguma, name):
    ended = koguma(name, "--help")
    assert ended.code == 0
    assert "Usage: koguma" in ended.out


def test_help_names_every_command_and_the_exit_codes(koguma):
    out = koguma("--help").out
    assert all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in root.COMMANDS)
    assert "Exit codes: 0 fine, 1 refused" in out


def test_starting_imports_nothing_that_is_slow():
    code = (
        "import sys; from koguma.cli import main; main(['version', '--client']); main(['--help']);"
        "slow = {'yaml', 'msgspec', 'http.client', 'ssl', 'aiohttp', 'koguma.model.kind'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"client: koguma {__version__}"
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gte",), 'there is no command "gte"; did you mean "get"?'),
        (("get", "mt", "--nope"), "No such option"),
        (("get", "mt", "-o", "xml"), "'xml' is not one of"),
        (("get",), "name a kind or a KRI"),
        (("token", "user", "--name", "a"), "--valid-for"),
        (("kri", "build", "--type", "meshtimeot", "--name", "a"), 'did you mean "MeshTimeout"?'),
        (("kri", "build", "--type", "secret", "--name", "a"), "has no short name"),
        (("completion", "tcsh"), "'tcsh' is not one of"),
    ],
)
def test_wrong_usage_is_told_in_a_line_and_ends_with_2(koguma, words, message):
    ended = koguma(*words)
    assert (ended.code, ended.out) == (2, "")
    first, second = ended.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert re.fullmatch(r" - `koguma( \w+)* --help` says more", second)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("apply",), "name what to read with -f"),
        (("apply", "-f", "/nowhere.yaml"), "/nowhere.yaml: No such file"),
        (("delete",), "name what to delete"),
        (("delete", "mt", "a", "-f", "b"), "name what to delete"),
        (("plan",), "name what to read with -f"),
        (("plan", "-f", "x", "--wiat"), "No such option"),
        (("can", "web"), "Missing argument 'TO'"),
        (("can", "web", "backend", "--path", "x"), "--path must start with a slash"),
        (("test",), "Missing argument"),
        (("wait", "--timeout", "soon"), "--timeout"),
        (("wait", "--address", "nowhere"), "nowhere"),
    ],
)
def test_wrong_usage_ends_with_1_where_2_is_an_answer(koguma, words, message):
    ended = koguma(*words)
    assert (ended.code, ended.out) == (1, ""), ended.err
    assert message in ended.err.splitlines()[0]
    if "--address" not in words:
        assert ended.err.splitlines()[1] == f" - `koguma {words[0]} --help` says more"


def test_no_words_at_all_show_the_help(koguma):
    ended = koguma()
    assert ended.code == 2
    assert "Commands:" in ended.err


def test_a_kri_is_taken_apart(koguma):
    assert koguma("kri", "parse", "kri_mt_shop_east_team-a_quick_http").out.splitlines() == [
        "kind:       MeshTimeout",
        "type:       mt",
        "mesh:       shop",
        "zone:       east",
        "namespace:  team-a",
        "name:       quick",
        "section:    http",
    ]


def test_the_parts_of_a_kri_are_json_too(koguma):
    parts = json.loads(koguma("kri", "parse", "kri_m____default_", "-o", "json").out)
    assert parts == {
        "kind": "Mesh",
        "type": "m",
        "mesh": "",
        "zone": "",
        "namespace": "",
        "name": "default",
        "section": "",
    }


def test_the_name_of_a_secret_is_taken_apart(koguma):
    parts = json.loads(koguma("kri", "parse", "cert.rsa:secret:a:b", "-o", "json").out)
    assert parts == {"category": "cert.rsa", "scope": "secret", "identifier": "a:b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kri_mt_a", "has six underscores"),
        ("kri_nosuch_a_b_c_d_", "unknown short name"),
        ("kri_mt_UP_b_c_d_", 'mesh "UP"'),
        ("a:b:c", 'category "a" is not one of'),
    ],
)
def test_what_is_no_kri_ends_with_1_and_a_reason(koguma, text, message):
    ended = koguma("kri", "parse", text)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err


@pytest.mark.parametrize("kind", ["mt", "MeshTimeout", "meshtimeouts"])
def test_a_kri_is_built_from_any_word_for_its_kind(koguma, kind):
    words = ("--type", kind, "-m", "shop", "--zone", "z", "--namespace", "n", "--name", "x", "--section", "s")
    assert koguma("kri", "build", *words).out == "kri_mt_shop_z_n_x_s\n"


def test_a_kri_of_illegal_parts_is_not_built(koguma):
    ended = koguma("kri", "build", "--type", "mt", "-m", "Shop", "--name", "X")
    assert ended.code == 1
    assert 'mesh "Shop"' in ended.err
    assert 'name "X"' in ended.err


def test_words_for_kinds_are_those_of_the_kinds():
    known = kind_lookup.local()
    kinds = kind_lookup.local_kinds()
    for kind in known:
        for word in kind.words:
            assert kinds.word(word).name == known.find(word.upper()).name == kind.name


def test_a_shell_can_complete_commands_and_kinds():
    for words, count, expected in (
        ("koguma desc", 1, "plain,describe"),
        ("koguma get meshtim", 2, "plain,meshtimeouts"),
    ):
        environment = {
            **os.environ,
            "_KOGUMA_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
        }
        code = "import sys; from koguma.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(koguma, shell):
    ended = koguma("completion", shell)
    assert ended.code == 0
    assert f"_KOGUMA_COMPLETE={shell}_complete" in ended.out


def test_every_setting_but_access_is_a_flag_with_words():
    flags = {option.name: option for option in cp.options()}
    for field in msgspec.structs.fields(Settings):
        if field.name == "access":
            assert "access" not in flags
            continue
        option = flags[field.name]
        assert isinstance(option, click.Option)
        assert f"KOGUMA_{field.name.upper()}" in (option.help or "")
        assert len(option.help or "") > 20


def test_flags_come_before_variables_before_the_file(koguma, monkeypatch, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("zoneName: from-file\nsystemNamespace: from-file\napiPort: 1\nlocalhostIsAdmin: true\n")
    monkeypatch.setenv("KOGUMA_SYSTEM_NAMESPACE", "from-variable")
    monkeypatch.setenv("KOGUMA_API_PORT", "2")
    words = (
        "--config-file",
        str(file),
        "--api-port",
        "3",
        "--no-localhost-is-admin",
        "--hostnames",
        "a",
        "--hostnames",
        "b",
    )
    ended = koguma("cp", "run", "--print-config", *words)
    config = yaml.safe_load(ended.out)
    assert ended.code == 0
    assert (config["zoneName"], config["systemNamespace"], config["apiPort"]) == (
        "from-file",
        "from-variable",
        3,
    )
    assert (config["localhostIsAdmin"], config["hostnames"]) == (False, ["a", "b"])


def test_the_printed_settings_can_be_used_as_a_file(koguma, tmp_path):
    printed = koguma("cp", "run", "--print-config", "--zone-name", "east", "--data-dir", "/data").out
    file = tmp_path / "settings.yaml"
    file.write_text(printed)
    settings = load(str(file), {}, {})
    assert (settings.zone_name, settings.data_dir) == ("east", "/data")


def test_the_printed_settings_hide_passwords(koguma):
    ended = koguma("cp", "run", "--print-config", "--store", "postgresql://me:hunter2@db/mesh")
    assert "hunter2" not in ended.out
    assert "postgresql://me:*****@db/mesh" in ended.out


def test_a_password_on_the_command_line_is_warned_about_without_being_shown(tmp_path):
    address = "postgresql://me:hunter2@127.0.0.1:1/mesh"
    command = [
        sys.executable,
        "-c",
        "import sys; from koguma.cli import main; sys.exit(main())",
        "cp",
        "run",
        "--no-store-encryption",
    ]

    def ended(*words, **variables):
        # In a process of its own, because a control plane changes how its process logs and collects.
        environment = {**os.environ, "KOGUMA_DATA_DIR": str(tmp_path), **variables}
        return subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, check=False
        )

    shown = ended("--store", address)
    assert shown.returncode == 1
    assert "the password of the store is on the command line" in shown.stderr
    assert "~/.pgpass" in shown.stderr
    assert "hunter2" not in shown.stdout + shown.stderr
    hidden = ended(KOGUMA_STORE=address)
    assert hidden.returncode == 1
    assert "command line" not in hidden.stderr


def test_the_arguments_of_a_key_command_are_not_shown(koguma):
    ended = koguma("cp", "run", "--print-config", "--store-key-command", "vault read --token=hunter2 key")
    assert "storeKeyCommand: vault «redacted»" in ended.out
    assert "hunter2" not in ended.out


def test_wrong_settings_are_all_told_with_their_source(koguma, monkeypatch):
    monkeypatch.setenv("KOGUMA_XDS_PORT", "many")
    ended = koguma("cp", "run", "--api-port", "99999")
    assert ended.code == 2
    assert " - --api-port: " in ended.err
    assert " - KOGUMA_XDS_PORT: " in ended.err


TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJqdGkiOiJhYmMiLCJleHAiOjAsIk1lc2giOiJzaG9wIn0.c2ln"


def test_a_token_is_taken_apart_and_said_to_be_unchecked(koguma, monkeypatch, tmp_path):
    monkeypatch.setenv("KOGUMA_ADDRESS", f"http://127.0.0.1:{free_port()}")
    ended = koguma("token", "inspect", "-", given=f"{TOKEN}\n")
    assert ended.code == 0
    assert re.search(r"^holds: +not checked: cannot reach the control plane at http://127", ended.out)
    file = tmp_path / "web-1.token"
    file.write_text(f"{TOKEN}\n")
    assert koguma("token", "inspect", str(file)) == ended
    assert TOKEN not in ended.out
    assert re.search(r"^purpose: +dataplane$", ended.out, re.MULTILINE)
    assert re.search(r"^Mesh: +shop$", ended.out, re.MULTILINE)
    inspected = json.loads(koguma("token", "inspect", TOKEN, "-o", "json").out)
    assert (inspected["verified"], inspected["valid"], inspected["claims"]["jti"]) == (False, None, "abc")


def test_a_token_is_not_shown_to_a_server_over_an_open_network(koguma):
    ended = koguma("token", "inspect", TOKEN, "--address", "http://192.0.2.1:5681")
    assert ended.code == 0
    assert "not checked: the token would cross the network unprotected" in ended.out


def test_a_token_file_that_is_not_there_is_named(koguma):
    ended = koguma("token", "inspect", "nothing.token")
    assert ended.code == 1
    assert "nothing.token: No such file or directory; give a file with a token" in ended.err


@pytest.mark.parametrize("text", ["", "abc", "a.b.c", "W10.W10.x", "e30.ÿ.x"])
def test_what_is_no_token_is_refused(koguma, text):
    ended = koguma("token", "inspect", "-", given=text)
    assert ended.code == 1
    assert "this is no token" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("user", TOKEN), 1, "this is a dataplane token, not a user token"),
        (("dataplane", "abc"), 2, "name the mesh"),
        (("user", "a,b"), 1, "neither a token"),
    ],
)
def test_a_token_that_cannot_be_meant_is_not_revoked(koguma, words, code, message):
    ended = koguma("token", "revoke", *words, "--address", "http://127.0.0.1:1")
    assert ended.code == code
    assert message in ended.err


REFUSED = {
    "name": "web-1",
    "mesh": "default",
    "address": "10.0.0.7",
    "door": "xds",
    "reason": "authentication failed: token is expired",
    "hint": "make a token for it",
    "since": "2026-01-01T00:00:00Z",
    "lastSeen": "2026-01-01T00:01:00Z",
    "count": 16,
}


def test_proxies_that_were_refused_stand_below_the_table(koguma, fake):
    listed = {"total": 0, "items": [], "refused": [REFUSED, {**REFUSED, "name": "web-2\x1b[2J", "count": 1}]}
    fake.answer(200, listed)
    ended = koguma("get", "proxies", "--address", fake.address)
    assert "no proxies are connected in mesh default" in ended.err
    assert ended.out.splitlines()[2:] == [
        "  web-1 (mesh default) from 10.0.0.7, 16 times since 2026-01-01T00:00:00Z:",
        "    authentication failed: token is expired",
        "    make a token for it",
        "  web-2?[2J (mesh default) from 10.0.0.7, once since 2026-01-01T00:00:00Z:",
        "    authentication failed: token is expired",
        "    make a token for it",
    ]
    fake.answer(200, listed)
    ended = koguma("get", "proxies", "web-1", "-o", "json", "--address", fake.address)
    assert json.loads(ended.out) == {"total": 0, "items": [], "refused": [REFUSED]}
    fake.answer(200, listed)
    ended = koguma("get", "proxies", "-o", "yaml", "--address", fake.address)
    assert "2 more were refused; `koguma get proxies` shows them" in ended.err
    fake.answer(200, {"total": 0, "items": []})  # as a server of before says
    assert koguma("get", "proxies", "--address", fake.address).out == ""


@pytest.mark.parametrize("words", ["--help", "kri parse kri_mt_shop___a_", "completion bash"])
@pytest.mark.parametrize(("to", "code", "says"), [("/dev/full", 1, "No space left"), ("&-", 0, "")])
def test_an_output_that_takes_nothing_is_told_in_a_line(words, to, code, says):
    command = f"{sys.executable} -c 'from koguma.cli import main; raise SystemExit(main())' {words} >{to}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, bool(says)), done.stderr
    assert says in done.stderr
