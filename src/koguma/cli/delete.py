"""`koguma delete`: remove objects, by name, by KRI, or as files name them."""

from collections.abc import Sequence
from typing import Final

import click

from koguma.cli import nouns, objects, options, terminal
from koguma.cli.client import Client
from koguma.cli.failures import ExitCode, Refused, tell
from koguma.cli.nouns import Noun
from koguma.cli.objects import Named, Reference

_NOT_FOUND: Final = 404
# Dataplanes hold their mesh, and a mesh holds the secrets of its mTLS. Policies go before routes and these
# before services, so that nothing refers to an object that is deleted before it.
_ORDER: Final = {"MeshHTTPRoute": -1, "MeshTCPRoute": -1, "MeshGatewayHTTPRoute": -1, "Mesh": 1, "Secret": 2}
_POLICY_ORDER: Final = -2


@click.command("delete")
@click.argument("words", nargs=-1, metavar="[KIND NAME... | KRI...]")
@options.files
@options.mesh
@click.option("--ignore-not-found", is_flag=True, help="What is not there is fine.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@options.connected
def command(
    client: Client,
    *,
    words: Sequence[str],
    files: Sequence[str],
    mesh: str,
    ignore_not_found: bool,
    dry_run: bool,
) -> ExitCode:
    """Remove objects, by name, by KRI, or those that files contain."""
    if bool(words) == bool(files):
        raise click.UsageError("name what to delete: KIND NAME, a KRI, or -f PATH")
    references = _from_files(client, files) if files else _from_words(client, words, mesh)
    deletion = _Deletion(client, dry_run=dry_run, ignores=ignore_not_found)
    for reference in references:
        deletion.delete(reference)
    return deletion.code


class _Deletion:
    """Deletes one object after the other, and remembers how it went."""

    def __init__(self, client: Client, *, dry_run: bool, ignores: bool) -> None:
        self._client = client
        self._query = [("dryRun", "All")] if dry_run else []
        self._mark = " (dry run)" if dry_run else ""
        self._ignores = ignores
        self._meshes: set[str] = set()
        self.code = ExitCode.FINE

    def delete(self, reference: Reference) -> None:
        """Remove one object and say so; one that cannot be removed does not keep others from it."""
        try:
            named = _named(self._client, reference)
            answer = self._client.send("DELETE", named.path, self._query)
        except Refused as refused:
            if refused.code is ExitCode.DENIED:
                raise
            self._refused(reference, refused)
            return
        if named.noun.name == "Mesh":
            self._meshes.add(named.name)
        mark = terminal.paint("warning:", "yellow", error=True)
        for text in answer.object.get("warnings") or ():
            terminal.complain(f"{mark} {named}: {terminal.printable(text)}")
        print(f"{named} {terminal.paint('deleted', 'red')}{self._mark}")

    def _refused(self, reference: Reference, refused: Refused) -> None:
        if refused.status != _NOT_FOUND:
            tell(refused.about(str(reference)))
            self.code = ExitCode.REFUSED
        elif (
            isinstance(reference, Named) and reference.noun.is_mesh_scoped and reference.mesh in self._meshes
        ):
            print(f"{reference} {terminal.paint('deleted', 'red')} with its mesh{self._mark}")
        elif not self._ignores:
            terminal.complain(f"{reference} not found")
            self.code = ExitCode.REFUSED


def _named(client: Client, reference: Reference) -> Named:
    if isinstance(reference, Named):
        return reference
    value = client.get(reference.path).object
    return objects.named(nouns.served(client), value)


def _from_words(client: Client, words: Sequence[str], mesh: str) -> tuple[Reference, ...]:
    found = objects.read(client, words, mesh)
    if not found.references:
        raise click.UsageError(f"name the {words[0]} to delete")
    return found.references


def _from_files(client: Client, files: Sequence[str]) -> list[Named]:
    from koguma.cli import inputs, written  # noqa: PLC0415 - names on the command line do not pay for YAML

    known = nouns.served(client)
    meant = [
        _stored(client, known.word(kind), mesh, names)
        for kind, mesh, names in reversed(written.identities(inputs.read(files)))
    ]
    return sorted(meant, key=lambda reference: _order(reference.noun))


def _order(noun: Noun) -> int:
    return _ORDER.get(noun.name, _POLICY_ORDER if noun.is_policy else 0)


def _stored(client: Client, noun: Noun, mesh: str, names: Sequence[str]) -> Named:
    """The object under the first of these names that is there."""
    first, *others = (Named(noun, mesh, name) for name in names)
    for candidate in (first, *others) if others else ():
        try:
            client.get(candidate.path)
        except Refused as refused:
            if refused.status != _NOT_FOUND:
                raise
        else:
            return candidate
    return first
