"""`koguma undo`: takes a past change back, by a new one."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from koguma.cli import comparison, kind_lookup, objects, options, output, plan_text, terminal
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import ApiError, CommandFailure, ExitCode
from koguma.core.plan.model import Plan

_CONFLICT: Final = 409


@click.command("undo")
@click.argument("revision", type=click.IntRange(min=1))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--discard-later", is_flag=True, help="Also where later writes to the same objects are lost.")
@options.reason
@options.output("json")
@options.connected
def command(
    client: ApiClient,
    revision: int,
    *,
    yes: bool,
    dry_run: bool,
    discard_later: bool,
    reason: str,
    output: str | None,
) -> ExitCode | None:
    """Take a change back, with all that was written together with it.

    `koguma history` has the revisions. What the objects were before the change is written as a new revision:
    what it created is deleted, what it deleted is created again. The differences, and what they do to every
    proxy, are shown first. It is refused where later writes to the same objects would be lost.
    """
    client.reason = reason
    query = [("revision", str(revision)), *([("discardLater", "true")] if discard_later else [])]
    planned = _sent(client, [*query, ("dryRun", "All"), ("plan", "true")])
    if output != "json" or not (yes or dry_run):
        for line in _planned(planned):
            print(line)
    if dry_run or not planned["changes"]:
        _print_json(planned, output)
        return None
    if not (yes or _is_agreed(revision)):
        terminal.print_stderr("nothing was changed")
        return ExitCode.REFUSED
    done = _sent(client, [*query, ("asOf", str(planned["asOf"]))])
    _print_json(done, output)
    if output != "json":
        print(_result(revision, done))
    return None


def _result(revision: int, done: Json) -> str:
    if "revision" not in done:  # somebody has taken it back in the meantime
        return f"nothing was changed: nothing of revision {revision} is left to take back"
    return f"revision {revision} is undone by revision {done['revision']}"


def _sent(client: ApiClient, query: Sequence[tuple[str, str]]) -> dict[str, Json]:
    try:
        return client.send("POST", "/_undo", query).object
    except ApiError as error:
        if error.status != _CONFLICT or not error.fields:
            raise
        lines = (*error.lines, " - --discard-later takes them back too; nothing was changed")
        raise CommandFailure(error.message, lines) from None


def _planned(planned: Json) -> Iterator[str]:
    """What is taken back, and the differences that this makes."""
    yield from (f"takes back: {_described(item)}" for item in planned["undone"])
    yield from (f"discards:   {_described(item)}" for item in planned["discarded"])
    kinds = kind_lookup.local_kinds()
    for change in planned["changes"]:
        title = objects.shown(change["type"], change["name"], change.get("mesh", ""))
        names = comparison.SideNames("now", "then")
        yield from comparison.lines(
            title, change["before"], change["after"], kinds.get(change["type"]), names
        )
    if planned.get("plan"):
        yield from plan_text.lines(msgspec.convert(planned["plan"], Plan), {})
    mark = terminal.paint("warning:", "yellow", error=True)
    for text in planned.get("warnings") or ():
        terminal.print_stderr(f"{mark} {terminal.printable(text)}")


def _described(item: Json) -> str:
    what = f"{item['action']} {objects.shown(item['type'], item['name'], item.get('mesh', ''))}"
    why = f": {item['reason']}" if item["reason"] else ""
    return terminal.printable(f"revision {item['revision']}, {item['time']}, {item['author']} {what}{why}")


def _is_agreed(revision: int) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; give --yes, or --dry-run to only see it")
    return click.confirm(f"Undo revision {revision}?", err=True)


def _print_json(answer: Json, output_format: str | None) -> None:
    if output_format == "json":
        print(output.json_text(answer))
