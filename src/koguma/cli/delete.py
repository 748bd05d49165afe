"""`koguma delete`: delete objects, by name, by KRI, or those in files."""

from collections.abc import Sequence
from typing import Final

import click

from koguma.cli import arrival, kind_lookup, objects, options, terminal
from koguma.cli.arrival import ArrivalWait, Awaited
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, ExitCode, report
from koguma.cli.kind_lookup import KindInfo
from koguma.cli.objects import ObjectName, ObjectReference

_NOT_FOUND: Final = 404
# A mesh with Dataplanes cannot be deleted, nor a Secret that a mesh's mTLS uses. Policies are deleted before
# routes, and routes before services, so that no object refers to a deleted one meanwhile.
_ORDER: Final = {"MeshHTTPRoute": -1, "MeshTCPRoute": -1, "MeshGatewayHTTPRoute": -1, "Mesh": 1, "Secret": 2}
_POLICY_ORDER: Final = -2


@click.command("delete")
@click.argument("words", nargs=-1, metavar="[KIND NAME... | KRI...]")
@options.files
@options.mesh
@click.option("--ignore-not-found", is_flag=True, help="What is not there is fine.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@options.reason
@click.option("--wait", is_flag=True, help="Wait until every proxy that this touches has acknowledged it.")
@arrival.options
@options.connected
def command(  # noqa: PLR0913 - what users choose
    client: ApiClient,
    *,
    words: Sequence[str],
    files: Sequence[str],
    mesh: str,
    ignore_not_found: bool,
    dry_run: bool,
    reason: str,
    wait: bool,
    timeout: float,
    connected: bool,
) -> int:
    """Remove objects, by name, by KRI, or those that files contain.

    With --wait the exit code is 2 where it has not reached every proxy in time; they stay removed.
    """
    client.reason = reason
    if bool(words) == bool(files):
        raise click.UsageError("name what to delete: KIND NAME, a KRI, or -f PATH")
    references = _from_files(client, files) if files else _from_words(client, words, mesh)
    deletion = _Deletion(client, dry_run=dry_run, ignores=ignore_not_found)
    for reference in references:
        deletion.delete(reference)
    if not wait or deletion.code or not deletion.revisions:
        return deletion.code
    return arrival.wait(
        ArrivalWait(client, Awaited.of(deletion.revisions), timeout, connected=connected, is_written=True)
    )


class _Deletion:
    """Deletes one object after the other, and keeps the exit code."""

    def __init__(self, client: ApiClient, *, dry_run: bool, ignores: bool) -> None:
        self._client = client
        self._query = [("dryRun", "All")] if dry_run else []
        self._mark = " (dry run)" if dry_run else ""
        self._ignores = ignores
        self._meshes: set[str] = set()
        self.code = ExitCode.FINE
        self.revisions: list[int] = []

    def delete(self, reference: ObjectReference) -> None:
        """Delete one object and print it; an object that cannot be deleted does not stop the others."""
        try:
            named = _named(self._client, reference)
            answer = self._client.send("DELETE", named.path, self._query)
        except ApiError as error:
            if error.code is ExitCode.DENIED:
                raise
            self._on_error(reference, error)
            return
        if revision := int(answer.headers.get("Koguma-Revision") or 0):
            self.revisions.append(revision)
        if named.kind.name == "Mesh":
            self._meshes.add(named.name)
        mark = terminal.paint("warning:", "yellow", error=True)
        for text in answer.object.get("warnings") or ():
            terminal.print_stderr(f"{mark} {named}: {terminal.printable(text)}")
        print(f"{named} {terminal.paint('deleted', 'red')}{self._mark}")

    def _on_error(self, reference: ObjectReference, error: ApiError) -> None:
        if error.status != _NOT_FOUND:
            report(error.about(str(reference)))
            self.code = ExitCode.REFUSED
        elif (
            isinstance(reference, ObjectName)
            and reference.kind.is_mesh_scoped
            and reference.mesh in self._meshes
        ):
            print(f"{reference} {terminal.paint('deleted', 'red')} with its mesh{self._mark}")
        elif not self._ignores:
            terminal.print_stderr(f"{reference} not found")
            self.code = ExitCode.REFUSED


def _named(client: ApiClient, reference: ObjectReference) -> ObjectName:
    if isinstance(reference, ObjectName):
        return reference
    value = client.get(reference.path).object
    return objects.named(kind_lookup.from_server(client), value)


def _from_words(client: ApiClient, words: Sequence[str], mesh: str) -> tuple[ObjectReference, ...]:
    selection = objects.read(client, words, mesh)
    if not selection.references:
        raise click.UsageError(f"name the {words[0]} to delete")
    return selection.references


def _from_files(client: ApiClient, files: Sequence[str]) -> list[ObjectName]:
    from koguma.cli import file_identities, inputs  # noqa: PLC0415 - names on the command line need no YAML

    known = kind_lookup.from_server(client)
    named = [
        _stored(client, known.find(kind), mesh, names)
        for kind, mesh, names in reversed(file_identities.identities(inputs.read(files)))
    ]
    return sorted(named, key=lambda reference: _order(reference.kind))


def _order(kind: KindInfo) -> int:
    return _ORDER.get(kind.name, _POLICY_ORDER if kind.is_policy else 0)


def _stored(client: ApiClient, kind: KindInfo, mesh: str, names: Sequence[str]) -> ObjectName:
    """The object under the first of these names that exists."""
    first, *others = (ObjectName(kind, mesh, name) for name in names)
    for candidate in (first, *others) if others else ():
        try:
            client.get(candidate.path)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
        else:
            return candidate
    return first
