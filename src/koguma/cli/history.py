"""`koguma history`: who changed what, when and why, newest first."""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

import click

from koguma.cli import kind_lookup, objects, options, output, tables, terminal
from koguma.cli.client import ApiClient, Json, Query
from koguma.cli.objects import ObjectName

_PAGE_MAX: Final = 1_000
_DEFAULT_MESH: Final = "default"
_REASON_MAX: Final = 60


@click.command("history")
@click.argument("words", nargs=-1, metavar="[KIND [NAME]]")
@click.option("-m", "--mesh", help="Only this mesh and its objects; of a named object, `default` by default.")
@click.option("--since", metavar="2h|TIME", help="Only what is newer.")
@click.option("--by", metavar="USER", help="Only what this user wrote; `system` is the control plane itself.")
@click.option("--all", "everything", is_flag=True, help="Also what the control plane wrote by itself.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="At most so many changes.",
)
@options.output("wide", "json", "yaml")
@options.connected
def command(  # noqa: PLR0913 - one for each option
    client: ApiClient,
    *,
    words: Sequence[str],
    mesh: str | None,
    since: str | None,
    by: str | None,
    everything: bool,
    limit: int,
    output: str | None,
) -> None:
    """Show who changed what, when and why, newest first.

    Without a name, what the control plane wrote by itself is left out, as generated services and statuses.
    -o wide counts the proxies that got another configuration by each change; that takes longer. A REVISION is
    what `koguma undo`, `koguma diff` and --at take.
    """
    path, query = _request(client, words, mesh)
    query += [("since", since)] if since else []
    query += [("by", by)] if by else []
    query += [("people", "true")] if not (everything or by or _is_named(words)) else []
    query += [("proxies", "true")] if output == "wide" else []
    items, oldest, is_complete, warning = _changes(client, path, query, limit)
    for line in _lines(items, output):
        print(line)
    if warning:
        terminal.print_stderr(f"note: {terminal.printable(warning)}")
    if output in (None, "wide"):
        _note_rest(items, oldest, limit, is_complete=is_complete)


def _is_named(words: Sequence[str]) -> bool:
    return len(words) > 1 or any("/" in word or objects.is_kri(word) for word in words)


def _request(client: ApiClient, words: Sequence[str], mesh: str | None) -> tuple[str, list[tuple[str, str]]]:
    """The path and the query for what the words name."""
    in_mesh = [("mesh", mesh)] if mesh is not None else []
    if not words:
        return "/_history", in_mesh
    selection = objects.read(client, words, mesh or _DEFAULT_MESH)
    if not selection.references:
        assert selection.kind is not None
        return "/_history", [("kind", selection.kind.name), *in_mesh]
    if len(selection.references) > 1:
        raise click.UsageError("name one object: KIND NAME, KIND/NAME or a KRI")
    (reference,) = selection.references
    if not isinstance(reference, ObjectName):
        value = client.get(reference.path).object
        reference = objects.named(kind_lookup.from_server(client), value)
    return f"{reference.path}/_history", []


def _changes(client: ApiClient, path: str, query: Query, limit: int) -> tuple[list[Json], int, bool, str]:
    """The changes, the oldest revision that is kept in full, whether these are all, and a warning."""
    items: list[Json] = []
    before = ""
    while True:
        size = min(limit - len(items), _PAGE_MAX)
        page = client.get(path, (*query, ("size", str(size)), *([("before", before)] if before else [])))
        items += page.field("items")
        before = parse_qs(urlsplit(page.object.get("next") or "").query).get("before", [""])[0]
        if not before or len(items) >= limit:
            return items, page.field("oldest"), not before, page.object.get("warning") or ""


def _lines(items: Sequence[Json], output_format: str | None) -> Iterator[str]:
    if output_format == "json":
        yield output.json_text({"items": list(items)})
    elif output_format == "yaml":
        yield output.yaml_text({"items": list(items)}).rstrip("\n")
    elif items:
        is_wide = output_format == "wide"
        header = ["REVISION", "TIME", "AUTHOR", "WHAT", *(["PROXIES"] if is_wide else []), "REASON"]
        yield from tables.lines(header, (tuple(_row(item, is_wide=is_wide)) for item in items))


def _row(item: Json, *, is_wide: bool) -> Iterator[str]:
    yield str(item["revision"])
    yield item["time"]
    yield item["author"]
    yield f"{item['action']} {objects.shown(item['type'], item['name'], item.get('mesh', ''))}"
    if is_wide:
        yield str(item.get("proxies", "?"))
    reason = item["reason"]
    yield reason if is_wide or len(reason) <= _REASON_MAX else f"{reason[: _REASON_MAX - 3]}..."


def _note_rest(items: Sequence[Json], oldest: int, limit: int, *, is_complete: bool) -> None:
    if not items:
        terminal.print_stderr("no changes")
    if not is_complete:
        terminal.print_stderr(f"there are older ones; --limit {limit * 10} shows more")
    elif oldest:
        terminal.print_stderr(f"the history is complete from revision {oldest} on")
