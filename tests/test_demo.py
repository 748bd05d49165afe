"""`make demo`, as a newcomer runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_demo_starts_fills_itself_and_ends_cleanly():
    environment = {**os.environ, "KOGUMA_API_PORT": "0", "KOGUMA_API_TLS_PORT": "0"}
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    demo.send_signal(signal.SIGINT)
    rest = demo.communicate(timeout=20)[0]
    text = "".join(lines)
    assert "is ready: http://127.0.0.1:" in text
    for made in (
        "mesh/shop created",
        "dataplane/backend-2 (mesh shop) created",
        "meshtimeout/backend-is-quick",
    ):
        assert made in text
    assert "Traceback" not in text + rest
    assert demo.returncode == 0
