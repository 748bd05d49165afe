"""Audit file: events as JSON lines in a file that only its owner can read.

The file is opened again when it was moved away, as logrotate does, so that nothing has to be told about that.
A disk that refuses a line costs that line.
"""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koguma.model.errors import KogumaError
from koguma.runtime.audit_log import AuditProblem, AuditResult, Event

_encode = msgspec.json.Encoder().encode


class AuditFile:
    """Appends events to the file at a path."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._file: int | None = None
        self._is_torn = False  # the file ends in the middle of a line

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def open(self) -> None:
        """Open the file; an error where it cannot be written."""
        try:
            self._open()
        except OSError as error:
            raise KogumaError(f"the audit log {self.path} cannot be written: {error.strerror}") from error

    def write(self, events: Sequence[Event]) -> AuditResult:
        """Append a line for each event, as far as the disk takes them."""
        lines = b"".join(_line(event) for event in events)
        written = 0
        try:
            if self._was_moved():
                self.close()
                self._open()
            if self._is_torn:
                self._append(b"\n")
            while written < len(lines):
                written += self._append(lines[written:])
        except OSError as error:
            text = error.strerror or str(error)
            return AuditResult(
                lines.count(b"\n", 0, written), AuditProblem(text, self._hint(error.errno or 0))
            )
        return AuditResult(len(events))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, lines: bytes) -> int:
        """Write as much as the disk takes, and note whether a line was cut."""
        assert self._file is not None
        written = os.write(self._file, lines)
        self._is_torn = written > 0 and not lines.endswith(b"\n", 0, written)
        return written

    def _was_moved(self) -> bool:
        """Whether the path leads elsewhere than to the open file, or nowhere."""
        if self._file is None:
            return True
        try:
            at_path = self.path.stat()
        except OSError:
            return True
        opened = os.fstat(self._file)
        return (at_path.st_dev, at_path.st_ino) != (opened.st_dev, opened.st_ino)

    def _open(self) -> None:
        self._is_torn = False
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _hint(self, number: int) -> str:
        """What to do about an error of the disk."""
        match number:
            case errno.ENOSPC | errno.EDQUOT:
                return "make room on its disk"
            case errno.ENOENT | errno.ENOTDIR:
                return f"create the directory {self.path.parent}, for the user that runs the control plane"
            case errno.EACCES | errno.EPERM:
                directory = self.path.parent
                return f"let the user that runs the control plane write the file, and files in {directory}"
            case errno.EROFS:
                return (
                    "its file system is read-only: mount it writable, or name another file with --audit-log"
                )
            case _:
                return "mend what keeps it from being written, or name another file with --audit-log"


def _line(event: Event) -> bytes:
    """An event as a line; what is no text, as bytes of a client that are no UTF-8, is replaced."""
    try:
        return _encode(event) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
