"""Sheet: an object as text in a private file, on its way through an editor.

Lines with `#` at the top are ours: what the object is, and why the text was not taken. They are replaced when
it is opened again, and never sent. The file is removed at the end, unless a text in it could not be written.
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
_LAST_RESORT: Final = "vi"
_COMPUTED: Final = ("creationTime", "modificationTime", "kri", "snis", "status")
# The server sets these from the object itself, or leaves them as they are where an update does not say.
_COMPUTED_LABELS: Final = (
    labels.DISPLAY_NAME,
    labels.ORIGIN,
    labels.MESH,
    labels.ZONE,
    labels.NAMESPACE,
    labels.ROLE,
)


class Remark(NamedTuple):
    """Something to say about a line of the object's text; 0 stands for all of it."""

    line: int
    text: str


def bare(value: Json) -> Json:
    """An object without what the server writes by itself."""
    kept = {name: part for name, part in value.items() if name not in _COMPUTED}
    own = {
        name: text for name, text in (kept.pop("labels", None) or {}).items() if name not in _COMPUTED_LABELS
    }
    if not own:
        return kept
    first = {name: kept.pop(name) for name in ("type", "mesh", "name") if name in kept}
    return {**first, "labels": own, **kept}


def editor(environment: Mapping[str, str]) -> list[str]:
    """The command that edits a file, to which the file is to be added."""
    text = next((environment[name] for name in _EDITORS if environment.get(name, "").strip()), _LAST_RESORT)
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CommandFailure(f"the editor `{text}` is no command: {error}") from None


class EditFile:
    """The file of one object, while it is entered."""

    def __init__(self, title: str, value: Json) -> None:
        self._title = title
        self._first = output.yaml_text(bare(value))
        self._shown = ""  # what the editor was last given
        self._refused = False
        self._file = Path()

    def __enter__(self) -> Self:
        handle, name = tempfile.mkstemp(prefix="koguma-edit-", suffix=".yaml")  # readable by its owner alone
        os.close(handle)
        self._file = Path(name)
        self._lay((), self._first)
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
        """Let the editor work on it; says whether there is a text to write now."""
        _edited([*command, str(self._file)])
        text = self._text()
        if not _body(text).strip():
            return False
        if text != self._shown:
            return True
        if self._refused:
            raise CommandFailure("the text was left as it was refused; nothing is written")
        return False

    def document(self) -> Document:
        """The object in the text, with the places of its fields; BadDocument where there is none."""
        body = _body(self._text())
        found = documents.load(body)
        if len(found) > 1:
            place, problem = found[1].place(""), "one object is edited, and here begins another"
            raise BadDocument("", *place, problem)
        if not found or not isinstance(found[0].value, dict):
            raise BadDocument("", 1, 1, "an object is needed here")
        return found[0]

    def reopen(self, remarks: Sequence[Remark]) -> None:
        """Put what was said about the text on top of it, for the next look."""
        self._refused = True
        self._lay(remarks, _body(self._text()))

    def _lay(self, remarks: Sequence[Remark], body: str) -> None:
        plain = [line for remark in remarks for line in _lines(remark)]
        head = list(_head(self._title, remarks=bool(plain)))
        height = len(head) + len(plain)
        said = [f"# {f'line {line + height}: ' if line else ''}{text}".rstrip() for line, text in plain]
        self._shown = "\n".join([*head, *said, body])
        self._file.write_text(self._shown, encoding="utf-8")

    def _text(self) -> str:
        """The file as it is now; an editor may have put another in its place."""
        try:
            return self._file.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise CommandFailure(f"{self._file} cannot be read any more: {error.strerror}") from None

    def _is_worth_keeping(self) -> bool:
        with contextlib.suppress(CommandFailure):
            body = _body(self._text())
            return bool(body.strip()) and body != self._first
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


def _edited(command: Sequence[str]) -> None:
    shown = shlex.join(command[:-1])
    with _ignored_interrupts():
        try:
            ended = subprocess.run(command, check=False)  # noqa: S603 - the person's own editor
        except OSError as error:
            raise CommandFailure(
                f"cannot start the editor `{shown}`: {error.strerror}",
                (" - name another with KOGUMA_EDITOR, VISUAL or EDITOR",),
            ) from None
    if ended.returncode:
        raise CommandFailure(f"the editor `{shown}` ended with {ended.returncode}; nothing is written")


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to the editor. A function, because a child inherits signals that are ignored."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
