"""Commands: the page with every command, option and exit code."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Final

import click

from docs.writing import tables
from koguma.cli import options
from koguma.cli.failures import ExitCode
from koguma.cli.root import root

_CODES: Final[Mapping[ExitCode, str]] = {
    ExitCode.FINE: "fine",
    ExitCode.REFUSED: "the server or a check said no, or something is not there; `diff`: something differs;"
    " where 2 is an answer: wrong usage, too",
    ExitCode.USAGE: "wrong usage; `diff`: what is 1 elsewhere; `plan`, `can`, `test`, `wait`, `--wait`:"
    " an answer",
    ExitCode.UNREACHABLE: "the server cannot be reached",
    ExitCode.DENIED: "not authenticated, or not allowed",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.BROKEN_PIPE: "whoever read the output stopped reading",
}


def page() -> str:
    """The page."""
    return tables.page("the commands' own help", _cli_lines())


def _cli_lines() -> Iterator[str]:
    yield "# The command line"
    yield ""
    yield "Examples, and how the server is found: [the command line](../cli.md). Each command has a `--help`."
    yield ""
    yield from tables.table(("Exit code", "Meaning"), [(str(int(code)), _CODES[code]) for code in ExitCode])
    yield "## Finding the server"
    yield ""
    yield "Every command that asks a server takes these."
    yield ""
    yield from tables.table(("Option", "Meaning"), _options(_CONNECTED))
    context = click.Context(root, info_name="koguma")
    yield "## Commands"
    yield ""
    yield from tables.table(
        ("Command", "What it does"),
        [
            (f"[`koguma {name}`](#koguma-{name})", tables.text(_summary(context, name)))
            for name in root.list_commands(context)
        ],
    )
    yield from _group_lines(root, context)


def _summary(context: click.Context, name: str) -> str:
    command = root.get_command(context, name)
    assert command is not None
    return (command.help or "").partition("\n")[0]


def _group_lines(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield from _command_lines(command, below)
        if isinstance(command, click.Group):
            yield from _group_lines(command, below)


def _command_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"{'#' * (1 + context.command_path.count(' '))} {context.command_path}"
    yield ""
    yield _prose(command.help)
    yield ""
    if isinstance(command, click.Group):
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{context.command_path} {usage}\n```"
    yield ""
    yield from _option_lines(command)
    if command.epilog:
        title, _, examples = _prose(command.epilog).partition("\n")
        yield f"{title}\n\n```sh\n{inspect.cleandoc(examples)}\n```"
        yield ""


def _option_lines(command: click.Command) -> Iterator[str]:
    rows, common = _options(command), _options(_CONNECTED)
    is_connected = set(common) <= set(rows)
    own = [row for row in rows if not is_connected or row not in common]
    if own:
        yield from tables.table(("Option", "Meaning"), own)
    if is_connected:
        yield f"It {'also ' if own else ''}takes the [options that find the server](#finding-the-server)."
        yield ""


_CONNECTED: Final = click.Command("any", params=click.command()(options.connection(lambda: None)).params)


def _options(command: click.Command) -> list[tuple[str, str]]:
    """The options and their words; arguments stand in the usage line, and `--help` everywhere."""
    records = [option.get_help_record(click.Context(command)) for option in command.params]
    return [(tables.code(names), tables.text(words)) for names, words in filter(None, records) if words]


def _prose(text: str | None) -> str:
    return re.sub(r"\x08\n?", "", inspect.cleandoc(text or ""))
