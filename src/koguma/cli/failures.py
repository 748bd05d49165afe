"""Failures: the exceptions that end a command, their exit codes, and how they are printed."""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from koguma.cli import terminal


class ExitCode(IntEnum):
    """The exit codes of commands."""

    FINE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4
    INTERRUPTED = 130  # as a shell reports SIGINT
    BROKEN_PIPE = 141  # as a shell reports SIGPIPE


_DENIED_STATUSES = (401, 403)


class InvalidParameter(NamedTuple):
    """An entry of `invalid_parameters` in an error response: a field, and why it is invalid."""

    field: str
    reason: str


class CommandFailure(Exception):
    """The command cannot continue. `lines` are printed under the message."""

    code = ExitCode.REFUSED

    def __init__(self, message: str, lines: tuple[str, ...] = (), code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.lines = lines
        if code is not None:
            self.code = code

    def all_lines(self, *, verbose: bool) -> Iterator[str]:
        """The lines for standard error."""
        yield self.message
        yield from self.lines
        if verbose:
            yield from self.verbose_lines()

    def verbose_lines(self) -> Iterator[str]:
        """What only `-v` shows."""
        return iter(())


class ServerUnreachable(CommandFailure):
    """The server does not answer."""

    code = ExitCode.UNREACHABLE


class ApiError(CommandFailure):
    """The server answered with an error status."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        fields: tuple[InvalidParameter, ...] = (),
        request_id: str = "",
    ) -> None:
        message = ": ".join(part for part in (title, detail) if part) or f"the server answered {status}"
        super().__init__(
            message, tuple(f" - {f.field}: {f.reason}" if f.field else f" - {f.reason}" for f in fields)
        )
        self.status, self.title, self.detail = status, title, detail
        self.fields, self.request_id = fields, request_id
        if status in _DENIED_STATUSES:
            self.code = ExitCode.DENIED

    def about(self, subject: str) -> "ApiError":
        """The same error, with the object that it is about."""
        return ApiError(self.status, f"{subject}: {self.title}", self.detail, self.fields, self.request_id)

    def verbose_lines(self) -> Iterator[str]:
        """Status and request id, by which the server's log can be searched."""
        yield f" - status {self.status}, request {self.request_id or 'without an id'}"


def report(failure: CommandFailure, *, verbose: bool = False) -> None:
    """Print a failure to standard error."""
    first, *rest = (terminal.printable(line) for line in failure.all_lines(verbose=verbose))
    terminal.print_stderr(f"{terminal.paint('error:', 'red', error=True)} {first}")
    for line in rest:
        terminal.print_stderr(line)


def from_koguma_error(error: Exception) -> CommandFailure | None:
    """The failure for a KogumaError (a bad KRI, bad settings); None for every other exception."""
    from koguma.model.errors import BadRequest, Invalid, KogumaError  # noqa: PLC0415 - only for an error

    if not isinstance(error, KogumaError):
        return None
    violations = error.violations if isinstance(error, Invalid | BadRequest) else ()
    others = (violation for violation in violations if violation.message not in error.detail)
    return CommandFailure(error.detail, tuple(f" - {other.field}: {other.message}" for other in others))
