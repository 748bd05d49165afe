"""Objects on the server, found by the words of a command line: kind and names, kind/name, or KRIs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import click

from koguma.cli import misnomers, nouns
from koguma.cli.client import Answer, Client, Json
from koguma.cli.failures import Refused
from koguma.cli.nouns import Noun, Nouns

_KRI_PREFIX = "kri_"


class Named(NamedTuple):
    """One object by the name in its path."""

    noun: Noun
    mesh: str
    name: str

    @property
    def path(self) -> str:
        """Where it is."""
        return self.noun.path(self.mesh, self.name)

    def __str__(self) -> str:
        return shown(self.noun.name, self.name, self.mesh if self.noun.is_mesh_scoped else "")


class Identified(NamedTuple):
    """One object by its KRI."""

    kri: str

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/_kri/{quote(self.kri, safe='')}"

    def __str__(self) -> str:
        return self.kri


Reference = Named | Identified


def shown(kind: str, name: str, mesh: str = "") -> str:
    """One object in a few letters; the mesh only where it is not the usual one."""
    return f"{kind.lower()}/{name}" + (f" (mesh {mesh})" if mesh not in ("", "default") else "")


def is_kri(word: str) -> bool:
    """Whether a word is meant as a KRI."""
    return word.startswith(_KRI_PREFIX)


class Words(NamedTuple):
    """What a command line names: whole kinds to list have no references."""

    noun: Noun | None
    references: tuple[Reference, ...]


def read(client: Client, words: Sequence[str], mesh: str) -> Words:
    """What the words mean: `KIND`, `KIND NAME...`, `KIND/NAME...` or `KRI...`."""
    if not words:
        raise click.UsageError("name a kind or a KRI; `koguma kinds` lists the kinds")
    _refuse_files(words)
    if any(map(is_kri, words)):
        if not all(map(is_kri, words)):
            raise click.UsageError("a KRI stands alone or among KRIs")
        return Words(None, tuple(map(Identified, words)))
    known = nouns.served(client)
    if any("/" in word for word in words):
        return Words(None, tuple(_slashed(known, word, mesh) for word in words))
    noun = known.word(words[0])
    return Words(noun, tuple(Named(noun, mesh, name) for name in words[1:]))


def _refuse_files(words: Sequence[str]) -> None:
    files = [word for word in words if misnomers.is_file(word)]
    if not files:
        return
    ctx = click.get_current_context(silent=True)
    if ctx is not None and any(param.name == "files" for param in ctx.command.params):
        raise click.UsageError(misnomers.file_advice(ctx.command_path, files))
    raise click.UsageError(
        f"{files[0]} is a file, and a stored object is meant here;"
        f" `koguma diff -f {files[0]}` compares the file with what is stored"
    )


def _slashed(known: Nouns, word: str, mesh: str) -> Named:
    kind, slash, name = word.partition("/")
    if not slash or not name:
        raise click.UsageError(f'"{word}" must be KIND/NAME, as the other words are')
    return Named(known.word(kind), mesh, name)


def fetched(client: Client, references: Sequence[Reference]) -> Iterator[Answer]:
    """Each object, with its ETag."""
    for reference in references:
        try:
            yield client.get(reference.path)
        except Refused as refused:
            raise refused.about(str(reference)) from None


def named(known: Nouns, value: Json) -> Named:
    """The reference of an object that was read."""
    return Named(known.word(value["type"]), value.get("mesh") or "", value["name"])
