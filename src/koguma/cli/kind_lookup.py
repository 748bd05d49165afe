"""Nouns: the words that people use for kinds, as the server knows them.

The server's list is asked rather than our own code: it is there quicker than the kinds are imported, and it
knows policies that only the server has installed.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from koguma.cli.failures import ApiError, ExitCode

if TYPE_CHECKING:  # most commands only need the words
    from koguma.cli.client import ApiClient, Json
    from koguma.model.kind import Kinds


class KindInfo(NamedTuple):
    """One kind, as far as addressing its objects goes."""

    name: str
    plural: str
    short: str = ""
    is_mesh_scoped: bool = True
    is_policy: bool = False
    aliases: tuple[str, ...] = ()
    is_active: bool = True  # of a policy that is stored and does not act yet: False

    @property
    def words(self) -> tuple[str, ...]:
        """What people may call it, in lower case."""
        return tuple(filter(None, (self.short, self.name.lower(), self.plural, *self.aliases)))

    def path(self, mesh: str | None, name: str = "") -> str:
        """Where its objects are, in one mesh or (None) in all; or where one of them is."""
        base = f"/meshes/{quote(mesh, safe='')}" if self.is_mesh_scoped and mesh is not None else ""
        return f"{base}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")

    def reference(self, name: str) -> str:
        """One object in a few letters: `meshtimeout/backend-is-quick`."""
        return f"{self.name.lower()}/{name}"


class KindIndex:
    """All kinds, found by any of their words."""

    def __init__(self, kinds: Iterable[KindInfo]) -> None:
        self._kinds = tuple(kinds)
        self._by_word = {word: kind for kind in self._kinds for word in kind.words}

    def __iter__(self) -> Iterator[KindInfo]:
        return iter(self._kinds)

    def find(self, word: str) -> KindInfo:
        """The kind that a person means; wrong usage where there is none."""
        found = self._by_word.get(word.lower())
        if found is None:
            raise click.UsageError(f'unknown kind "{word}"{self._near(word)}')
        return found

    def _near(self, word: str) -> str:
        from koguma.cli import usage_hints  # noqa: PLC0415 - only for the mistake
        from koguma.model.nearest import nearest  # noqa: PLC0415 - the same

        advice = usage_hints.kind_advice(word)
        if advice:
            return f": {advice}"
        near = nearest(word, self._by_word)
        return f'; did you mean "{self._by_word[near].name}"?' if near else "; `koguma kinds` lists them"


def from_server(client: "ApiClient") -> KindIndex:
    """The kinds of the server; our own where it does not tell this user."""
    try:
        listed = client.get("/_resources").field("resources")
    except ApiError as error:
        if error.code is not ExitCode.DENIED:
            raise
        return local()
    return KindIndex(_kind_info(entry) for entry in listed)


def _kind_info(entry: "Json") -> KindInfo:
    return KindInfo(
        entry["name"],
        entry["path"],
        entry.get("shortName") or "",
        is_mesh_scoped=entry.get("scope") == "Mesh",
        is_policy="policy" in entry,
        aliases=tuple(entry.get("aliases") or ()),
        is_active=(entry.get("policy") or {}).get("isActive", True),
    )


def local() -> KindIndex:
    """The kinds that this program knows."""
    return KindIndex(
        KindInfo(
            kind.name,
            kind.plural,
            kind.short,
            kind.is_mesh_scoped,
            kind.policy is not None,
            kind.aliases,
            kind.policy is None or kind.policy.acts,
        )
        for kind in local_kinds()
    )


def local_kinds() -> "Kinds":
    """The records of the kinds that this program knows."""
    from koguma.kinds import KINDS  # noqa: PLC0415 - the largest import of all
    from koguma.model.kind import Kinds  # noqa: PLC0415 - the same
    from koguma.policies import POLICIES  # noqa: PLC0415 - the same

    return Kinds((*KINDS, *POLICIES))
