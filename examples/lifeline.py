"""Runs `koguma` for as long as whoever started it lives.

Its standard input is a pipe that the parent holds and never writes to. However the parent ends, also by a
kill that leaves it no time, the system closes the pipe: then this process ends as if it was asked to, and
takes away the folder in which the parent kept its data.
"""

import os
import shutil
import signal
import sys
import threading

from koguma.cli import main

LEFT_BEHIND = "DEMO_FOLDER"  # the variable that names the folder


class Lifeline:
    """Waits for the end of the parent, beside what this process does."""

    def __init__(self) -> None:
        self.is_cut = False
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.read(0, 1024):
            pass
        self.is_cut = True
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    lifeline = Lifeline()
    code = main(sys.argv[1:])
    if lifeline.is_cut and LEFT_BEHIND in os.environ:
        shutil.rmtree(os.environ[LEFT_BEHIND], ignore_errors=True)
    sys.exit(code)
