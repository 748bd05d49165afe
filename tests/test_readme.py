"""The README's tour, run as it is written, against a control plane that it starts from nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plane import Plane

ROOT = Path(__file__).parent.parent
BIN = str(Path(sys.executable).parent)
# What runs until it is stopped, or needs a database of the reader's own.
ENDLESS = re.compile(r"cp run| -w$|curl -sN")


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line[2:] for line in lines if not ENDLESS.search(line)]


@pytest.mark.slow
def test_every_command_of_the_tour_does_what_it_says(tmp_path):
    written = commands()
    assert len(written) >= 12
    with Plane(tmp_path / "data") as plane:
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "KOGUMA_ADDRESS": plane.address,
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        for command in written:
            # A newcomer's control plane listens on 5681; this one takes a free port.
            real = command.replace("localhost:5681", plane.address)
            if real.startswith("curl"):
                assert plane("GET", real.split(plane.address)[1].strip("'")).status == 200, command
                continue
            done = subprocess.run(
                ["bash", "-c", real], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            is_mistake = "requestTimout" in command
            assert done.returncode == (1 if is_mistake else 0), (command, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
            if is_mistake:
                assert "<stdin>:10:31: spec.to[0].default.http.requestTimout: unknown field" in done.stderr
            if command.startswith("koguma explain"):
                assert "MeshTimeout http.requestTimeout = 5s" in done.stdout
