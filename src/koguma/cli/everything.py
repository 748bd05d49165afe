"""`koguma get all`: what people put into a mesh, kind by kind, as `kubectl get all` shows a namespace.

Secrets are left out, since nobody who lists a mesh means to print them, and so are insights, which the
control plane computes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from koguma.cli import get, nouns, terminal
from koguma.cli.client import Client, Json, Query
from koguma.cli.failures import ExitCode, Refused
from koguma.cli.nouns import Noun

_LEFT_OUT: Final = ("Secret", "Insight", "Config")


def show(client: Client, mesh: str | None, query: Query, output: str | None) -> None:
    """Print the objects of one mesh, or of all and those that are in none."""
    listed = list(_listed(client, mesh, query))
    if output == "json":
        items = [value for _, found in listed for value in found]
        _print(get.json_lines({"total": len(items), "items": items}))
    elif output in ("yaml", "name", "kri"):
        _print(get.in_full(list(chain.from_iterable(found for _, found in listed)), output))
    else:
        for index, (noun, found) in enumerate(listed):
            _print([*([""] if index else []), f"{noun.name}:", *get.lines(noun, found, output)])
    if not listed and output != "json":
        place = "" if mesh is None else f" in mesh {mesh}"
        terminal.complain(f"nothing is stored{place}, beside secrets and what is computed")


def _listed(client: Client, mesh: str | None, query: Query) -> Iterator[tuple[Noun, Sequence[Json]]]:
    denied = []
    for noun in nouns.served(client):
        if noun.name.endswith(_LEFT_OUT) or (mesh is not None and not noun.is_mesh_scoped):
            continue
        try:
            found = list(client.pages(noun.path(mesh), query))
        except Refused as refused:
            if refused.code is not ExitCode.DENIED:
                raise
            denied.append(noun.plural)
            continue
        if found:
            yield noun, found
    if denied:
        terminal.complain(f"you may not list {', '.join(denied)}")


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
