"""Every `--help` ends with examples, and every example is a command line that exists."""

import os
import pwd
import re
import shlex

import click
import pytest

from koguma.cli import examples, root
from koguma.cli.root import root as program


def commands(group: click.Group, path: str = ""):
    """All commands with their paths, groups too."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        below = f"{path} {name}".strip()
        yield below, command
        if isinstance(command, click.Group):
            yield from commands(command, below)


USER = pwd.getpwuid(os.getuid()).pw_name
ALL = dict(commands(program))


def shown(help_text: str) -> list[str]:
    """The command lines under Examples, up to the next empty line."""
    _, title, rest = help_text.partition("\n  Examples:\n")
    assert title, help_text
    joined = rest.split("\n\n")[0].replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def calls(line: str) -> list[list[str]]:
    """The calls of `koguma` in a shell's command line, without what the shell does to them."""
    inner = re.sub(r"^source <\((.*)\)$", r"\1", line)
    commands = []
    for part in re.split(r"\s*(?:\|\||&&|\|)\s*", inner):
        words = [
            word for word in shlex.split(re.split(r"\s[<>]", part)[0]) if not re.match(r"[A-Z_]+=", word)
        ]
        if words[0] == "runuser":
            words = words[words.index("--") + 1 :]
        if words[0] == "koguma":
            # The user of the proxy is looked up, and need not be there where tests run.
            commands.append([USER if word == "koguma-dp" else word for word in words[1:]])
    return commands


def parse(words: list[str]) -> str:
    """Take a command line apart as click does, without running it; gives the command's path."""
    ctx = click.Context(program, info_name="koguma")
    group: click.Command = program
    path = []
    while isinstance(group, click.Group):
        name, command, words = group.resolve_command(ctx, words)
        assert command is not None
        path.append(name)
        group = command
        ctx = click.Context(group, parent=ctx, info_name=name)
    group.make_context(str(path[-1]), list(words), parent=ctx.parent).close()
    return " ".join(str(name) for name in path)


@pytest.mark.parametrize("path", ["", *ALL])
def test_every_help_has_examples_that_parse_and_are_of_that_command(koguma, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.yaml").touch()  # some options look whether their file is there
    ended = koguma(*path.split(), "--help")
    assert ended.code == 0
    lines = shown(ended.out)
    called = [parse(words) for line in lines for words in calls(line)]
    assert called
    assert any(command == path or command.startswith(f"{path} ") for command in called) or not path


def test_no_examples_are_left_over():
    assert set(examples.EXAMPLES) <= set(ALL)
    assert set(root.COMMANDS) <= set(ALL)
