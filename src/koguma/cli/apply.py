"""`koguma apply`: write the objects in files, all of them or none."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from koguma.cli import arrival, inputs, objects, options, terminal
from koguma.cli.arrival import ArrivalWait, Awaited
from koguma.cli.client import ApiClient, ApiResponse, Json
from koguma.cli.failures import ApiError
from koguma.model.documents import Document

_COLOURS: Final = {"created": "green", "configured": "yellow", "deleted": "red"}


@click.command("apply", cls=options.ReadsFiles)
@options.files
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--set", "set_name", metavar="NAME", help="Mark the objects as one set, for --prune.")
@click.option("--wait", is_flag=True, help="Wait until every proxy that this touches has acknowledged it.")
@arrival.options
@click.option("--prune", is_flag=True, help="Remove what the set had and the files no longer have.")
@click.option(
    "--field-validation",
    type=click.Choice(("Strict", "Warn", "Ignore"), case_sensitive=False),
    default="Strict",
    show_default=True,
    help="What happens to fields that do not exist.",
)
@options.reason
@options.connected
def command(  # noqa: PLR0913 - what users choose
    client: ApiClient,
    *,
    files: Sequence[str],
    dry_run: bool,
    set_name: str | None,
    prune: bool,
    field_validation: str,
    reason: str,
    wait: bool,
    timeout: float,
    connected: bool,
) -> int:
    """Write objects from files, all of them or none.

    Files hold plain objects (type, name, mesh, spec) and Kubernetes ones (apiVersion, kind, metadata,
    spec), mixed as you like. A line for each object says whether it was created, configured, unchanged or
    deleted.

    With --wait the exit code is 2 where not every proxy has it in time, or one refuses it; it stays written.
    """
    client.reason = reason
    documents = inputs.read(files)
    answer = _answer(
        client, documents, set_name=set_name, prune=prune, validation=field_validation, dry_run=dry_run
    )
    results: list[Json] = answer.field("results")
    for line in warnings(documents, results):
        terminal.print_stderr(line)
    for result in results:
        print(_line(result, dry_run=dry_run), flush=True)
    if not wait or dry_run:
        return 0
    written = [each for each in results if each["action"] != "unchanged"]
    left = [each for each in results if each["action"] == "unchanged"]
    return arrival.wait(
        ArrivalWait(
            client,
            Awaited.of((answer.field("revision"), *_revisions(written))),
            timeout,
            unchanged=Awaited.of(_revisions(left), [each["kri"] for each in left if "kri" in each]),
            connected=connected,
            is_written=True,
        )
    )


def _revisions(results: Iterable[Json]) -> Iterator[int]:
    return (each["revision"] for each in results if "revision" in each)


def applied(
    client: ApiClient,
    documents: Sequence[Document],
    *,
    set_name: str | None = None,
    prune: bool = False,
    validation: str = "Strict",
    dry_run: bool = False,
) -> list[Json]:
    """Apply objects; returns the server's result for each. Errors name places in the files."""
    answer = _answer(
        client, documents, set_name=set_name, prune=prune, validation=validation, dry_run=dry_run
    )
    results: list[Json] = answer.field("results")
    return results


def _answer(
    client: ApiClient,
    documents: Sequence[Document],
    *,
    set_name: str | None,
    prune: bool,
    validation: str,
    dry_run: bool,
) -> ApiResponse:
    if prune and not set_name:
        raise click.UsageError("--prune needs --set NAME: the set whose leftovers are removed")
    body: dict[str, Json] = {"objects": [document.value for document in documents]}
    if set_name:
        body |= {"set": set_name, "prune": prune}
    query = [("fieldValidation", validation), *([("dryRun", "All")] if dry_run else [])]
    try:
        return client.send("POST", "/_apply", query, body)
    except ApiError as error:
        raise inputs.located(documents, error) from None


def warnings(documents: Sequence[Document], results: Sequence[Json]) -> Iterator[str]:
    """The server's warnings, with places in files; results come in the order of the objects."""
    mark = terminal.paint("warning:", "yellow", error=True)
    for document, result in zip(documents, results, strict=False):
        for text in result.get("warnings") or ():
            field = text.partition(":")[0].partition(" ")[0]
            yield f"{mark} {inputs.place(document, field)}: {terminal.printable(text)}"
    for result in results[len(documents) :]:  # pruned objects are in no file
        name = objects.shown(result["type"], result["name"], result.get("mesh", ""))
        yield from (f"{mark} {name}: {terminal.printable(text)}" for text in result.get("warnings") or ())


def _line(result: Json, *, dry_run: bool) -> str:
    action = result["action"]
    painted = terminal.paint(action, _COLOURS[action]) if action in _COLOURS else action
    name = objects.shown(result["type"], result["name"], result.get("mesh", ""))
    return f"{name} {painted}" + (" (dry run)" if dry_run else "")
