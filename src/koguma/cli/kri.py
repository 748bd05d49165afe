"""`koguma kri`: parses resource identifiers, or builds them."""

from collections.abc import Iterator

import click
import msgspec

from koguma.cli import kind_lookup, options, tables
from koguma.cli.output import json_text
from koguma.model import kri
from koguma.model.kri import Kri


@click.group("kri")
def command() -> None:
    """Take resource identifiers apart, or build them."""


@command.command("parse")
@click.argument("text")
@options.output("json")
def parse(text: str, *, output: str | None) -> None:
    """Print the parts of a KRI, or of the name of an Envoy secret (CATEGORY:SCOPE:IDENTIFIER)."""
    parts = list(_secret_parts(text) if _is_secret(text) else _kri_parts(text))
    if output == "json":
        print(json_text(dict(parts)))
        return
    for line in tables.pairs(parts):
        print(line)


@command.command("build")
@click.option("--type", "kind", required=True, metavar="KIND", help="Kind or short name.")
@click.option("-m", "--mesh", default="", help="Mesh; none for kinds of global scope.")
@click.option("--zone", default="", help="Zone that the object comes from; none for Global.")
@click.option("--namespace", default="", help="Namespace; none outside Kubernetes.")
@click.option("--name", required=True, help="Display name.")
@click.option("--section", default="", help="A part of the object, such as a port.")
def build(*, kind: str, mesh: str, zone: str, namespace: str, name: str, section: str) -> None:
    """Print the KRI that these parts make."""
    kind_info = kind_lookup.local().find(kind)
    if not kind_info.short:
        raise click.UsageError(f"{kind_info.name} has no short name, so its objects have no KRI")
    print(Kri(kind_info.short, mesh, zone, namespace, name, section))


def _is_secret(text: str) -> bool:
    return ":" in text and not text.startswith(f"{kri.PREFIX}_")


def _kri_parts(text: str) -> Iterator[tuple[str, str]]:
    kinds = kind_lookup.local_kinds()
    parsed = kri.parse(text, kinds.by_short)
    yield "kind", kinds.by_short[parsed.short].name
    yield "type", parsed.short
    for name in msgspec.structs.asdict(parsed):
        if name != "short":
            yield name, getattr(parsed, name)


def _secret_parts(text: str) -> Iterator[tuple[str, str]]:
    parsed = kri.parse_secret_name(text)
    yield from msgspec.structs.asdict(parsed).items()
