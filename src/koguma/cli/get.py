"""`koguma get`: list or watch objects, as a table, YAML, JSON or names."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import click

from koguma.cli import columns, kind_lookup, objects, options, tables, terminal
from koguma.cli.client import ApiClient, Json, Query
from koguma.cli.kind_lookup import KindInfo
from koguma.cli.objects import ObjectName, ObjectSelection

_EXAMPLES = """\b
Examples:
  koguma get meshes
  koguma get mt -m shop -o wide
  koguma get meshtimeout backend-is-quick -o yaml
  koguma get kri_mt_default___backend-is-quick_
  koguma get dataplanes -A -l team=blue -w
  koguma get proxies -A -w
  koguma get endpoints backend -m shop
  koguma get all -m shop
  koguma get meshtimeouts -m shop --at 2h
"""


@click.command("get", epilog=_EXAMPLES)
@click.argument("words", nargs=-1, metavar="KIND [NAME...] | KRI...")
@options.mesh
@click.option("-A", "--all-meshes", is_flag=True, help="List the objects of all meshes.")
@click.option(
    "-l", "--labels", multiple=True, metavar="KEY=VALUE,...", help="Only objects with these labels."
)
@click.option("-w", "--watch", is_flag=True, help="Go on with every change, until Ctrl-C.")
@options.at
@options.output("wide", "yaml", "json", "name", "kri")
@options.connected
def command(  # noqa: PLR0913 - one for each option
    client: ApiClient,
    *,
    words: Sequence[str],
    mesh: str,
    all_meshes: bool,
    labels: Sequence[str],
    watch: bool,
    at: str | None,
    output: str | None,
) -> None:
    """Show objects: a table, YAML, JSON; or watch them.

    `get proxies` shows how far the connected proxies are, `get endpoints SERVICE` who serves a service and
    why it does not answer, `get zones` which zones are online and how far behind they are, `get all` the
    objects of all kinds but secrets.
    """
    _refuse_past(words, at, watch=watch)
    if words and words[0] in ("proxies", "proxy"):
        from koguma.cli import proxies  # noqa: PLC0415 - only for proxies

        if labels:
            raise click.UsageError(
                "--labels chooses from stored objects; for proxies use `koguma get dataplanes -l`"
            )
        show = proxies.watch if watch else proxies.show
        show(client, words[1:], None if all_meshes else mesh, output)
        return
    if words and words[0] in ("endpoints", "endpoint"):
        from koguma.cli import service_endpoints  # noqa: PLC0415 - only for endpoints

        if labels or watch or all_meshes:
            raise click.UsageError("endpoints are shown of named services: leave out -l, -w and -A")
        service_endpoints.show(client, words[1:], mesh, output)
        return
    if words and words[0] in ("zones", "zone", "z") and output in (None, "wide") and not (watch or at):
        from koguma.cli import zones  # noqa: PLC0415 - only for zones

        zones.show(client, words[1:], filters(labels), wide=output == "wide")
        return
    if tuple(words) == ("all",):
        from koguma.cli import get_all  # noqa: PLC0415 - only for all kinds

        if watch:
            raise click.UsageError("-w watches one kind: give KIND, or KIND and names")
        query = [*filters(labels), *options.at_query(at)]
        get_all.show(client, None if all_meshes else mesh, query, output)
        return
    selection = objects.read(client, words, mesh)
    if selection.references and (all_meshes or labels):
        raise click.UsageError("--all-meshes and --labels choose from lists; a named object is one")
    listed_mesh = None if all_meshes else mesh
    if watch:
        from koguma.cli import watching  # noqa: PLC0415 - only for -w

        watching.watch(client, _watched(selection), listed_mesh, filters(labels), output)
    elif selection.kind is not None and not selection.references:
        query = [*filters(labels), *options.at_query(at)]
        values = list(client.pages(selection.kind.path(listed_mesh), query))
        _show_list(selection.kind, values, output, listed_mesh)
    else:
        _show_named(client, selection, output, options.at_query(at))


def _refuse_past(words: Sequence[str], at: str | None, *, watch: bool) -> None:
    if at is None:
        return
    if watch:
        raise click.UsageError("--at shows one past moment, and -w what is to come: give one of them")
    if words and words[0] in ("proxies", "proxy", "endpoints", "endpoint"):
        raise click.UsageError(
            f"--at is for stored objects, and what {words[0]} do is known of now alone;"
            " `koguma get dataplanes --at` has the proxies that were stored"
        )


def filters(labels: Iterable[str]) -> Query:
    """Label options as query parameters."""
    query = []
    for label in (part for option in labels for part in option.split(",") if part):
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise click.UsageError(f'--labels: "{label}" must be KEY=VALUE')
        query.append((f"filter[labels.{key}]", value))
    return query


def _watched(selection: ObjectSelection) -> tuple[KindInfo, frozenset[str]]:
    """The kind to watch, and the names to watch; no names: all objects of the kind."""
    named = [reference for reference in selection.references if isinstance(reference, ObjectName)]
    kinds = {reference.kind for reference in named} | ({selection.kind} if selection.kind else set())
    if len(kinds) != 1 or len(named) != len(selection.references):
        raise click.UsageError("-w watches one kind: give KIND, or KIND and names")
    return kinds.pop(), frozenset(reference.name for reference in named)


def _show_list(kind: KindInfo, values: list[Json], output: str | None, mesh: str | None) -> None:
    if not values and output != "json":
        place = f" in mesh {mesh}" if kind.is_mesh_scoped and mesh is not None else ""
        terminal.print_stderr(f"no {kind.plural}{place}")
        return
    if output == "json":
        _print(json_lines({"total": len(values), "items": values}))
    else:
        _print(lines(kind, values, output))


def _show_named(client: ApiClient, selection: ObjectSelection, output: str | None, query: Query) -> None:
    values = [answer.object for answer in objects.fetched(client, selection.references, query)]
    if output == "json":
        _print(json_lines(values[0] if len(values) == 1 else {"total": len(values), "items": values}))
        return
    if output in ("yaml", "name", "kri"):
        _print(in_full(values, output))
        return
    kinds = kind_lookup.from_server(client)
    for type_ in dict.fromkeys(value["type"] for value in values):
        _print(lines(kinds.find(type_), [value for value in values if value["type"] == type_], output))


def lines(kind: KindInfo, values: Sequence[Json], output: str | None) -> Iterable[str]:
    """Objects of one kind in the chosen format."""
    if output not in (None, "wide"):
        return in_full(values, output)
    shown = columns.columns(kind, datetime.now(UTC), wide=output == "wide")
    return tables.lines(columns.header(shown), (columns.row(shown, value) for value in values))


def in_full(values: Sequence[Json], output: str) -> Iterator[str]:
    """Objects as YAML documents, or their names or KRIs alone."""
    if output == "name":
        yield from (f"{value['type'].lower()}/{value['name']}" for value in values)
    elif output == "kri":
        yield from (value["kri"] for value in values if "kri" in value)
    else:
        from koguma.cli import output as formats  # noqa: PLC0415 - tables need no YAML

        yield formats.yaml_stream(values).rstrip("\n")


def json_lines(value: Json) -> Iterator[str]:
    """A value as JSON."""
    from koguma.cli import output as formats  # noqa: PLC0415 - tables need no JSON

    yield formats.json_text(value)


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
