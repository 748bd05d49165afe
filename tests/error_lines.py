"""Error lines: what control planes and proxies log as errors while tests run, and which tests expect it.

The log is read at the end of every test (tests/conftest.py): of control planes inside the test process, and
of every process whose output is followed. An error line fails the test, unless the test says that it provokes
it:

    @pytest.mark.expected_errors("proxies could not be served")

The words are a regular expression that is looked for in the line.
"""

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Lines that are no records of ours: Python's own words about what failed, and those of C++ libraries (gRPC).
_PLAIN = re.compile(
    r"^(Traceback \(most recent call last\)|Exception ignored |Fatal Python error|[EF]\d{4} \d\d:)"
)
_LEVELS = ("error", "critical")
# gRPC has one queue of events in a process, and reads it on whichever loop is there: an event of a stream
# whose loop has ended meanwhile cannot be handed on. Only tests have several loops, and nothing waits for it.
_OF_AN_ENDED_LOOP = re.compile(r"PollerCompletionQueue\._handle_events.*Event loop is closed", re.DOTALL)


def errors_in(text: str) -> list[str]:
    """The lines of an output that say that something failed."""
    return [line for line in text.splitlines() if _is_error(line)]


def _is_error(line: str) -> bool:
    if not line.startswith("{"):
        return bool(_PLAIN.search(line))
    try:
        record = json.loads(line)
    except ValueError:  # a line that was cut off by the end of a process
        return '"level": "error"' in line
    return isinstance(record, dict) and record.get("level") in _LEVELS


class ErrorLines:
    """The error lines that no test has been charged with yet."""

    def __init__(self) -> None:
        self._records: list[str] = []
        self._files: dict[Path, int] = {}  # how far each was read

    def follow(self, file: Path) -> None:
        """Read from now on what is written to a file."""
        self._files.setdefault(file, 0)

    def read(self, name: str, text: str) -> None:
        """Collect the errors in the output of a process."""
        self._records += [f"{name}: {line}" for line in errors_in(text)]

    def take(self) -> list[str]:
        """What was logged since the last time."""
        taken, self._records = self._records, []
        for file, begin in self._files.items():
            if not file.exists():
                continue
            whole = file.read_bytes()
            # A line that is still being written is read when it is whole.
            end = whole.rfind(b"\n") + 1
            self._files[file] = max(begin, end)
            text = whole[begin:end].decode(errors="replace")
            taken += [f"{file.name}: {line}" for line in errors_in(text)]
        return taken

    def capture(self) -> None:
        """Collect what is logged in this process, however logging is configured later."""
        default_factory = logging.getLogRecordFactory()

        def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            log_record = default_factory(*args, **kwargs)
            is_error = (log_record.levelno or 0) >= logging.ERROR
            if is_error and log_record.name.partition(".")[0] in ("koguma", "asyncio"):
                words = _words(log_record)
                if not _OF_AN_ENDED_LOOP.search(words):
                    self._records.append(f"{log_record.name}: {words}")
            return log_record

        logging.setLogRecordFactory(record)


def _words(record: logging.LogRecord) -> str:
    if isinstance(record.msg, dict):  # an event of structlog
        return json.dumps(record.msg, default=str)
    error = f" {record.exc_info[1]!r}" if record.exc_info else ""
    return f"{record.getMessage()}{error}"


def unexpected(lines: Iterable[str], expected: Iterable[str]) -> list[str]:
    """The lines that fit none of these patterns."""
    patterns = [re.compile(pattern) for pattern in expected]
    return [line for line in lines if not any(pattern.search(line) for pattern in patterns)]


ERRORS = ErrorLines()
