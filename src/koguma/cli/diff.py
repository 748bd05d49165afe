"""`koguma diff`: what `koguma apply` of the same files would change, line by line.

The server tries the change without writing, so that its own rules decide what is new, what changes and what a
pruned set loses; the lines compare what is stored with what the files say.
"""

from collections.abc import Sequence
from typing import Final

import click

from koguma.cli import apply, comparison, inputs, nouns, objects, options, terminal
from koguma.cli.client import Client, Json
from koguma.cli.failures import ExitCode, Failure
from koguma.cli.nouns import Nouns
from koguma.model.documents import Document

_SET_LABEL: Final = "koguma.io/set"


@click.command("diff", cls=options.ReadsFiles)
@options.files
@click.option("--set", "set_name", metavar="NAME", help="As for apply.")
@click.option("--prune", is_flag=True, help="As for apply: also show what the set would lose.")
@options.connected
def command(client: Client, *, files: Sequence[str], set_name: str | None, prune: bool) -> ExitCode:
    """Compare files with what is stored.

    Exit code 0: nothing would change. 1: something would. More than 1: an error, where 2 stands for what is 1
    elsewhere. Secrets are masked.
    """
    try:
        return _compared(client, inputs.read(files), set_name, prune=prune)
    except Failure as failure:
        if failure.code is ExitCode.REFUSED:
            failure.code = ExitCode.USAGE
        raise


def _compared(client: Client, read: Sequence[Document], set_name: str | None, *, prune: bool) -> ExitCode:
    results = apply.applied(client, read, set_name=set_name, prune=prune, dry_run=True)
    for line in apply.warnings(read, results):
        terminal.complain(line)
    given = [_marked(document.value, set_name) for document in read]
    given += [None] * (len(results) - len(given))  # what is pruned is in no file
    differing = [pair for pair in zip(results, given, strict=True) if pair[0]["action"] != "unchanged"]
    known, kinds = nouns.served(client), nouns.local_kinds()
    for result, written in differing:
        title = objects.shown(result["type"], result["name"], result.get("mesh", ""))
        stored = _stored(client, known, result, written)
        for line in comparison.lines(title, stored, written, kinds.get(result["type"])):
            print(line)
    return ExitCode.REFUSED if differing else ExitCode.FINE


def _marked(written: Json, set_name: str | None) -> Json:
    """The object as apply would send it, with the label of its set."""
    if not set_name:
        return written
    if "metadata" in written:
        return {**written, "metadata": _marked(written["metadata"], set_name)}
    return {**written, "labels": {**(written.get("labels") or {}), _SET_LABEL: set_name}}


def _stored(client: Client, known: Nouns, result: Json, written: Json) -> Json:
    if result["action"] == "created":
        return None
    is_kubernetes = written is not None and "metadata" in written
    form = [("format", "kubernetes")] if is_kubernetes else []
    return client.get(objects.named(known, result).path, form).object
