"""`koguma get`: show objects, as a table or in full, once or whenever they change."""

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
  koguma get all -m shop
"""


@click.command("get", epilog=_EXAMPLES)
@click.argument("words", nargs=-1, metavar="KIND [NAME...] | KRI...")
@options.mesh
@click.option("-A", "--all-meshes", is_flag=True, help="List the objects of all meshes.")
@click.option(
    "-l", "--labels", multiple=True, metavar="KEY=VALUE,...", help="Only objects with these labels."
)
@click.option("-w", "--watch", is_flag=True, help="Go on with every change, until Ctrl-C.")
@options.output("wide", "yaml", "json", "name", "kri")
@options.connected
def command(
    client: ApiClient,
    *,
    words: Sequence[str],
    mesh: str,
    all_meshes: bool,
    labels: Sequence[str],
    watch: bool,
    output: str | None,
) -> None:
    """Show objects: a table, YAML, JSON; or watch them.

    `get proxies` shows how far the connected proxies are, `get all` the objects of all kinds but secrets.
    """
    if words and words[0] in ("proxies", "proxy"):
        from koguma.cli import proxies  # noqa: PLC0415 - only for proxies

        if labels:
            raise click.UsageError(
                "--labels chooses from stored objects; for proxies use `koguma get dataplanes -l`"
            )
        shown = proxies.watch if watch else proxies.show
        shown(client, words[1:], None if all_meshes else mesh, output)
        return
    if tuple(words) == ("all",):
        from koguma.cli import get_all  # noqa: PLC0415 - only for all kinds

        if watch:
            raise click.UsageError("-w watches one kind: give KIND, or KIND and names")
        get_all.show(client, None if all_meshes else mesh, filters(labels), output)
        return
    wanted = objects.read(client, words, mesh)
    if wanted.references and (all_meshes or labels):
        raise click.UsageError("--all-meshes and --labels choose from lists; a named object is one")
    where = None if all_meshes else mesh
    if watch:
        from koguma.cli import watching  # noqa: PLC0415 - only for -w

        watching.watch(client, _watched(wanted), where, filters(labels), output)
    elif wanted.kind is not None and not wanted.references:
        found = list(client.pages(wanted.kind.path(where), filters(labels)))
        _show_list(wanted.kind, found, output, where)
    else:
        _show_named(client, wanted, output)


def filters(labels: Iterable[str]) -> Query:
    """Label options as query parameters."""
    query = []
    for label in (part for option in labels for part in option.split(",") if part):
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise click.UsageError(f'--labels: "{label}" must be KEY=VALUE')
        query.append((f"filter[labels.{key}]", value))
    return query


def _watched(wanted: ObjectSelection) -> tuple[KindInfo, frozenset[str]]:
    """The kind to watch, and the names to look for in it; all where there is none."""
    named = [reference for reference in wanted.references if isinstance(reference, ObjectName)]
    kinds = {reference.kind for reference in named} | ({wanted.kind} if wanted.kind else set())
    if len(kinds) != 1 or len(named) != len(wanted.references):
        raise click.UsageError("-w watches one kind: give KIND, or KIND and names")
    return kinds.pop(), frozenset(reference.name for reference in named)


def _show_list(kind: KindInfo, found: list[Json], output: str | None, mesh: str | None) -> None:
    if not found and output != "json":
        place = f" in mesh {mesh}" if kind.is_mesh_scoped and mesh is not None else ""
        terminal.print_stderr(f"no {kind.plural}{place}")
        return
    if output == "json":
        _print(json_lines({"total": len(found), "items": found}))
    else:
        _print(lines(kind, found, output))


def _show_named(client: ApiClient, wanted: ObjectSelection, output: str | None) -> None:
    found = [answer.object for answer in objects.fetched(client, wanted.references)]
    if output == "json":
        _print(json_lines(found[0] if len(found) == 1 else {"total": len(found), "items": found}))
        return
    if output in ("yaml", "name", "kri"):
        _print(in_full(found, output))
        return
    known = kind_lookup.from_server(client)
    for kind in dict.fromkeys(value["type"] for value in found):
        kind_info = known.find(kind)
        _print(lines(kind_info, [value for value in found if value["type"] == kind], output))


def lines(kind: KindInfo, found: Sequence[Json], output: str | None) -> Iterable[str]:
    """Objects of one kind in the chosen form."""
    if output not in (None, "wide"):
        return in_full(found, output)
    chosen = columns.columns(kind, datetime.now(UTC), wide=output == "wide")
    return tables.lines(columns.header(chosen), (columns.row(chosen, value) for value in found))


def in_full(found: Sequence[Json], output: str) -> Iterator[str]:
    """Objects as YAML documents, or their names or KRIs alone."""
    if output == "name":
        yield from (f"{value['type'].lower()}/{value['name']}" for value in found)
    elif output == "kri":
        yield from (value["kri"] for value in found if "kri" in value)
    else:
        from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for YAML

        yield form.yaml_stream(found).rstrip("\n")


def json_lines(value: Json) -> Iterator[str]:
    """A value as JSON."""
    from koguma.cli import output as form  # noqa: PLC0415 - tables do not pay for YAML

    yield form.json_text(value)


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
