"""`koguma edit`: change one stored object in an editor.

The text is written back only over the version that was read. What the server refuses is opened again with the
reasons on top, and a text that could not be written is kept in a file.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final

import click

from koguma.cli import comparison, edit_file, kind_lookup, objects, options, terminal
from koguma.cli.client import ApiClient, ApiResponse, Json
from koguma.cli.edit_file import EditFile, Remark
from koguma.cli.failures import ApiError, ExitCode
from koguma.cli.objects import ObjectName
from koguma.model.documents import BadDocument, Document

_METHOD_NOT_ALLOWED: Final = 405
_PRECONDITION_FAILED: Final = 412
_CORRECTABLE: Final = (400, 409, _PRECONDITION_FAILED, 413)  # another text may be accepted

_EXAMPLES = """\b
Examples:
  koguma edit meshtimeout backend-is-quick -m shop
  KOGUMA_EDITOR='code --wait' koguma edit mesh default
"""


@click.command("edit", epilog=_EXAMPLES)
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME | KRI")
@options.mesh
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@options.reason
@options.connected
def command(client: ApiClient, *, words: Sequence[str], mesh: str, dry_run: bool, reason: str) -> None:
    """Change an object in an editor: KOGUMA_EDITOR, VISUAL, EDITOR, or vi.

    The object is opened as YAML, without what the server computes. A text that is empty, or says the same as
    before, changes nothing. Where the server refuses the text, or somebody else wrote the object since it was
    opened, the text is opened again with the reasons on top. What cannot be written is kept in a file.
    """
    client.reason = reason
    selection = objects.read(client, words, mesh)
    if len(selection.references) != 1:
        raise click.UsageError("name one object: KIND NAME, KIND/NAME or a KRI")
    (answer,) = objects.fetched(client, selection.references)
    named = objects.named(kind_lookup.from_server(client), answer.object)
    _Edit(client, named, answer, dry_run=dry_run).run(edit_file.editor(os.environ))


class _Edit:
    """Opens one object in the editor until its text is accepted or unchanged."""

    def __init__(self, client: ApiClient, named: ObjectName, read: ApiResponse, *, dry_run: bool) -> None:
        self._client = client
        self._named = named
        self._read = read  # the version that the text replaces
        self._query = [("dryRun", "All")] if dry_run else []
        self._mark = " (dry run)" if dry_run else ""

    def run(self, editor: Sequence[str]) -> None:
        """Open the editor until the text is written, or unchanged."""
        self._check_writable()
        with EditFile(str(self._named), self._read.object) as text:
            while text.open(editor):
                try:
                    document = text.document()
                except BadDocument as error:
                    text.reopen([Remark(error.line, error.problem)])
                    continue
                if document.value == edit_file.bare(self._read.object):
                    break
                remarks = self._write(document)
                if not remarks:
                    return
                text.reopen(remarks)
        print(f"{self._named} unchanged")

    def _check_writable(self) -> None:
        """Write the unchanged object in a dry run: who may not write it is told before editing."""
        try:
            self._put(edit_file.bare(self._read.object), [("dryRun", "All")])
        except ApiError as error:
            if error.code is ExitCode.DENIED or error.status == _METHOD_NOT_ALLOWED:
                raise error.about(str(self._named)) from None

    def _put(self, value: Json, query: Sequence[tuple[str, str]]) -> ApiResponse:
        return self._client.send("PUT", self._named.path, query, value, {"If-Match": self._read.etag})

    def _write(self, document: Document) -> list[Remark]:
        """Write, and print the diff; returns why it was refused, where another text may be accepted."""
        try:
            answer = self._put(document.value, self._query)
        except ApiError as error:
            if error.status not in _CORRECTABLE:
                raise error.about(str(self._named)) from None
            is_outdated = error.status == _PRECONDITION_FAILED
            return list(self._concurrent_change() if is_outdated else _remarks(error, document))
        self._show(answer, document.value)
        return []

    def _show(self, answer: ApiResponse, value: Json) -> None:
        mark = terminal.paint("warning:", "yellow", error=True)
        for text in answer.object.get("warnings") or ():
            terminal.print_stderr(f"{mark} {terminal.printable(text)}")
        for line in self._lines(self._read.object, value):
            print(line)
        print(f"{self._named} {terminal.paint('configured', 'yellow')}{self._mark}")

    def _concurrent_change(self) -> Iterator[Remark]:
        """What somebody else changed since the object was read; the next text replaces that version."""
        before = self._read
        (self._read,) = objects.fetched(self._client, [self._named])
        yield Remark(
            0, "Somebody else changed it since you opened it. What you save takes the place of this:"
        )
        yield from (Remark(0, line) for line in self._lines(before.object, self._read.object))

    def _lines(self, before: Json, after: Json) -> Iterator[str]:
        kind = kind_lookup.local_kinds().get(self._named.kind.name)
        return comparison.lines(str(self._named), before, after, kind)


def _remarks(error: ApiError, document: Document) -> Iterator[Remark]:
    yield Remark(0, error.message)
    for field, reason in error.fields:
        yield Remark(document.position(field)[0], f"{field}: {reason}" if field else reason)
