"""`make demo`, as a newcomer runs it."""

import json
import os
import re
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.demo_run import Demo
from tests.live_mesh import KOGUMA
from tests.waiting import until

ROOT = Path(__file__).parent.parent
SPLIT = r"v1 █+ [89]\d%  v2 █+ ([4-9]|1\d|2\d)%"


@pytest.mark.slow
def test_the_demo_is_a_live_mesh_and_ends_without_a_trace():
    with Demo() as demo:
        assert any(name.startswith("koguma-demo-") for name in demo.made)
        for made in ("mesh/shop created", "meshtimeout/backend-is-quick", "meshhttproute/backend-split"):
            assert made in demo.text
        for proxy in ("backend-1", "backend-2", "web-1", "edge-1"):
            assert f"koguma dp: {proxy} (mesh shop) is ready" in demo.text
        assert "warning" not in demo.text
        demo.shows(SPLIT)
        asked = re.search(r"curl -s --cacert (\S+) (https://localhost:\d+/)", demo.text)
        assert asked is not None
        trusting = ssl.create_default_context(cafile=asked.group(1))
        with urllib.request.urlopen(asked.group(2), context=trusting, timeout=60) as outside:
            assert json.load(outside)["name"] == "web-1"
        seen = len(demo.lines)
        applied = koguma(demo, "apply", "-f", "examples/shop")
        assert (applied.returncode, applied.stderr) == (0, "")
        assert all(line.endswith(" unchanged") for line in applied.stdout.splitlines())
        assert koguma(demo, "diff", "-f", "examples/shop").returncode == 0
        until(lambda: len(demo.lines) > seen + 3, "it goes on")
        assert all(line.startswith("v1 ") for line in demo.lines[seen:]), demo.lines[seen:]
        assert demo.end(signal.SIGTERM) == 0
        assert demo.made == []
        assert demo.alive == []
    assert "Traceback" not in demo.text


def koguma(demo, *words):
    environment = {**os.environ, **demo.exported}
    return subprocess.run(
        [KOGUMA, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_demo_that_is_killed_takes_its_control_plane_and_envoys_with_it():
    with Demo() as demo:
        assert demo.alive.count("envoy") == 4
        demo.kill()
        until(lambda: not demo.alive, "all have ended")
        until(lambda: not demo.made, "and nothing is left behind")
