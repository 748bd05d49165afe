"""Watching: prints changes as they happen, and reconnects after lost connections."""

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from koguma.cli import columns, tables, terminal
from koguma.cli.client import ApiClient, Json, Query, api_error
from koguma.cli.failures import ApiError, CommandFailure, ServerUnreachable
from koguma.cli.kind_lookup import KindInfo

_TRIES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.5
_GONE: Final = 410
_UNAVAILABLE: Final = 503
_UNAUTHENTICATED: Final = 401


def watch(
    client: ApiClient,
    watched: tuple[KindInfo, frozenset[str]],
    mesh: str | None,
    query: Query,
    output: str | None,
) -> None:
    """Print the objects, then every change, until interrupted."""
    kind, names = watched
    events = (
        event
        for event in changes(client, kind.path(mesh), query)
        if event["type"] == "BOOKMARK" or not names or event["object"]["name"] in names
    )
    printed = (
        _objects(events, output) if output in ("yaml", "json", "name", "kri") else _rows(kind, events, output)
    )
    for line in printed:
        print(line, flush=True)


def changes(client: ApiClient, path: str, query: Query) -> Iterator[Json]:
    """The events in order; after a lost connection the watch continues from the last revision."""
    revision: int | None = None
    failed = 0
    while True:
        after = () if revision is None else (("revision", str(revision)),)
        try:
            for event in client.watch(path, (*query, *after)):
                failed = 0
                if event["type"] == "ERROR":
                    raise api_error(event.get("status", _GONE), event)
                # Events before the first bookmark are the initial list, which cannot be resumed.
                if revision is not None or event["type"] == "BOOKMARK":
                    revision = int(event["revision"])
                yield event
            reason = "the server ended the watch"
        except (ServerUnreachable, ApiError) as lost:
            if revision is None or failed >= _TRIES or not _is_transient(lost, client):
                raise
            reason = lost.message
        _wait(failed, reason)
        failed += 1


def _is_transient(lost: CommandFailure, client: ApiClient) -> bool:
    """Whether trying again may help: the server is unreachable, starts or stops, or a token expired.

    A token in a file is read again for each attempt, because it may be renewed a little late.
    """
    if not isinstance(lost, ApiError):
        return True
    return lost.status == _UNAVAILABLE or (lost.status == _UNAUTHENTICATED and bool(client.target.token_file))


def _wait(failed: int, reason: str) -> None:
    terminal.print_stderr(f"{reason}; connecting again")
    time.sleep(_FIRST_PAUSE_SECONDS * 2**failed)


def _rows(kind: KindInfo, events: Iterator[Json], output: str | None) -> Iterator[str]:
    def row(event: Json) -> Sequence[str]:
        # Ages depend on the current time, which changes during the watch.
        shown = columns.columns(kind, datetime.now(UTC), wide=output == "wide")
        return (event["type"].lower(), *columns.row(shown, event["object"]))

    titles = columns.header(columns.columns(kind, datetime.now(UTC), wide=output == "wide"))
    table = tables.TextTable(("EVENT", *titles))
    first = []
    for event in events:
        if event["type"] == "BOOKMARK":
            break
        first.append(row(event))
    yield from table.start(first)
    yield from (table.row(row(event)) for event in events if event["type"] != "BOOKMARK")


def _objects(events: Iterator[Json], output: str) -> Iterator[str]:
    from koguma.cli import output as formats  # noqa: PLC0415 - tables need no YAML

    for event in events:
        if event["type"] == "BOOKMARK":
            continue
        value = event["object"]
        if output == "json":
            yield json.dumps({"type": event["type"], "object": value}, ensure_ascii=False)
        elif output == "yaml":
            yield f"--- # {event['type'].lower()}\n{formats.yaml_text(value)}".rstrip("\n")
        elif output == "kri":
            yield str(value.get("kri", ""))
        else:
            yield f"{value['type'].lower()}/{value['name']}"
