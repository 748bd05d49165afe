"""`koguma get all`: what people put into a mesh, kind by kind, as `kubectl get all` shows a namespace.

Secrets are left out, since nobody who lists a mesh means to print them, and so are insights, which the
control plane computes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from koguma.cli import get, kind_lookup, terminal
from koguma.cli.client import ApiClient, Json, Query
from koguma.cli.failures import ApiError, ExitCode
from koguma.cli.kind_lookup import KindInfo

_LEFT_OUT: Final = ("Secret", "Insight", "Config")


def show(client: ApiClient, mesh: str | None, query: Query, output: str | None) -> None:
    """Print the objects of one mesh, or of all and those that are in none."""
    listed = list(_listed(client, mesh, query))
    if output == "json":
        items = [value for _, found in listed for value in found]
        _print(get.json_lines({"total": len(items), "items": items}))
    elif output in ("yaml", "name", "kri"):
        _print(get.in_full(list(chain.from_iterable(found for _, found in listed)), output))
    else:
        for index, (kind, found) in enumerate(listed):
            _print([*([""] if index else []), f"{kind.name}:", *get.lines(kind, found, output)])
    if not listed and output != "json":
        place = "" if mesh is None else f" in mesh {mesh}"
        terminal.print_stderr(f"nothing is stored{place}, beside secrets and what is computed")


def _listed(client: ApiClient, mesh: str | None, query: Query) -> Iterator[tuple[KindInfo, Sequence[Json]]]:
    denied = []
    for kind in kind_lookup.from_server(client):
        if kind.name.endswith(_LEFT_OUT) or (mesh is not None and not kind.is_mesh_scoped):
            continue
        try:
            found = list(client.pages(kind.path(mesh), query))
        except ApiError as error:
            if error.code is not ExitCode.DENIED:
                raise
            denied.append(kind.plural)
            continue
        if found:
            yield kind, found
    if denied:
        terminal.print_stderr(f"you may not list {', '.join(denied)}")


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
