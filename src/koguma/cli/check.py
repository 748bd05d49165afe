"""`koguma check`: look at the control plane from here, and say what to do where something is not fine."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import click

from koguma.cli import findings, options, terminal
from koguma.cli.client import Client
from koguma.cli.failures import ExitCode
from koguma.cli.findings import ERROR, OK, WARNING, Finding

_SIGNS = {OK: ("✓", "+", "green"), WARNING: ("!", "!", "yellow"), ERROR: ("✗", "x", "red")}


@click.command("check")
@options.output("json")
@options.connected
def command(client: Client, *, output: str | None) -> ExitCode:
    """Check the control plane, a line each with what to do; exit code 1 if something is wrong."""
    found = findings.all_findings(client, datetime.now(UTC))
    if output == "json":
        from koguma.cli.output import json_text  # noqa: PLC0415 - people do not read JSON

        kept = list(found)
        print(json_text({"checks": [finding._asdict() for finding in kept]}))
        return _code(kept)
    return _shown(found)


def _shown(found: Iterable[Finding]) -> ExitCode:
    kept = []
    for finding in found:
        kept.append(finding)
        for line in lines(finding):
            print(line, flush=True)
    count = {status: sum(finding.status == status for finding in kept) for status in _SIGNS}
    print(f"{count[OK]} fine, {count[WARNING]} to look at, {count[ERROR]} wrong")
    return _code(kept)


def lines(finding: Finding) -> Iterator[str]:
    """A finding for people: a sign, what it is about, and what to do below it."""
    sign, plain, colour = _SIGNS[finding.status]
    painted = terminal.paint(sign if terminal.can_show("✓✗") else plain, colour)
    yield f"{painted} {finding.name}: {terminal.printable(finding.message)}"
    if finding.hint and finding.status != OK:
        yield f"    {terminal.printable(finding.hint)}"


def _code(found: Iterable[Finding]) -> ExitCode:
    wrong = any(finding.status == ERROR for finding in found)
    return ExitCode.REFUSED if wrong else ExitCode.FINE
