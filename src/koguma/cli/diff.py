"""`koguma diff`: what `koguma apply` of the same files would change, line by line.

The server tries the change without writing, so that its own rules decide what is new, what changes and what a
pruned set loses; the lines compare what is stored with what the files say.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Final

import click

from koguma.cli import apply, inputs, nouns, objects, options, output, terminal
from koguma.cli.client import Client, Json
from koguma.cli.failures import ExitCode, Failure, tell
from koguma.cli.nouns import Nouns
from koguma.core import admission
from koguma.model import labels
from koguma.model.documents import Document
from koguma.model.kind import Kinds

SET_LABEL: Final = "koguma.io/set"
# Written by the server at every write; a file may leave them out or repeat them.
_COMPUTED: Final = ("creationTime", "modificationTime", "kri", "snis", "status")
_COMPUTED_METADATA: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
_COMPUTED_LABELS: Final = (
    labels.DISPLAY_NAME,
    labels.ORIGIN,
    labels.MESH,
    labels.ZONE,
    labels.ENV,
    labels.NAMESPACE,
    labels.ROLE,
)
_CHANGED: Final = "***** (changed)"


@click.command("diff")
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
        if failure.code is not ExitCode.REFUSED:
            raise
        tell(failure)
        return ExitCode.USAGE


def _compared(client: Client, read: Sequence[Document], set_name: str | None, *, prune: bool) -> ExitCode:
    results = apply.applied(client, read, set_name=set_name, prune=prune, dry_run=True)
    for line in apply.warnings(read, results):
        terminal.complain(line)
    known, kinds = nouns.served(client), nouns.local_kinds()
    code = ExitCode.FINE
    for index, result in enumerate(results):
        if result["action"] == "unchanged":
            continue
        code = ExitCode.REFUSED
        written = read[index].value if index < len(read) else None
        stored = _stored(client, known, result, written)
        after = _written(written, stored, set_name) if written is not None else None
        for line in lines(objects.shown(result["type"], result["name"], result.get("mesh", "")), stored, after, kinds):
            print(line)
    return code


def _stored(client: Client, known: Nouns, result: Json, written: Json) -> Json:
    if result["action"] == "created":
        return None
    named = objects.named(known, result)
    is_kubernetes = isinstance(written, dict) and "apiVersion" in written
    return client.get(named.path, [("format", "kubernetes")] if is_kubernetes else ()).value


def _written(written: Json, stored: Json, set_name: str | None) -> Json:
    """What the file says, with what an update leaves as it is: the labels that the server computes."""
    after = {name: value for name, value in written.items() if name not in _COMPUTED}
    meta = after = dict(after)
    if "metadata" in after:
        meta = after["metadata"] = {k: v for k, v in after["metadata"].items() if k not in _COMPUTED_METADATA}
    mine = dict(meta.get("labels") or {})
    if set_name:
        mine[SET_LABEL] = set_name
    kept = _labels(stored)
    mine = {**{name: kept[name] for name in _COMPUTED_LABELS if name in kept}, **mine}
    if mine:
        meta["labels"] = mine
    return after


def _labels(value: Json) -> Json:
    return ((value or {}).get("metadata") or value or {}).get("labels") or {}


def lines(title: str, stored: Json, written: Json, kinds: Kinds) -> Iterator[str]:
    """The unified diff of one object, secrets masked."""
    before, after = _masked(_comparable(stored), _comparable(written), kinds)
    found = difflib.unified_diff(
        _text(before), _text(after), f"stored {title}", f"file {title}", lineterm=""
    )
    empty = True
    for line in found:
        empty = False
        yield _painted(terminal.printable(line))
    if empty:
        yield f"{title}: would be written again; only what the server computes changes"


def _comparable(value: Json) -> Json:
    """An object without what the server computes, keys of its labels sorted."""
    if value is None:
        return None
    shown = {name: part for name, part in value.items() if name not in _COMPUTED}
    if isinstance(shown.get("metadata"), dict):
        shown["metadata"] = {k: v for k, v in shown["metadata"].items() if k not in _COMPUTED_METADATA}
    meta = shown.get("metadata", shown)
    if isinstance(meta.get("labels"), dict):
        meta["labels"] = dict(sorted(meta["labels"].items()))
    return shown


def _masked(before: Json, after: Json, kinds: Kinds) -> tuple[Json, Json]:
    """Both sides; of a kind with secrets only where they differ is shown."""
    some = after or before or {}
    kind = kinds.get(some.get("type") or some.get("kind") or "")
    if kind is None or not kind.admin_only:
        return before, after
    names = ("spec",) if "metadata" in some or not kind.inline else tuple(kind.spec.__struct_encode_fields__)
    return _hidden(before, names, admission.masked), _hidden(after, names, admission.masked)
