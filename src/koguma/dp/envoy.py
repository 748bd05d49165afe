"""The Envoy process: started with a bootstrap, its words taken into our log, its end told in a sentence."""

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
from koguma.dp.bootstrap import EnvoyVersion, read_version
from koguma.model.errors import KogumaError

_VERSION_SECONDS: Final = 10.0
_KILL_SECONDS: Final = 5.0
_LAST_LINES: Final = 8
_LINE_BYTES_MAX: Final = 64 * 1024
_SENTENCE_MAX: Final = 600

# PR_SET_PDEATHSIG is 1. Python ignores some signals, which Envoy is not to inherit. Whose parent has ended
# before the kernel was told has to end by itself.
_BIND: Final = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# One line for each record, which Envoy promises only where it escapes line ends.
_LOG_FORMAT: Final = ("--log-format", "[%l][%n] %v", "--log-format-escaped")
# Access logs, and so who was denied, are seen within a second; Envoy itself would keep them for ten.
_FLUSH: Final = ("--file-flush-interval-msec", "1000")
_RECORD: Final = re.compile(r"\[(trace|debug|info|warning|error|critical)\]\[([^\]]*)\] (.*)", re.DOTALL)
_REFUSAL: Final = re.compile(r"error `(.*)` initializing config", re.DOTALL)
_REFUSED_LISTENER: Final = re.compile(
    r"(?:lds: )?listener '([^']+)' (?:config rejected|failed to bind or apply socket options): (.*)",
    re.DOTALL,
)
# Loggers that say which listeners Envoy does not take, at the level at which they do so.
_ON_LISTENERS: Final = "config:warning,upstream:warning"
_LEVELS: Final = ("trace", "debug", "info", "warning", "error", "critical", "off")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r"}

_log = structlog.get_logger("envoy")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How Envoy is run."""

    binary: Path
    drain_seconds: float = 30.0
    concurrency: int = 0  # 0: as many threads as it may use cores
    log_level: str = "warning"


class RefusedListener(msgspec.Struct, frozen=True):
    """Why Envoy did not take a listener, and when it said so last."""

    details: str
    at: float  # on the monotonic clock


class Ended(msgspec.Struct, frozen=True):
    """How an Envoy ended; `refusal` is its own sentence where it did not take the bootstrap."""

    code: int
    seconds: float
    last_lines: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def told(self) -> str:
        """The sentence for people."""
        if self.refusal:
            return f"Envoy refuses its bootstrap: {self.refusal}"
        how = f"was ended by {_signal_name(-self.code)}" if self.code < 0 else f"ended with code {self.code}"
        return f"Envoy {how} after {self.seconds:.1f} s"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def arguments(settings: Settings, bootstrap: Path) -> tuple[str, ...]:
    """The command line of Envoy; nothing secret is in it, because everybody on the machine can read it."""
    threads = ("--concurrency", str(settings.concurrency)) if settings.concurrency else ()
    drain = ("--drain-time-s", str(max(1, round(settings.drain_seconds))), "--drain-strategy", "immediate")
    is_terse = _LEVELS.index(settings.log_level) > _LEVELS.index("warning")
    listeners = ("--component-log-level", _ON_LISTENERS) if is_terse else ()
    level = ("--log-level", settings.log_level, *listeners, *_FLUSH)
    return (
        *(str(settings.binary.absolute()), "--config-path", str(bootstrap), "--disable-hot-restart"),
        *(*drain, *threads, *level, *_LOG_FORMAT),
    )


async def version(binary: Path) -> EnvoyVersion:
    """The version of an Envoy; fails where the file is none."""
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
    found = read_version(output.decode(errors="replace"))
    if found is None:
        raise KogumaError(f"{binary} is no Envoy: `{binary} --version` does not say so; see --envoy-path")
    return found


class EnvoyProcess:
    """A running Envoy. It goes when we go, whatever ends us."""

    def __init__(
        self, process: asyncio.subprocess.Process, masked: Callable[[str], str], level: str = "warning"
    ) -> None:
        self._process = process
        self._masked = masked
        self._level = level
        # By name. Its admin interface tells of these as well, but only until it hears of other listeners.
        self.refused_listeners: dict[str, RefusedListener] = {}
        self._started_at = time.monotonic()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._refusal = ""
        self._reading = asyncio.create_task(self._read(), name="log of Envoy")

    @classmethod
    async def start(
        cls,
        settings: Settings,
        bootstrap: Path,
        environment: Mapping[str, str],
        masked: Callable[[str], str],
    ) -> "EnvoyProcess":
        """Run Envoy with the bootstrap in that file; `masked` takes secrets out of a line that it says."""
        # A session of its own: Ctrl-C on a terminal is for us, who then let it drain. Its standard output
        # stays ours, because access logs may go there.
        process = await asyncio.create_subprocess_exec(
            *_bound(arguments(settings, bootstrap)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in environment.items() if name != TOKEN_VARIABLE},
            cwd=bootstrap.parent,  # there is the pipe for its access logs
            start_new_session=True,
        )
        return cls(process, masked, settings.log_level)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def wait(self) -> Ended:
        """Wait for its end, and say how it was."""
        code = await self._process.wait()
        seconds = time.monotonic() - self._started_at
        await asyncio.shield(self._reading)
        return Ended(code, seconds, tuple(self._last), self._refusal)

    async def stop(self) -> None:
        """Ask it to end, and make it where it does not."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await self.wait()
        except TimeoutError:
            _log.warning("Envoy does not end, and is killed", pid=self.pid)
            await self.kill()

    async def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        rest = b""
        while chunk := await stream.read(_LINE_BYTES_MAX):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line)
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        text = self._masked(line.decode(errors="replace").rstrip())
        refusal = self._refusal or refusal_in(text)
        if refusal and self._refusal:
            return  # Envoy says it a second time, without the form of a record
        self._refusal = refusal
        if text and not refusal:
            self._last.append(text)
            self._note_listener(text)
            _tell(text, self._level)

    def _note_listener(self, text: str) -> None:
        found = refused_listener_in(text)
        if found is not None:
            name, details = found
            self.refused_listeners[name] = RefusedListener(details, time.monotonic())


