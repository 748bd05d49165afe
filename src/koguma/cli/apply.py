"""`koguma apply`: write the objects in files, all of them or none."""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from koguma.cli import inputs, objects, options, terminal
from koguma.cli.client import Client, Json
from koguma.cli.failures import Refused
from koguma.model.documents import Document

_COLOURS: Final = {"created": "green", "configured": "yellow", "deleted": "red"}


@click.command("apply", cls=options.ReadsFiles)
@options.files
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--set", "set_name", metavar="NAME", help="Mark the objects as one set, for --prune.")
@click.option("--prune", is_flag=True, help="Remove what the set had and the files no longer have.")
@click.option(
    "--field-validation",
    type=click.Choice(("Strict", "Warn", "Ignore"), case_sensitive=False),
    default="Strict",
    show_default=True,
    help="What happens to fields that do not exist.",
)
@options.connected
def command(
    client: Client,
    *,
    files: Sequence[str],
    dry_run: bool,
    set_name: str | None,
    prune: bool,
    field_validation: str,
) -> None:
    """Write objects from files, all of them or none.

    Files hold plain objects (type, name, mesh, spec) and Kubernetes ones (apiVersion, kind, metadata,
    spec), mixed as you like. A line for each object says whether it was created, configured, unchanged or
    deleted.
    """
    read = inputs.read(files)
    results = applied(
        client, read, set_name=set_name, prune=prune, validation=field_validation, dry_run=dry_run
    )
    for line in warnings(read, results):
        terminal.complain(line)
    for result in results:
        print(_line(result, dry_run=dry_run))


def applied(
    client: Client,
    read: Sequence[Document],
    *,
    set_name: str | None = None,
    prune: bool = False,
    validation: str = "Strict",
    dry_run: bool = False,
) -> list[Json]:
    """What the server did with each object; what it says against them is told with places in files."""
    if prune and not set_name:
        raise click.UsageError("--prune needs --set NAME: the set whose leftovers are removed")
    body: dict[str, Json] = {"objects": [document.value for document in read]}
    if set_name:
        body |= {"set": set_name, "prune": prune}
    query = [("fieldValidation", validation), *([("dryRun", "All")] if dry_run else [])]
    try:
        results: list[Json] = client.send("POST", "/_apply", query, body).part("results")
    except Refused as refused:
        raise inputs.located(read, refused) from None
    return results


def warnings(read: Sequence[Document], results: Sequence[Json]) -> Iterator[str]:
    """What the writer of a file should hear; results come in the order of the objects."""
    mark = terminal.paint("warning:", "yellow", error=True)
    for document, result in zip(read, results, strict=False):
        for text in result.get("warnings") or ():
            field = text.partition(":")[0].partition(" ")[0]
            yield f"{mark} {inputs.place(document, field)}: {terminal.printable(text)}"
    for result in results[len(read) :]:  # what is pruned is in no file
        name = objects.shown(result["type"], result["name"], result.get("mesh", ""))
        yield from (f"{mark} {name}: {terminal.printable(text)}" for text in result.get("warnings") or ())


def _line(result: Json, *, dry_run: bool) -> str:
    action = result["action"]
    painted = terminal.paint(action, _COLOURS[action]) if action in _COLOURS else action
    name = objects.shown(result["type"], result["name"], result.get("mesh", ""))
    return f"{name} {painted}" + (" (dry run)" if dry_run else "")
