"""The demo as a newcomer starts it, for tests that look at it or play with it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Self

from tests.error_lines import ERRORS
from tests.waiting import WAIT_SECONDS, until

ROOT = Path(__file__).parent.parent
PORTS = ("API", "API_TLS", "DP", "XDS", "SYNC")


class Demo:
    """Runs while it is entered, on ports of its own and with a folder of its own for what it makes."""

    def __init__(self, *words: str) -> None:
        self._words = words or ("examples.demo",)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="demo-")
        free = {f"KOGUMA_{name}_PORT": "0" for name in PORTS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._words],
            cwd=ROOT,
            env={**os.environ, **free, "TMPDIR": self._folder.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.until("Ctrl-C ends it")
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def address(self) -> str:
        return re.search(r"is ready: (http://\S+)", self.text).group(1)

    @property
    def exported(self) -> dict[str, str]:
        """The variables that it tells people to set."""
        return self.exported_for("")

    def exported_for(self, name: str) -> dict[str, str]:
        """Those of the control plane of this name, where there are several."""
        (line,) = (
            line for line in self.lines if "export KOGUMA_ADDRESS" in line and line.strip().endswith(name)
        )
        return dict(re.findall(r"(KOGUMA_(?:ADDRESS|DATA_DIR))=(\S+)", line))

    @property
    def answering(self) -> str:
        """The last line about who answers."""
        shown = [line for line in self.lines if "█" in line]
        return shown[-1] if shown else ""

    def until(self, words: str, seconds: float = WAIT_SECONDS) -> None:
        until(lambda: words in self.text or self._process.poll() is not None, words, seconds)
        assert words in self.text, self.text

    def shows(self, pattern: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the newest line about who answers is like this."""
        until(lambda: re.search(pattern, self.answering), f"{pattern} after {self.answering}", seconds)

    @property
    def made(self) -> list[str]:
        """What it keeps in its folder."""
        return sorted(path.name for path in Path(self._folder.name).iterdir())

    @property
    def alive(self) -> list[str]:
        """What it started that still runs, and itself: whoever has inherited the name of its folder."""
        mark = f"TMPDIR={self._folder.name}\0".encode()
        names = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
                if mark in (process / "environ").read_bytes():
                    names.append((process / "comm").read_text().strip())
        return sorted(names)

    def kill(self) -> None:
        """End it without giving it any time."""
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C, or another signal, and how it ended."""
        self._process.send_signal(number)
        code = self._process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        return code

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.end()
        self._reader.join(5)
        self._process.stdout.close()
        self._folder.cleanup()
        ERRORS.read("demo", self.text)