def _tell(text: str, wanted: str) -> None:
    """Hand a line of Envoy's on, unless only we wanted it; its level was chosen by --envoy-log-level."""
    record = _RECORD.fullmatch(text)
    if record is None:
        _log.info(text)
        return
    level, component, message = record.groups()
    if _LEVELS.index(level) < _LEVELS.index(wanted):
        return
    at = {"warning": _log.warning, "error": _log.error, "critical": _log.error}.get(level, _log.info)
    at(unescaped(message), component=component)


def refusal_in(text: str) -> str:
    """Envoy's sentence about a bootstrap that it does not take, if this line is one."""
    record = _RECORD.fullmatch(text)
    found = _REFUSAL.search(record[3]) if record else None
    if found is None:
        return ""
    # Where Envoy prints the whole of what it refuses, the reason comes last.
    whole = unescaped(found[1]).strip()
    reason = whole.rpartition("\n: ")[2] if whole.startswith("goo.gle/debug") else whole
    return " ".join(reason.split())[:_SENTENCE_MAX]


def refused_listener_in(text: str) -> tuple[str, str] | None:
    """The name of a listener that Envoy did not take, and why, if a line is about one."""
    record = _RECORD.fullmatch(text)
    found = _REFUSED_LISTENER.fullmatch(unescaped(record[3])) if record else None
    return (found[1], found[2].strip()) if found else None


def unescaped(text: str) -> str:
    """A record's text as it was before Envoy made one line of it."""
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _bound(command: tuple[str, ...]) -> tuple[str, ...]:
    """A command that runs this one, which the kernel ends when we end, even if we are killed.

    A program in between says so to the kernel and then becomes the other one. To run code of ours between
    fork and exec (`preexec_fn`) is no way to do it: in a process with threads, as gRPC has some for metrics,
    the child may hang or abort before it becomes Envoy.
    """
    if not hasattr(ctypes.CDLL(None), "prctl"):  # only Linux has it
        return command
    return (sys.executable, "-I", "-S", "-c", _BIND, str(os.getpid()), *command)
