"""Audit log: events in a file or at a collector, written by a thread of its own.

Events wait in a bounded queue: no request waits for the disk or the network, and what does not fit is dropped
and counted. A problem is logged when it begins and when it ends, and shown by `koguma check`.
"""

import threading
from collections.abc import Mapping, Sequence
from queue import Empty, Full, Queue
from typing import Any, Final, NamedTuple, Protocol

import structlog

QUEUE_MAX: Final = 10_000  # events
_BATCH_MAX: Final = 500
_LAST_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.5

_log = structlog.get_logger("koguma.audit")

Event = Mapping[str, Any]


class AuditProblem(NamedTuple):
    """Why events could not be written, and what to do."""

    text: str
    hint: str
    is_passing: bool = False  # the same events may be taken later


class AuditResult(NamedTuple):
    """How many of some events were written, in order, and why not the others."""

    n_written: int
    problem: AuditProblem | None = None


class AuditOutput(Protocol):
    """Where events are written; called by one thread."""

    @property
    def name(self) -> str:
        """Its name for people."""

    def open(self) -> None:
        """Prepare to write; KogumaError where that will not be possible."""

    def write(self, events: Sequence[Event]) -> AuditResult:
        """Write events."""

    def close(self) -> None:
        """Let go of what is open."""


class AuditLog:
    """Queues events, and writes them to an output."""

    def __init__(self, output: AuditOutput, queue_max: int = QUEUE_MAX) -> None:
        self.output = output
        self.n_written = 0
        self.n_dropped = 0
        self.problem: AuditProblem | None = None  # why the last events could not be written
        self._queue: Queue[Event] = Queue(queue_max)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)

    def start(self) -> None:
        """Begin to write; an error where that is not possible."""
        self.output.open()
        self._thread.start()

    def add(self, event: Event) -> None:
        """Queue an event; never waits."""
        try:
            self._queue.put_nowait(event)
        except Full:
            self.n_dropped += 1

    def stop(self) -> None:
        """Write what is queued, within some seconds, and close the output; it may block so long."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            if events := self._next_events():
                self._write(events)
        self.output.close()

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
        """Write events, again and again while that may help; what is left then is lost."""
        while events:
            result = self._tried(events)
            self.n_written += result.n_written
            self._note(result.problem)
            events = events[result.n_written :]
            if result.problem is None or not result.problem.is_passing or self._stopping.wait(_POLL_SECONDS):
                break
        self.n_dropped += len(events)

    def _tried(self, events: list[Event]) -> AuditResult:
        try:
            return self.output.write(events)
        except Exception as error:  # noqa: BLE001 - a bug about one event must not end the log of all others
            _log.exception("audit events cannot be written", events=len(events))
            problem = AuditProblem(f"{type(error).__name__}: {error}", "report this; the log has the details")
            return AuditResult(0, problem)

    def _note(self, problem: AuditProblem | None) -> None:
        """Log the begin and the end of a problem, each once."""
        if problem and not self.problem:
            _log.warning("the audit log cannot be written", output=self.output.name, reason=problem.text)
        elif self.problem and not problem:
            _log.info("the audit log is written again", output=self.output.name, dropped=self.n_dropped)
        self.problem = problem
