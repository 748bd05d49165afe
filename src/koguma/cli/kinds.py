"""`koguma kinds`: the kinds of objects, with their names."""

import click

from koguma.cli import kind_lookup, options, tables
from koguma.cli.client import ApiClient


@click.command("kinds")
@options.connected
def command(client: ApiClient) -> None:
    """List the kinds of objects and the words for them, which every command takes."""
    rows = [
        (
            kind.name,
            kind.plural,
            kind.short,
            "mesh" if kind.is_mesh_scoped else "global",
            "yes" if kind.is_policy else "",
        )
        for kind in kind_lookup.from_server(client)
    ]
    for line in tables.lines(("KIND", "PLURAL", "SHORT", "SCOPE", "POLICY"), rows):
        print(line)
