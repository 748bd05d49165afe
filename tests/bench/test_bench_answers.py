"""The measurement of answers runs and says what it measured; how long anything takes is not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_gives_figures():
    command = [sys.executable, "-m", "bench.answers", "--proxies", "20", "--services", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    figures = {each["what"]: each["milliseconds"] for each in json.loads(done.stdout)}
    assert {"compile of all proxies", "can, cold", "can, warm", "test, 100 cases, cold"} <= figures.keys()
    assert {"plan: the first, compiles all", "explain: a field of Envoy"} <= figures.keys()
    assert min(figures.values()) > 0
