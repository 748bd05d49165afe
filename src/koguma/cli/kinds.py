"""`koguma kinds`: which kinds of objects there are, and what they may be called."""

import click

from koguma.cli import nouns, options, tables
from koguma.cli.client import Client


@click.command("kinds")
@options.connected
def command(client: Client) -> None:
    """List the kinds of objects and the words for them, which every command takes."""
    rows = [
        (
            noun.name,
            noun.plural,
            noun.short,
            "mesh" if noun.is_mesh_scoped else "global",
            "yes" if noun.is_policy else "",
        )
        for noun in nouns.served(client)
    ]
    for line in tables.lines(("KIND", "PLURAL", "SHORT", "SCOPE", "POLICY"), rows):
        print(line)
