"""Failures: what ends a command, its exit code, and how it is told."""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from koguma.cli import terminal


class ExitCode(IntEnum):
    """How a command ended."""

    FINE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4
    INTERRUPTED = 130  # as a shell reports SIGINT
    BROKEN_PIPE = 141  # as a shell reports SIGPIPE


_DENIED_STATUSES = (401, 403)


class Field(NamedTuple):
    """One thing that is wrong: where, and why."""

    field: str
    reason: str


class Failure(Exception):
    """The command cannot go on. `lines` are printed under the message as they are."""

    code = ExitCode.REFUSED

    def __init__(self, message: str, lines: tuple[str, ...] = (), code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.lines = lines
        if code is not None:
            self.code = code

    def told(self, *, verbose: bool) -> Iterator[str]:
        """The lines for standard error."""
        yield self.message
        yield from self.lines
        if verbose:
            yield from self.more()

    def more(self) -> Iterator[str]:
        """What only `-v` shows."""
        return iter(())


class Unreachable(Failure):
    """Nobody answers at the address."""

    code = ExitCode.UNREACHABLE


class Refused(Failure):
    """The server answered with an error."""

    def __init__(
        self, status: int, title: str, detail: str, fields: tuple[Field, ...] = (), request_id: str = ""
    ) -> None:
        message = ": ".join(part for part in (title, detail) if part) or f"the server answered {status}"
        super().__init__(
            message, tuple(f" - {f.field}: {f.reason}" if f.field else f" - {f.reason}" for f in fields)
        )
        self.status, self.title, self.detail = status, title, detail
        self.fields, self.request_id = fields, request_id
        if status in _DENIED_STATUSES:
            self.code = ExitCode.DENIED

    def about(self, subject: str) -> "Refused":
        """The same, naming what it is about."""
        return Refused(self.status, f"{subject}: {self.title}", self.detail, self.fields, self.request_id)

    def more(self) -> Iterator[str]:
        """Status and request id, to be found again in the server's log."""
        yield f" - status {self.status}, request {self.request_id or 'without an id'}"


def tell(failure: Failure, *, verbose: bool = False) -> None:
    """Print a failure to standard error."""
    first, *rest = (terminal.printable(line) for line in failure.told(verbose=verbose))
    terminal.complain(f"{terminal.paint('error:', 'red', error=True)} {first}")
    for line in rest:
        terminal.complain(line)


def of_library(error: Exception) -> Failure | None:
    """The failure for an error of our own rules (a bad KRI, bad settings); None for everything else."""
    from koguma.model.errors import BadRequest, Invalid, KogumaError  # noqa: PLC0415 - only where one came

    if not isinstance(error, KogumaError):
        return None
    violations = error.violations if isinstance(error, Invalid | BadRequest) else ()
    more = (v for v in violations if v.message not in error.detail)
    return Failure(error.detail, tuple(f" - {v.field}: {v.message}" for v in more))
