"""`koguma version`: the versions of the client and of the server that it talks to."""

import contextlib

import click

from koguma import __version__
from koguma.cli import options, terminal
from koguma.cli.failures import CommandFailure


@click.command("version")
@click.option("--client", "client_only", is_flag=True, help="Do not ask the server.")
@options.connection
def command(*, client_only: bool, **flags: str | None) -> None:
    """Show the versions of client and server."""
    print(f"client: koguma {__version__}")
    if client_only:
        return
    try:
        with contextlib.closing(options.client(**flags)) as client:
            index = client.get("/").object
    except CommandFailure as failure:
        terminal.print_stderr(f"server: {failure.message}")
        return
    product, based_on = str(index.get("product", "unknown")).lower(), index.get("basedOnKuma", "unknown")
    version = str(index.get("kogumaVersion") or index.get("version") or "of unknown version")
    print(f"server: {product} {version} at {client.target.address} (reads Kuma {based_on})")
