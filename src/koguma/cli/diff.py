"""`koguma diff`: what `koguma apply` of the same files would change, or what differs between two revisions.

A dry run on the server decides which objects are new, which change and which a pruned set loses; the diff
compares the stored objects with those in the files.
"""

from collections.abc import Sequence
from typing import Final

import click

from koguma.cli import (
    apply,
    comparison,
    hidden_keys,
    inputs,
    kind_lookup,
    objects,
    options,
    revision_diff,
    terminal,
    usage_hints,
)
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.cli.kind_lookup import KindIndex
from koguma.model.documents import Document

_SET_LABEL: Final = "koguma.io/set"


@click.command("diff")
@click.argument("words", nargs=-1, metavar="[REVISION [REVISION]]")
@options.files
@click.option("--set", "set_name", metavar="NAME", help="As for apply.")
@click.option("--prune", is_flag=True, help="As for apply: also show what the set would lose.")
@options.output("json")
@options.connected
def command(
    client: ApiClient,
    *,
    words: Sequence[str],
    files: Sequence[str],
    set_name: str | None,
    prune: bool,
    output: str | None,
) -> ExitCode:
    """Compare files with what is stored, or two revisions.

    A revision is a number of `koguma history`, a time, or how long ago (2h): `koguma diff 41 57`, or 41..57;
    without the second, with what is stored now.

    Exit code 0: nothing would change. 1: something would. More than 1: an error, where 2 stands for what is 1
    elsewhere. Secrets are masked.
    """
    moments = None if files else revision_diff.read(words)
    if words and moments is None:
        context = click.get_current_context()
        raise click.UsageError(usage_hints.file_advice(context.command_path, [*files, *words]))
    if output and moments is None:
        raise click.UsageError("-o is for two revisions; the diff of files is for people and `patch`")
    try:
        if moments is not None:
            return revision_diff.show(client, moments, output)
        return _compare(client, inputs.read(files), set_name, prune=prune)
    except CommandFailure as failure:
        if failure.code is ExitCode.REFUSED:
            failure.code = ExitCode.USAGE
        raise


def _compare(
    client: ApiClient, documents: Sequence[Document], set_name: str | None, *, prune: bool
) -> ExitCode:
    results = apply.applied(client, documents, set_name=set_name, prune=prune, dry_run=True)
    for line in apply.warnings(documents, results):
        terminal.print_stderr(line)
    given = [_with_set_label(document.value, set_name) for document in documents]
    given += [None] * (len(results) - len(given))  # pruned objects are in no file
    differing = [pair for pair in zip(results, given, strict=True) if pair[0]["action"] != "unchanged"]
    known, kinds = kind_lookup.from_server(client), kind_lookup.local_kinds()
    for result, value in differing:
        title = objects.shown(result["type"], result["name"], result.get("mesh", ""))
        stored = _stored(client, known, result, value)
        for line in comparison.lines(title, stored, value, kinds.get(result["type"])):
            print(line)
    return ExitCode.REFUSED if differing else ExitCode.FINE


def _with_set_label(value: Json, set_name: str | None) -> Json:
    """The object as apply would send it, with the label of its set."""
    if not set_name:
        return value
    if "metadata" in value:
        return {**value, "metadata": _with_set_label(value["metadata"], set_name)}
    return {**value, "labels": {**(value.get("labels") or {}), _SET_LABEL: set_name}}


def _stored(client: ApiClient, known: KindIndex, result: Json, value: Json) -> Json:
    if result["action"] == "created":
        return None
    is_kubernetes = value is not None and "metadata" in value
    form = [("format", "kubernetes")] if is_kubernetes else []
    stored = client.get(objects.named(known, result).path, form).object
    return hidden_keys.with_equal_keys(client, stored, value)
