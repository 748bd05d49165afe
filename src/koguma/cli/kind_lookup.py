"""Kind lookup: finds a kind by its name, plural, short name or alias, as the server knows them.

The server's list is used rather than the kinds of this program: a request is quicker than importing the
kinds, and only the server knows the policies of packages that are installed there.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from koguma.cli.failures import ApiError, ExitCode

if TYPE_CHECKING:  # most commands do not need them at run time
    from koguma.cli.client import ApiClient, Json
    from koguma.model.kind import Kinds


class KindInfo(NamedTuple):
    """A kind: its names, its scope, and the path of its objects."""

    name: str
    plural: str
    short: str = ""
    is_mesh_scoped: bool = True
    is_policy: bool = False
    aliases: tuple[str, ...] = ()
    is_active: bool = True  # False for a policy that is stored but has no effect yet

    @property
    def words(self) -> tuple[str, ...]:
        """All its names, in lower case; a plural with hyphens also as Kubernetes has it, without."""
        plurals = dict.fromkeys((self.plural, self.plural.replace("-", "")))
        return tuple(filter(None, (self.short, self.name.lower(), *plurals, *self.aliases)))

    def path(self, mesh: str | None, name: str = "") -> str:
        """The path of its objects in one mesh or (None) in all, or of one of them."""
        base = f"/meshes/{quote(mesh, safe='')}" if self.is_mesh_scoped and mesh is not None else ""
        return f"{base}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


class KindIndex:
    """All kinds, by any of their names."""

    def __init__(self, kinds: Iterable[KindInfo]) -> None:
        self._kinds = tuple(kinds)
        self._by_word = {word: kind for kind in self._kinds for word in kind.words}

    def __iter__(self) -> Iterator[KindInfo]:
        return iter(self._kinds)

    def find(self, word: str) -> KindInfo:
        """The kind with that name; a usage error, with a hint, where there is none."""
        kind = self._by_word.get(word.lower())
        if kind is None:
            raise click.UsageError(f'unknown kind "{word}"{self._hint(word)}')
        return kind

    def _hint(self, word: str) -> str:
        from koguma.cli import usage_hints  # noqa: PLC0415 - only for an error
        from koguma.model.nearest import nearest  # noqa: PLC0415 - the same

        advice = usage_hints.kind_advice(word)
        if advice:
            return f": {advice}"
        near = nearest(word, self._by_word)
        return f'; did you mean "{self._by_word[near].name}"?' if near else "; `koguma kinds` lists them"


class OfKinds(click.Group):
    """A group of commands that have names of kinds: any name of the kind will do, with or without hyphens."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or of the kind with that name."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            words = {word: kind.name.lower() for kind in local() for word in kind.words}
            name = words.get(cmd_name.lower().replace("-", ""))
            command = super().get_command(ctx, name) if name else None
        return command


def from_server(client: "ApiClient") -> KindIndex:
    """The kinds of the server; those of this program where the user may not list them."""
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
    """The Kind records of this program."""
    from koguma.kinds import KINDS  # noqa: PLC0415 - the largest import of all
    from koguma.model.kind import Kinds  # noqa: PLC0415 - the same
    from koguma.policies import POLICIES  # noqa: PLC0415 - the same

    return Kinds((*KINDS, *POLICIES))
