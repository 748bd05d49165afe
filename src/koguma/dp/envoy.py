"""The Envoy process: its start with a bootstrap, its log, forwarded into ours, and its exit."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koguma.dp import TOKEN_VARIABLE
from koguma.dp.bootstrap import EnvoyBuild, read_version
from koguma.model.errors import KogumaError

_VERSION_SECONDS: Final = 10.0
_KILL_SECONDS: Final = 5.0
_LAST_LINES: Final = 8
_LINE_BYTES_MAX: Final = 64 * 1024
_SENTENCE_MAX: Final = 600

# Runs a program that the kernel sends SIGTERM to when its parent dies (PR_SET_PDEATHSIG is 1). Python ignores
# some signals, which Envoy must not inherit. A parent that died before the prctl call is not noticed by the
# kernel, so the parent's id is compared.
_EXEC_WITH_PARENT_DEATH_SIGNAL: Final = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# One line per log record, which Envoy guarantees only with escaped line breaks.
_LOG_FORMAT: Final = ("--log-format", "[%l][%n] %v", "--log-format-escaped")
# Access logs, and so denied requests, are written within a second; Envoy's default is ten.
_FLUSH: Final = ("--file-flush-interval-msec", "1000")
_RECORD: Final = re.compile(r"\[(trace|debug|info|warning|error|critical)\]\[([^\]]*)\] (.*)", re.DOTALL)
_REFUSAL: Final = re.compile(r"error `(.*)` initializing config", re.DOTALL)
_LISTENER_ERROR: Final = re.compile(
    r"(?:lds: )?listener '([^']+)' (?:config rejected|failed to bind or apply socket options): (.*)",
    re.DOTALL,
)
# The loggers, and their level, that report rejected listeners.
_LISTENER_LOGGERS: Final = "config:warning,upstream:warning"
_LEVELS: Final = ("trace", "debug", "info", "warning", "error", "critical", "off")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r"}

_log = structlog.get_logger("envoy")


class EnvoySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How Envoy is run."""

    binary: Path
    drain_seconds: float = 30.0
    concurrency: int = 0  # 0: one worker thread per core
    log_level: str = "warning"


class LoggedListenerError(msgspec.Struct, frozen=True):
    """Why Envoy rejected a listener, and when it last logged so."""

    details: str
    logged_at: float  # on the monotonic clock


class EnvoyExit(msgspec.Struct, frozen=True):
    """How an Envoy exited; `refusal` is its error message where it rejected the bootstrap."""

    code: int
    seconds: float
    last_lines: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def message(self) -> str:
        """The exit in a sentence, for the log."""
        if self.refusal:
            return f"Envoy refuses its bootstrap: {self.refusal}"
        how = f"was ended by {_signal_name(-self.code)}" if self.code < 0 else f"ended with code {self.code}"
        return f"Envoy {how} after {self.seconds:.1f} s"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def arguments(settings: EnvoySettings, bootstrap: Path) -> tuple[str, ...]:
    """The command line of Envoy; no secret is in it, because every user of the machine can read it."""
    threads = ("--concurrency", str(settings.concurrency)) if settings.concurrency else ()
    drain = ("--drain-time-s", str(max(1, round(settings.drain_seconds))), "--drain-strategy", "immediate")
    hides_warnings = _LEVELS.index(settings.log_level) > _LEVELS.index("warning")
    listeners = ("--component-log-level", _LISTENER_LOGGERS) if hides_warnings else ()
    level = ("--log-level", settings.log_level, *listeners, *_FLUSH)
    return (
        *(str(settings.binary.absolute()), "--config-path", str(bootstrap), "--disable-hot-restart"),
        *(*drain, *threads, *level, *_LOG_FORMAT),
    )


