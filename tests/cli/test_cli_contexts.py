"""The file with contexts, and the commands that keep it."""

import pytest

from koguma.cli import contexts
from koguma.cli.contexts import CliContext, Config
from koguma.cli.failures import CommandFailure
from koguma.model.redacted import Redacted

FULL = CliContext("a", "https://a:5682", Redacted("secret-token"), "", "/ca.pem")
PLAIN = CliContext("b", "http://localhost:5681", None, "/token")


def test_what_is_saved_is_loaded(tmp_path):
    file = tmp_path / "deep" / "config.yaml"
    contexts.save(file, Config("b", (FULL, PLAIN)))
    assert contexts.load(file) == Config("b", (FULL, PLAIN))


def test_the_file_is_its_owners_alone(tmp_path):
    file = tmp_path / "config.yaml"
    contexts.save(file, Config("a", (FULL,)))
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_token_that_others_can_read_is_warned_about(tmp_path, capsys):
    file = tmp_path / "config.yaml"
    contexts.save(file, Config("a", (FULL,)))
    file.chmod(0o644)
    contexts.load(file)
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_no_file_is_no_context(tmp_path):
    assert contexts.load(tmp_path / "config.yaml") == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contexts: [\n", ":2:1: "),
        ("- a", "must be a mapping"),
        ("contexts: 3", "must be a mapping"),
        ("contexts: [a]", "contexts[0] must be a mapping of texts"),
        ("contexts: [{name: a}]", "contexts[0] needs a name and an address"),
        ("contexts: [{name: a, address: b, tokne: c}]", 'contexts[0]: unknown field "tokne"'),
        ("a: \x01", "config.yaml"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(CommandFailure) as failed:
        contexts.load(file)
    assert str(file) in failed.value.message
    assert message in failed.value.message


def test_the_first_context_becomes_the_current_one(koguma):
    assert koguma("config", "add", "a", "--address", "http://localhost:1").code == 0
    assert koguma("config", "add", "b", "--address", "http://localhost:2").code == 0
    assert koguma("config", "contexts").out.splitlines() == [
        "CURRENT   NAME   ADDRESS              TOKEN   CA",
        "*         a      http://localhost:1   -       -",
        "-         b      http://localhost:2   -       -",
    ]


def test_another_context_can_be_used_and_removed(koguma):
    for name in ("a", "b"):
        koguma("config", "add", name, "--address", "http://localhost:1")
    assert koguma("config", "use", "b").code == 0
    assert koguma("config", "remove", "b").out == 'context "b" removed; none is current now\n'
    assert "\nb" not in koguma("config", "contexts").out


def test_a_context_that_does_not_exist_is_wrong_usage(koguma):
    koguma("config", "add", "a", "--address", "http://localhost:1")
    for words in (("config", "use", "x"), ("config", "remove", "x"), ("get", "mt", "--context", "x")):
        ended = koguma(*words)
        assert ended.code == 2
        assert 'there is no context "x" (known: a)' in ended.err


def test_a_kept_token_comes_from_standard_input_and_is_never_shown(koguma):
    words = ("config", "add", "a", "--address", "http://localhost:1", "--token", "-")
    assert koguma(*words, given="very-secret\n").code == 0
    ended = koguma("config", "view")
    assert "token: '*****'" in ended.out
    assert "very-secret" not in ended.out


def test_a_token_on_the_command_line_is_refused(koguma):
    ended = koguma("config", "add", "a", "--address", "http://localhost:1", "--token", "very-secret")
    assert ended.code == 2
    assert "very-secret" not in ended.err


def test_a_context_that_would_leak_its_token_is_not_added(koguma):
    words = ("config", "add", "a", "--address", "http://example.com:5681", "--token", "-")
    assert koguma(*words, given="t").code == 2
    assert koguma("config", "contexts").out.count("\n") == 1
