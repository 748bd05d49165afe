"""Edit file: an object as text in a private file, which an editor opens.

Lines with `#` at the top are ours: what the object is, and why the text was refused. They are replaced when
the file is opened again, and never sent. The file is removed at the end, unless its text cannot be written.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import click

from koguma.cli import output, terminal
from koguma.cli.client import Json
from koguma.cli.failures import CommandFailure
from koguma.model import documents, labels
from koguma.model.documents import BadDocument, Document

_EDITORS: Final = ("KOGUMA_EDITOR", "VISUAL", "EDITOR")
_DEFAULT_EDITOR: Final = "vi"
_COMPUTED: Final = ("creationTime", "modificationTime", "kri", "snis", "status")
# The server sets these labels from the object itself, or keeps them where an update omits them.
_COMPUTED_LABELS: Final = (
    labels.DISPLAY_NAME,
    labels.ORIGIN,
    labels.MESH,
    labels.ZONE,
    labels.NAMESPACE,
    labels.ROLE,
)


class Remark(NamedTuple):
    """A remark about a line of the object's text; line 0 stands for the whole text."""

    line: int
    text: str


def bare(value: Json) -> Json:
    """An object without the fields that the server sets."""
    kept = {name: part for name, part in value.items() if name not in _COMPUTED}
    own_labels = {
        name: text for name, text in (kept.pop("labels", None) or {}).items() if name not in _COMPUTED_LABELS
    }
    if not own_labels:
        return kept
    first = {name: kept.pop(name) for name in ("type", "mesh", "name") if name in kept}
    return {**first, "labels": own_labels, **kept}


def editor(environment: Mapping[str, str]) -> list[str]:
    """The editor's command, without the file."""
    text = next(
        (environment[name] for name in _EDITORS if environment.get(name, "").strip()), _DEFAULT_EDITOR
    )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CommandFailure(f"the editor `{text}` is no command: {error}") from None


class EditFile:
    """The file of one object; it exists while the context is entered."""

    def __init__(self, title: str, value: Json) -> None:
        self._title = title
        self._original = output.yaml_text(bare(value))
        self._opened_text = ""  # the text that the editor was last given
        self._was_refused = False
        self._file = Path()

    def __enter__(self) -> Self:
        handle, name = tempfile.mkstemp(prefix="koguma-edit-", suffix=".yaml")  # mode 0600
        os.close(handle)
        self._file = Path(name)
        self._write((), self._original)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None or not self._is_worth_keeping():
            self._file.unlink(missing_ok=True)
        elif isinstance(error, CommandFailure):
            error.lines = (*error.lines, f" - your text is kept in {self._file}")
        else:
            terminal.print_stderr(f"your text is kept in {self._file}")

    def open(self, command: Sequence[str]) -> bool:
        """Run the editor; returns whether there is a text to write now."""
        _run_editor([*command, str(self._file)])
        text = self._text()
        if not _body(text).strip():
            return False
        if text != self._opened_text:
            return True
        if self._was_refused:
            raise CommandFailure("the text was left as it was refused; nothing is written")
        return False

    def document(self) -> Document:
        """The object in the text, with the places of its fields; raises BadDocument."""
        body = _body(self._text())
        loaded = documents.load(body)
        if len(loaded) > 1:
            place, problem = loaded[1].position(""), "one object is edited, and here begins another"
            raise BadDocument("", *place, problem)
        if not loaded or not isinstance(loaded[0].value, dict):
            raise BadDocument("", 1, 1, "an object is needed here")
        return loaded[0]

    def reopen(self, remarks: Sequence[Remark]) -> None:
        """Put remarks above the text, for the next run of the editor."""
        self._was_refused = True
        self._write(remarks, _body(self._text()))

    def _write(self, remarks: Sequence[Remark], body: str) -> None:
        single_lines = [line for remark in remarks for line in _lines(remark)]
        head = list(_head(self._title, remarks=bool(single_lines)))
        n_above = len(head) + len(single_lines)
        comments = [
            f"# {f'line {line + n_above}: ' if line else ''}{text}".rstrip() for line, text in single_lines
        ]
        self._opened_text = "\n".join([*head, *comments, body])
        self._file.write_text(self._opened_text, encoding="utf-8")

    def _text(self) -> str:
        """The text of the file now; an editor may have replaced the file."""
        try:
            return self._file.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise CommandFailure(f"{self._file} cannot be read any more: {error.strerror}") from None

    def _is_worth_keeping(self) -> bool:
        with contextlib.suppress(CommandFailure):
            body = _body(self._text())
            return bool(body.strip()) and body != self._original
        return False


def _head(title: str, *, remarks: bool) -> Iterator[str]:
    yield f"# {title}. Lines with # up here are left out; a text that is empty or the same changes nothing."
    if remarks:
        yield "# It was not written, for the reasons below. Mend it; saved as it is, the command ends."


def _lines(remark: Remark) -> Iterator[Remark]:
    for line in click.unstyle(remark.text).splitlines():
        yield Remark(remark.line, terminal.printable(line))


def _body(text: str) -> str:
    """The text without the lines with `#` at its top."""
    lines = text.splitlines(keepends=True)
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "".join(lines)


def _run_editor(command: Sequence[str]) -> None:
    shown = shlex.join(command[:-1])
    with _ignored_interrupts():
        try:
            process = subprocess.run(command, check=False)  # noqa: S603 - the user's own editor
        except OSError as error:
            raise CommandFailure(
                f"cannot start the editor `{shown}`: {error.strerror}",
                (" - name another with KOGUMA_EDITOR, VISUAL or EDITOR",),
            ) from None
    if process.returncode:
        raise CommandFailure(f"the editor `{shown}` ended with {process.returncode}; nothing is written")


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to the editor. Not SIG_IGN but a handler: a child inherits ignored signals."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
