"""`koguma wait`: wait until a change has reached every proxy that it touches."""

from collections.abc import Sequence

import click

from koguma.cli import arrival, objects, options, output
from koguma.cli.arrival import ArrivalWait, Awaited
from koguma.cli.client import ApiClient, ApiResponse
from koguma.cli.failures import CommandFailure


@click.command("wait")
@click.argument("words", nargs=-1, metavar="[REVISION | KIND/NAME... | KRI...]")
@options.mesh
@arrival.options
@options.output("json")
@options.connected
def command(
    client: ApiClient,
    *,
    words: Sequence[str],
    mesh: str,
    timeout: float,
    connected: bool,
    output: str | None,
) -> int:
    """Wait until a change has reached every proxy that it touches.

    A change is a revision, or objects as they are stored now; without arguments, all that is written. A
    proxy has it when its Envoy has acknowledged the whole configuration that it leads to, at whichever
    control plane it is connected. One that left less than an hour ago is waited for.

    Exit codes: 0 it has arrived, 2 not in time or refused, 1 an error, 3 the server is unreachable.
    """
    revisions, kris = _change(client, words, mesh)
    waiting = ArrivalWait(client, Awaited.of(revisions, kris), timeout, connected=connected, is_written=False)
    return _print_json(waiting) if output == "json" else arrival.wait(waiting)


def _print_json(waiting: ArrivalWait) -> int:
    answer = waiting.answer()
    print(output.json_text(answer))
    return 0 if answer["arrived"] else arrival.NOT_ARRIVED


def _change(client: ApiClient, words: Sequence[str], mesh: str) -> tuple[list[int], list[str]]:
    """The revisions that the words mean, none for the newest one, and the KRIs of objects."""
    if not words:
        return [], []
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        return [int(words[0])], []
    selection = objects.read(client, words, mesh)
    if not selection.references:
        raise click.UsageError(f"name the {words[0]} to wait for, or a revision")
    responses = list(objects.fetched(client, selection.references))
    kris = [response.object["kri"] for response in responses if response.object.get("kri")]
    return [_written_at(response) for response in responses], kris


def _written_at(response: ApiResponse) -> int:
    tag = response.etag.strip('"')
    if not tag.isdigit():
        raise CommandFailure("the server does not say at which revision it was written; it is computed")
    return int(tag)
