"""`koguma top`: requests, errors and latencies of the services or proxies of a mesh, live or once."""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from koguma.cli import options, output, tables, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, ServerUnreachable
from koguma.cli.tables import TextTable

Json = Any

_SERVICES: Final = (
    "SERVICE",
    "REQ/S",
    "5XX/S",
    "RESET/S",
    "CONN/S",
    "CONN FAILED/S",
    "P50",
    "P99",
    "CALLERS",
)
_PROXIES: Final = (
    *("PROXY", "IN REQ/S", "5XX/S", "CONN/S", "APP CONN FAILED/S", "P50", "P99"),
    *("OUT REQ/S", "OUT 5XX/S", "OUT CONN FAILED/S"),
)
_SECONDS_MIN: Final = 0.1
_SECONDS_MAX: Final = 30.0
_UNAVAILABLE: Final = 503
_PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_ENTER: Final = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_END_OF_LINE: Final = "\x1b[K"
_END_OF_SCREEN: Final = "\x1b[J"
_MILLISECONDS: Final = 1000.0
_PRECISE_BELOW: Final = 10


@click.command("top")
@click.argument("by", type=click.Choice(("services", "proxies")), default="services")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@options.mesh
@click.option(
    "--interval",
    type=click.FloatRange(_SECONDS_MIN, _SECONDS_MAX),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each figure is counted for.",
)
@click.option("--limit", type=click.IntRange(1, 500), help="Ask at most this many proxies (100).")
@click.option("--once", is_flag=True, help="Print one table and end.")
@options.output("json")
@options.connected
def command(  # noqa: PLR0913 - what users choose
    client: ApiClient,
    *,
    by: str,
    names: Sequence[str],
    mesh: str,
    interval: float,
    limit: int | None,
    once: bool,
    output: str | None,
) -> None:
    """Show requests, errors and latencies of services or proxies, as their Envoys count them.

    Services are seen by their callers. Percentiles are of what ended between the last two flushes of Envoy's
    stats, which it does every five seconds.
    """
    query = [("by", by), ("seconds", f"{interval:g}"), *(("name", name) for name in names)]
    if limit is not None:
        query.append(("limit", str(limit)))
    answers = _answers(client, f"/meshes/{quote(mesh, safe='')}/_top", query, once=once)
    if output == "json":
        _print_json(answers, once=once)
    elif once:
        _print(lines(next(answers)))
    elif sys.stdout.isatty():
        _redraw(answers)
    else:
        _print(_plain_lines(answers))


def _answers(client: ApiClient, path: str, query: list[tuple[str, str]], *, once: bool) -> Iterator[Json]:
    """One answer after the other; each takes the interval. Transient failures are retried, but the first."""
    yield client.get(path, query).object
    failed = 0
    while not once:
        try:
            answer = client.get(path, query).object
        except (ServerUnreachable, ApiError) as lost:
            is_refusal = isinstance(lost, ApiError) and lost.status != _UNAVAILABLE
            if is_refusal or failed == len(_PAUSES_SECONDS):
                raise
            terminal.print_stderr(f"{lost.message}; connecting again")
            time.sleep(_PAUSES_SECONDS[failed])
            failed += 1
        else:
            failed = 0
            yield answer


def _print_json(answers: Iterator[Json], *, once: bool) -> None:
    if once:
        print(output.json_text(next(answers)))
        return
    for answer in answers:
        print(json.dumps(answer, ensure_ascii=False), flush=True)


def _print(text: Iterator[str]) -> None:
    for line in text:
        print(line, flush=True)


def _redraw(answers: Iterator[Json]) -> None:
    """Draw each answer over the one before, on a screen of its own."""
    sys.stdout.write(f"{_ENTER}{_HOME}{_END_OF_SCREEN}waiting for the first figures ...")
    sys.stdout.flush()
    try:
        for answer in answers:
            size = shutil.get_terminal_size()
            shown = [line[: size.columns] for line in lines(answer)][: size.lines - 1]
            body = "".join(f"{line}{_END_OF_LINE}\r\n" for line in shown)
            sys.stdout.write(f"{_HOME}{body}{_END_OF_SCREEN}")
            sys.stdout.flush()
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _plain_lines(answers: Iterator[Json]) -> Iterator[str]:
    """One line for each row of each answer, with its time; the header once."""
    table: TextTable | None = None
    for answer in answers:
        now = datetime.now(UTC).strftime("%H:%M:%S")
        rows = [(now, *row) for row in _rows(answer)]
        if table is None:
            table = TextTable(("TIME", *_titles(answer)))
            yield from table.start(rows)
        else:
            yield from map(table.row, rows)


def lines(answer: Json) -> Iterator[str]:
    """One answer: who was asked, a table, and who did not answer."""
    asked = answer["proxies"]
    time_shown = datetime.now(UTC).strftime("%H:%M:%S")
    sample = " (a sample; --limit asks more)" if asked["isSample"] else ""
    of_proxies = f"{asked['answered']} of {asked['of']} proxies{sample}"
    yield f"{time_shown}  mesh {answer['mesh']}, {of_proxies}, over {answer['seconds']:g} s"
    yield ""
    if answer["items"]:
        yield from tables.lines(_titles(answer), _rows(answer))
    else:
        yield "no traffic has been counted yet" if asked["answered"] else "no proxy has answered"
    if asked["unanswered"]:
        yield ""
    for each in asked["unanswered"]:
        yield f"{terminal.printable(each['name'])} did not answer: {terminal.printable(each['reason'])}"


def _titles(answer: Json) -> Sequence[str]:
    return _SERVICES if answer["by"] == "services" else _PROXIES


def _rows(answer: Json) -> Iterator[tuple[str, ...]]:
    for item in answer["items"]:
        yield _service_row(item) if answer["by"] == "services" else _proxy_row(item)


def _service_row(item: Json) -> tuple[str, ...]:
    return (
        item["name"],
        *(_rate(item[name]) for name in ("requests", "errors", "resets", "connections", "connectFailures")),
        _latency(item["p50Ms"]),
        _latency(item["p99Ms"]),
        str(item["callers"]),
    )


def _proxy_row(item: Json) -> tuple[str, ...]:
    served, called = item["served"], item["called"]
    return (
        item["name"],
        *(_rate(served[name]) for name in ("requests", "errors", "connections", "connectFailures")),
        _latency(served["p50Ms"]),
        _latency(served["p99Ms"]),
        *(_rate(called[name]) for name in ("requests", "errors", "connectFailures")),
    )


def _rate(value: float) -> str:
    return f"{value:.1f}" if value else tables.EMPTY


def _latency(value: float | None) -> str:
    if value is None:
        return tables.EMPTY
    if value >= _MILLISECONDS:
        return f"{value / _MILLISECONDS:.2f}s"
    return f"{value:.1f}ms" if value < _PRECISE_BELOW else f"{value:.0f}ms"
