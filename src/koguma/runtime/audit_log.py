"""Audit log: JSON lines in a file, written by a thread of its own.

Events wait in a bounded queue: no request waits for the disk, and what does not fit is dropped and counted.
The file is opened again when it was moved away, as logrotate does, so that nothing has to be told about that.
A disk that refuses a line costs that line, is logged once, and shown by `koguma check`.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Final

import msgspec
import structlog

from koguma.model.errors import KogumaError

QUEUE_MAX: Final = 10_000  # events
_BATCH_MAX: Final = 500
_LAST_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.5

_log = structlog.get_logger("koguma.audit")
_encode = msgspec.json.Encoder().encode

Event = Mapping[str, Any]


class AuditLog:
    """Appends events to the file at `path`, which only its owner can read."""

    def __init__(self, path: str, queue_max: int = QUEUE_MAX) -> None:
        self.path = Path(path)
        self.n_written = 0
        self.n_dropped = 0
        self.problem = ""  # why the last lines could not be written
        self.errno = 0  # of that problem
        self._queue: Queue[Event] = Queue(queue_max)
        self._stopping = threading.Event()
        self._file: int | None = None
        self._is_torn = False  # the file ends in the middle of a line
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)

    def start(self) -> None:
        """Open the file and begin to write; an error where it cannot be written."""
        try:
            self._open()
        except OSError as error:
            raise KogumaError(f"the audit log {self.path} cannot be written: {error.strerror}") from error
        self._thread.start()

    def add(self, event: Event) -> None:
        """Queue an event; never waits."""
        try:
            self._queue.put_nowait(event)
        except Full:
            self.n_dropped += 1

    def stop(self) -> None:
        """Write what is queued, within some seconds, and close the file; it may block so long."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            events = self._next_events()
            if not events:
                continue
            try:
                self._write(events)
            except Exception as error:  # noqa: BLE001 - a bug about one event must not end the log of all others
                _log.exception("audit events cannot be written", events=len(events))
                self._note(f"{type(error).__name__}: {error}")
                self.n_dropped += len(events)
        self._close()

    def _next_events(self) -> list[Event]:
        """Those that wait, up to a number; waits a moment for the first."""
        try:
            events = [self._queue.get(timeout=_POLL_SECONDS)]
        except Empty:
            return []
        while len(events) < _BATCH_MAX:
            try:
                events.append(self._queue.get_nowait())
            except Empty:
                break
        return events

    def _write(self, events: list[Event]) -> None:
        lines = b"".join(_line(event) for event in events)
        written = 0
        try:
            if self._was_moved():
                self._close()
                self._open()
            if self._is_torn:
                self._append(b"\n")
            while written < len(lines):
                written += self._append(lines[written:])
        except OSError as error:
            n_written = lines.count(b"\n", 0, written)
            self.n_written += n_written
            self.n_dropped += len(events) - n_written
            self._note(error.strerror or str(error), error.errno or 0)
            return
        self.n_written += len(events)
        self._note("")

    def _append(self, lines: bytes) -> int:
        """Write as much as the disk takes, and note whether a line was cut."""
        assert self._file is not None
        written = os.write(self._file, lines)
        self._is_torn = written > 0 and not lines.endswith(b"\n", 0, written)
        return written

    def _note(self, problem: str, number: int = 0) -> None:
        """Log the begin and the end of a problem, each once."""
        if problem and not self.problem:
            _log.warning("the audit log cannot be written", file=str(self.path), reason=problem)
        elif self.problem and not problem:
            _log.info("the audit log is written again", file=str(self.path), dropped=self.n_dropped)
        self.problem, self.errno = problem, number

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

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _line(event: Event) -> bytes:
    """An event as a line; what is no text, as bytes of a client that are no UTF-8, is replaced."""
    try:
        return _encode(event) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
