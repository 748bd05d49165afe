"""`koguma get all`: the objects of a mesh, kind by kind, as `kubectl get all` shows a namespace.

Secrets are left out, so that listing a mesh does not print them, and so are insights, which the control plane
computes.
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
    """Print the objects of one mesh, or of all meshes with the global ones."""
    by_kind = list(_objects_by_kind(client, mesh, query))
    values = list(chain.from_iterable(of_kind for _, of_kind in by_kind))
    if output == "json":
        _print(get.json_lines({"total": len(values), "items": values}))
    elif output in ("yaml", "name", "kri"):
        _print(get.in_full(values, output))
    else:
        for index, (kind, of_kind) in enumerate(by_kind):
            _print([*([""] if index else []), f"{kind.name}:", *get.lines(kind, of_kind, output)])
    if not by_kind and output != "json":
        place = "" if mesh is None else f" in mesh {mesh}"
        terminal.print_stderr(f"nothing is stored{place}, beside secrets and what is computed")


def _objects_by_kind(
    client: ApiClient, mesh: str | None, query: Query
) -> Iterator[tuple[KindInfo, Sequence[Json]]]:
    denied = []
    for kind in kind_lookup.from_server(client):
        if kind.name.endswith(_LEFT_OUT) or (mesh is not None and not kind.is_mesh_scoped):
            continue
        try:
            values = list(client.pages(kind.path(mesh), query))
        except ApiError as error:
            if error.code is not ExitCode.DENIED:
                raise
            denied.append(kind.plural)
            continue
        if values:
            yield kind, values
    if denied:
        terminal.print_stderr(f"you may not list {', '.join(denied)}")


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
