"""`koguma check`: checks the control plane from this machine, with a hint for each problem."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import click

from koguma.cli import checks, options, terminal
from koguma.cli.checks import ERROR, OK, WARNING, CheckResult
from koguma.cli.client import ApiClient
from koguma.cli.failures import ExitCode

_SIGNS = {OK: ("✓", "+", "green"), WARNING: ("!", "!", "yellow"), ERROR: ("✗", "x", "red")}


@click.command("check")
@options.output("json")
@options.connected
def command(client: ApiClient, *, output: str | None) -> ExitCode:
    """Check the control plane, a line each with what to do; exit code 1 if something is wrong."""
    results = checks.all_checks(client, datetime.now(UTC))
    if output == "json":
        from koguma.cli.output import json_text  # noqa: PLC0415 - the table does not need it

        all_results = list(results)
        print(json_text({"checks": [result._asdict() for result in all_results]}))
        return _exit_code(all_results)
    return _show(results)


def _show(results: Iterable[CheckResult]) -> ExitCode:
    """Print each result as soon as it is there, then a summary."""
    shown = []
    for result in results:
        shown.append(result)
        for line in lines(result):
            print(line, flush=True)
    count = {status: sum(result.status == status for result in shown) for status in _SIGNS}
    print(f"{count[OK]} fine, {count[WARNING]} to look at, {count[ERROR]} wrong")
    return _exit_code(shown)


def lines(result: CheckResult) -> Iterator[str]:
    """A result for humans: a sign, the check, and the hint below it."""
    sign, plain, colour = _SIGNS[result.status]
    painted = terminal.paint(sign if terminal.can_show("✓✗") else plain, colour)
    yield f"{painted} {result.name}: {terminal.printable(result.message)}"
    if result.hint and result.status != OK:
        yield f"    {terminal.printable(result.hint)}"


def _exit_code(results: Iterable[CheckResult]) -> ExitCode:
    has_error = any(result.status == ERROR for result in results)
    return ExitCode.REFUSED if has_error else ExitCode.FINE
