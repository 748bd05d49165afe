"""`koguma export`: back up every stored object, Secrets too, into one file."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from koguma.cli import options, terminal
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import CommandFailure


@click.command("export")
@click.option(
    "-o",
    "--output",
    "path",
    required=True,
    metavar="FILE",
    help="Where to write the backup; - is standard output.",
)
@options.connected
def command(client: ApiClient, *, path: str) -> None:
    """Back up every stored object, each once, whichever endpoints serve it.

    The backup is of one moment. It holds objects as they are stored, with uid and status, and Secrets
    unencrypted: only you can read the file, keep it so. `koguma import` restores it, on another kind of
    store too.
    """
    if path == "-" and sys.stdout.isatty():
        raise click.UsageError("a backup has every Secret unencrypted: write it to a file, or into a pipe")
    with _opened(path) as file:
        head, end = _copied(client.lines("/_export"), file)
    for unreadable in head.get("unreadable") or ():
        mark = terminal.paint("warning:", "yellow", error=True)
        terminal.print_stderr(f"{mark} {terminal.printable(unreadable)} cannot be read and is not in it")
    terminal.print_stderr(
        f"{end['objects']} objects of {len(head['sets'])} kinds, as of revision {head['revision']}"
    )


def _copied(lines: Iterator[bytes], file: BinaryIO) -> tuple[Json, Json]:
    """Copy all lines; gives the first and the last one, which is missing where the connection broke."""
    first = last = b""
    for line in lines:
        first = first or line
        last = line
        file.write(line)
    try:
        head, end = json.loads(first), json.loads(last)
    except ValueError:
        head, end = {}, {}
    if not isinstance(end, dict) or "sha256" not in end:
        raise CommandFailure("the connection ended before the backup did; nothing was kept, export it again")
    return head, end


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The file, which gets its name only when it is complete, and only its owner can read."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        raise CommandFailure(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)
