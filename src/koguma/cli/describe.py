"""`koguma describe`: objects for humans: identity, origin, labels, times and spec."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import click

from koguma.cli import kind_lookup, objects, options, output, tables
from koguma.cli.client import ApiClient, ApiResponse, Json
from koguma.core import admission
from koguma.model import labels
from koguma.model.kind import Kind

_OUTSIDE = ("type", "mesh", "name", "labels", "creationTime", "modificationTime", "kri", "snis")


@click.command("describe")
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME... | KRI...")
@options.mesh
@options.at
@options.connected
def command(client: ApiClient, *, words: Sequence[str], mesh: str, at: str | None) -> None:
    """Explain objects: identity, labels, times, spec. Secrets are masked; `get -o yaml` shows them."""
    selection = objects.read(client, words, mesh)
    if not selection.references:
        raise click.UsageError(f"name the {words[0]} to describe")
    kinds, now = kind_lookup.local_kinds(), datetime.now(UTC)
    for index, answer in enumerate(objects.fetched(client, selection.references, options.at_query(at))):
        if index:
            print()
        for line in lines(answer, kinds.get(answer.object["type"]), now):
            print(line)


def lines(answer: ApiResponse, kind: Kind | None, now: datetime) -> Iterator[str]:
    """The description of one object; `kind` is None where this program does not know it."""
    value = answer.object
    own_labels: Mapping[str, str] = value.get("labels") or {}
    yield from tables.pairs(
        [*_identity(value, own_labels, kind), *_times(value, now), ("Revision", answer.etag.strip('"'))]
    )
    yield "Labels:"
    yield from (f"  {name}: {own_labels[name]}" for name in sorted(own_labels)) if own_labels else ("  none",)
    payload = {name: part for name, part in value.items() if name not in _OUTSIDE}
    if kind is not None:
        payload = admission.masked_document(payload, kind)
    for name in ("spec", "status"):
        if name in payload:
            yield from _section(name.capitalize(), payload.pop(name))
    if payload:
        yield from _section("Spec", payload)


def _identity(value: Json, own_labels: Mapping[str, str], kind: Kind | None) -> Iterator[tuple[str, str]]:
    yield "Name", own_labels.get(labels.DISPLAY_NAME) or value["name"]
    yield "Kind", f"{value['type']} ({kind.short})" if kind is not None and kind.short else value["type"]
    if "mesh" in value:
        yield "Mesh", value["mesh"]
    yield "KRI", value.get("kri", "")
    yield "Core name", value["name"]
    yield "Origin", own_labels.get(labels.ORIGIN, "")
    yield "Zone", own_labels.get(labels.ZONE, "")
    yield "Namespace", own_labels.get(labels.NAMESPACE, "")
    if kind is None or kind.policy is not None:
        yield "Role", own_labels.get(labels.ROLE, "system")


def _times(value: Json, now: datetime) -> Iterator[tuple[str, str]]:
    for title, name in (("Created", "creationTime"), ("Modified", "modificationTime")):
        time = value.get(name) or ""
        yield title, f"{time} ({tables.age(time, now)} ago)" if time else ""


def _section(title: str, value: Json) -> Iterator[str]:
    yield f"{title}:"
    if value in ({}, None):
        yield "  empty"
        return
    yield from (f"  {line}" for line in output.yaml_text(value).splitlines())