async def version(binary: Path) -> EnvoyBuild:
    """The version of an Envoy binary; raises KogumaError where the file is not Envoy."""
    try:
        process = await asyncio.create_subprocess_exec(
            str(binary), "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise KogumaError(f"{binary} cannot be run: {error.strerror}; see --envoy-path") from None
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        output = b""
    build = read_version(output.decode(errors="replace"))
    if build is None:
        raise KogumaError(f"{binary} is no Envoy: `{binary} --version` does not say so; see --envoy-path")
    return build


class EnvoyProcess:
    """A running Envoy. The kernel ends it when the agent dies."""

    def __init__(
        self, process: asyncio.subprocess.Process, masked: Callable[[str], str], level: str = "warning"
    ) -> None:
        self._process = process
        self._masked = masked
        self._level = level
        # By name of the listener. The admin interface reports these too, but only until the next LDS update.
        self.listener_errors: dict[str, LoggedListenerError] = {}
        self._started_at = time.monotonic()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._refusal = ""
        self._reading = asyncio.create_task(self._read_log(), name="log of Envoy")

    @classmethod
    async def start(
        cls,
        settings: EnvoySettings,
        bootstrap: Path,
        environment: Mapping[str, str],
        masked: Callable[[str], str],
    ) -> "EnvoyProcess":
        """Run Envoy with the bootstrap in that file; `masked` removes secrets from a log line."""
        # In a new session, so that Ctrl-C on a terminal reaches only the agent, which then drains Envoy. It
        # inherits our standard output, because access logs may go there.
        process = await asyncio.create_subprocess_exec(
            *_with_parent_death_signal(arguments(settings, bootstrap)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in environment.items() if name != TOKEN_VARIABLE},
            cwd=bootstrap.parent,  # access logs name their pipe relative to it
            start_new_session=True,
        )
        return cls(process, masked, settings.log_level)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not exited."""
        return self._process.returncode is None

    async def wait(self) -> EnvoyExit:
        """Wait for its exit."""
        code = await self._process.wait()
        seconds = time.monotonic() - self._started_at
        await asyncio.shield(self._reading)
        return EnvoyExit(code, seconds, tuple(self._last_lines), self._refusal)

    async def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL where it does not exit in time."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await self.wait()
        except TimeoutError:
            _log.warning("Envoy ignores SIGTERM, and is killed", pid=self.pid)
            await self.kill()

    async def kill(self) -> None:
        """End it at once, with SIGKILL."""
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read_log(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        rest = b""
        while chunk := await stream.read(_LINE_BYTES_MAX):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take_line(line)
        if rest:
            self._take_line(rest)

    def _take_line(self, line: bytes) -> None:
        text = self._masked(line.decode(errors="replace").rstrip())
        refusal = self._refusal or refusal_in(text)
        if refusal and self._refusal:
            return  # Envoy prints it a second time, not as a log record
        self._refusal = refusal
        if text and not refusal:
            self._last_lines.append(text)
            self._note_listener_error(text)
            _forward(text, self._level)

    def _note_listener_error(self, text: str) -> None:
        error = listener_error_in(text)
        if error is not None:
            name, details = error
            self.listener_errors[name] = LoggedListenerError(details, time.monotonic())


def _forward(text: str, level_min: str) -> None:
    """Log a line of Envoy, unless it is below --envoy-log-level: some loggers run at `warning` for us."""
    record = _RECORD.fullmatch(text)
    if record is None:
        _log.info(text)
        return
    level, component, message = record.groups()
    if _LEVELS.index(level) < _LEVELS.index(level_min):
        return
    log = {"warning": _log.warning, "error": _log.error, "critical": _log.error}.get(level, _log.info)
    log(unescaped(message), component=component)


def refusal_in(text: str) -> str:
    """Envoy's error message about a bootstrap that it rejects, if this line is one; else empty."""
    record = _RECORD.fullmatch(text)
    match = _REFUSAL.search(record[3]) if record else None
    if match is None:
        return ""
    # Where Envoy prints the whole message that it rejects, the reason comes last.
    whole = unescaped(match[1]).strip()
    reason = whole.rpartition("\n: ")[2] if whole.startswith("goo.gle/debug") else whole
    return " ".join(reason.split())[:_SENTENCE_MAX]


def listener_error_in(text: str) -> tuple[str, str] | None:
    """The name of a listener that Envoy rejected, and why, if a line is about one."""
    record = _RECORD.fullmatch(text)
    match = _LISTENER_ERROR.fullmatch(unescaped(record[3])) if record else None
    return (match[1], match[2].strip()) if match else None


def unescaped(text: str) -> str:
    """A record's text without Envoy's escapes of line breaks."""
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _with_parent_death_signal(command: tuple[str, ...]) -> tuple[str, ...]:
    """The same command, started by a small program that asks the kernel to end it when the agent dies.

    The program then replaces itself with the command. `preexec_fn` would run Python between fork and exec: in
    a process with threads, and gRPC starts some for metrics, the child may then hang or abort.
    """
    if not hasattr(ctypes.CDLL(None), "prctl"):  # only Linux has it
        return command
    return (sys.executable, "-I", "-S", "-c", _EXEC_WITH_PARENT_DEATH_SIGNAL, str(os.getpid()), *command)
