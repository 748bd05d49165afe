"""Objects of the server, selected by the arguments of a command: kind and names, kind/name, or KRIs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import click

from koguma.cli import kind_lookup, usage_hints
from koguma.cli.client import ApiClient, ApiResponse, Json, Query
from koguma.cli.failures import ApiError
from koguma.cli.kind_lookup import KindIndex, KindInfo

_KRI_PREFIX = "kri_"


class ObjectName(NamedTuple):
    """An object by kind, mesh and name."""

    kind: KindInfo
    mesh: str
    name: str

    @property
    def path(self) -> str:
        """Its path in the API."""
        return self.kind.path(self.mesh, self.name)

    def __str__(self) -> str:
        return shown(self.kind.name, self.name, self.mesh if self.kind.is_mesh_scoped else "")


class ObjectKri(NamedTuple):
    """An object by its KRI."""

    kri: str

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/_kri/{quote(self.kri, safe='')}"

    def __str__(self) -> str:
        return self.kri


ObjectReference = ObjectName | ObjectKri


def shown(kind: str, name: str, mesh: str = "") -> str:
    """The short form of an object; with the mesh where it is not the default one."""
    return f"{kind.lower()}/{name}" + (f" (mesh {mesh})" if mesh not in ("", "default") else "")


def is_kri(word: str) -> bool:
    """Whether a word looks like a KRI."""
    return word.startswith(_KRI_PREFIX)


class ObjectSelection(NamedTuple):
    """The objects that arguments select; a kind without references: all objects of the kind."""

    kind: KindInfo | None
    references: tuple[ObjectReference, ...]


def read(client: ApiClient, words: Sequence[str], mesh: str) -> ObjectSelection:
    """The selection of `KIND`, `KIND NAME...`, `KIND/NAME...` or `KRI...`."""
    if not words:
        raise click.UsageError("name a kind or a KRI; `koguma kinds` lists the kinds")
    _refuse_files(words)
    if any(map(is_kri, words)):
        if not all(map(is_kri, words)):
            raise click.UsageError("a KRI stands alone or among KRIs")
        return ObjectSelection(None, tuple(map(ObjectKri, words)))
    known = kind_lookup.from_server(client)
    if any("/" in word for word in words):
        return ObjectSelection(None, tuple(_slashed(known, word, mesh) for word in words))
    kind = known.find(words[0])
    return ObjectSelection(kind, tuple(ObjectName(kind, mesh, name) for name in words[1:]))


def _refuse_files(words: Sequence[str]) -> None:
    files = [word for word in words if usage_hints.is_file(word)]
    if not files:
        return
    ctx = click.get_current_context(silent=True)
    if ctx is not None and any(param.name == "files" for param in ctx.command.params):
        raise click.UsageError(usage_hints.file_advice(ctx.command_path, files))
    raise click.UsageError(
        f"{files[0]} is a file, and a stored object is meant here;"
        f" `koguma diff -f {files[0]}` compares the file with what is stored"
    )


def _slashed(known: KindIndex, word: str, mesh: str) -> ObjectName:
    kind, slash, name = word.partition("/")
    if not slash or not name:
        raise click.UsageError(f'"{word}" must be KIND/NAME, as the other words are')
    return ObjectName(known.find(kind), mesh, name)


def fetched(
    client: ApiClient, references: Sequence[ObjectReference], query: Query = ()
) -> Iterator[ApiResponse]:
    """Get each object; the response has its ETag."""
    for reference in references:
        try:
            yield client.get(reference.path, query)
        except ApiError as error:
            raise error.about(str(reference)) from None


def named(known: KindIndex, value: Json) -> ObjectName:
    """The reference to an object of a response."""
    return ObjectName(known.find(value["type"]), value.get("mesh") or "", value["name"])
