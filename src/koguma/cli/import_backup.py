"""`koguma import`: restore what `koguma export` backed up."""

import sys
from pathlib import Path

import click

from koguma.cli import options
from koguma.cli.client import ApiClient
from koguma.cli.failures import CommandFailure


@click.command("import")
@click.argument("path", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--prune", is_flag=True, help="Delete what the backup does not have.")
@options.connected
def command(client: ApiClient, *, path: str, dry_run: bool, prune: bool) -> None:
    """Restore a backup: all of its objects, or none.

    Objects come back as they were, with uid, status and addresses, over those with the same names. Signing
    keys are among them: afterwards the tokens of the backup's control plane are valid here, and no others.
    """
    query = [*([("dryRun", "All")] if dry_run else []), *([("prune", "true")] if prune else [])]
    counts = client.upload("/_import", query, _content(path), "application/x-ndjson").object
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{words}{' (dry run)' if dry_run else ''}")


def _content(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandFailure(f"{path} cannot be read: {error.strerror or error}") from None
