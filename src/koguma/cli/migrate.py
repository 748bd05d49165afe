"""`koguma migrate`: bring what is stored into the form of today."""

import sys
from collections.abc import Sequence

import click

from koguma.cli import options, terminal
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import ExitCode

_PATH = "/_migrations/storage"


@click.group("migrate")
def command() -> None:
    """Bring what is stored into the form of today."""


@command.command("storage")
@click.option("--dry-run", is_flag=True, help="Only say what is outdated.")
@options.connected
def storage(client: ApiClient, *, dry_run: bool) -> ExitCode:
    """Rewrite outdated objects, each once, however many endpoints serve it.

    Outdated is what a write of today would store in another way: objects of older versions of Koguma, and
    of custom resources whose storage version has changed. Others may write meanwhile. If it is interrupted,
    the next call goes on where it was.
    """
    if dry_run:
        sets = client.get(_PATH).field("sets")
        for each in sets:
            if each["outdated"]:
                print(f"{each['resource']}: {each['outdated']} of {each['total']} objects are outdated")
        print(f"{_sum(sets, 'outdated')} of {_sum(sets, 'total')} objects are outdated (dry run)")
        return ExitCode.FINE
    rewritten, failed = _migrated(client)
    sets = client.get(_PATH).field("sets")
    print(f"{rewritten} objects rewritten, {_sum(sets, 'total')} looked at, in {len(sets)} sets")
    for resource, reason in failed.items():
        terminal.print_stderr(f"{resource} are not all migrated: {terminal.printable(reason)}")
    return ExitCode.REFUSED if failed else ExitCode.FINE


def _migrated(client: ApiClient) -> tuple[int, dict[str, str]]:
    """Go step by step to the end, with a bar on a terminal: how many were rewritten, and what failed."""
    failed: dict[str, str] = {}
    sets = client.get(_PATH).field("sets")
    total, done = _sum(sets, "total"), _sum(sets, "done")
    if done:
        terminal.print_stderr(f"going on after {done} of {total} objects")
    rewritten = 0
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=total, label="objects", file=sys.stderr, hidden=hidden) as bar:
        bar.update(done)
        query: list[tuple[str, str]] = []
        while True:
            answer = client.send("POST", _PATH, query).object
            rewritten += int(answer["rewritten"])
            failed |= answer["failed"]
            now = _sum(answer["sets"], "done")
            bar.update(now - done)
            done = now
            if not answer["next"]:
                return rewritten, failed
            query = [("after", answer["next"])]


def _sum(sets: Sequence[Json], field: str) -> int:
    return sum(int(each[field]) for each in sets)
