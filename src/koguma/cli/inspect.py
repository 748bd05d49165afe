"""`koguma inspect`: what acts on a proxy, whom a policy selects, who a service is."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from koguma.cli import inspection, nouns, objects, options, output, tables
from koguma.cli.client import Client
from koguma.cli.explanation import Served
from koguma.cli.failures import Refused
from koguma.cli.nouns import Noun
from koguma.cli.objects import Named

Json = Any


@click.group("inspect")
def command() -> None:
    """Show what acts on a proxy, whom a policy selects, who a service is."""


@command.command("dataplane")
@click.argument("name")
@options.mesh
@options.output("json")
@options.connected
def dataplane(client: Client, name: str, *, mesh: str, output: str | None) -> None:
    """Show a proxy's ports, the policies that act on it and its calls, and what is odd about them."""
    source = Served(client, mesh, name)
    try:
        layout, rules = source.layout(), source.rules()
    except Refused as refused:
        raise refused.about(objects.shown("Dataplane", name, mesh)) from None
    _show({"layout": layout, "rules": rules}, inspection.proxy(layout, rules), output)


@command.command("policy")
@click.argument("kind")
@click.argument("name")
@options.mesh
@options.output("json")
@options.connected
def policy(client: Client, kind: str, name: str, *, mesh: str, output: str | None) -> None:
    """Show whom a policy selects."""
    noun = nouns.served(client).word(kind)
    if not noun.is_policy:
        raise click.UsageError(f"{noun.name} is no policy; `koguma kinds` says which kinds are")
    _inspect(client, noun, name, mesh, output)


@command.command("service")
@click.argument("name")
@options.mesh
@options.output("json")
@options.connected
def service(client: Client, name: str, *, mesh: str, output: str | None) -> None:
    """Show the ports of a MeshService and the proxies that are it."""
    _inspect(client, nouns.served(client).word("MeshService"), name, mesh, output)


def _inspect(client: Client, noun: Noun, name: str, mesh: str, output: str | None) -> None:
    """An object, and the proxies that belong to it."""
    wanted = Named(noun, mesh, name)
    (answer,) = objects.fetched(client, [wanted])
    proxies = list(client.pages(f"{wanted.path}/_resources/dataplanes"))
    _show({"object": answer.object, "dataplanes": proxies}, _lines(noun, answer.object, proxies), output)


def _lines(noun: Noun, value: Json, proxies: Sequence[Json]) -> Iterator[str]:
    marks = value.get("labels") or {}
    yield from tables.pairs(
        (
            (noun.name, value["name"]),
            ("Mesh", value.get("mesh", "")),
            ("KRI", value.get("kri", "")),
            *(
                (("Target", inspection.target(value)), ("Role", inspection.role(marks)))
                if noun.is_policy
                else ()
            ),
            *(
                ()
                if noun.is_active
                else (("Acts", "not yet: it is stored, and no proxy follows it (KG015)"),)
            ),
        )
    )
    if not noun.is_policy:
        yield from inspection.section(
            "Ports", ("NAME", "PORT", "TARGET", "PROTOCOL"), inspection.ports(value)
        )
    yield from inspection.section(
        "Proxies", ("NAME", "ZONE", "NAMESPACE", "KRI"), map(inspection.proxy_cells, proxies)
    )


def _show(value: Json, lines: Iterator[str], form: str | None) -> None:
    for line in [output.json_text(value)] if form == "json" else lines:
        print(line)
