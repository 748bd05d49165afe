"""The measurement with many proxies still runs with a few, and says what it measured; no time is asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOALS = ("all_ratio", "wide_ratio", "ten_cpu_s", "endpoint_cpu_s", "reconnect_s")


def test_too_few_are_refused_before_anything_starts():
    command = [sys.executable, "-m", "bench.scale", "--proxies", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].partition("error: ")[2]) == (
        2,
        "--proxies must be at least 20",
    )


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_a_few_proxies_are_measured_and_nothing_is_sent_again_after_a_restart():
    options = "--proxies 20 --services 12 --rounds 1 --settle 0.1 --rest 0.5 --json"
    command = [sys.executable, "-m", "bench.scale", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found[name] > 0 for name in GOALS)
    assert found["resent_resources"] == 0
    assert "kb_per_proxy" in found  # of so few it means nothing
    assert {name: found["parts"][name]["proxies"] for name in ("ten", "endpoint", "all")} == {
        "ten": 10,
        "endpoint": 10,
        "all": 20,
    }
    assert found["parts"]["without_tls"]["last_change"]["proxies"] == 20


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_death_of_one_of_two_control_planes_is_measured_and_nothing_is_sent_again():
    options = "--planes 2 --proxies 20 --services 12 --rounds 1 --settle 0.1 --rest 0.5 --json"
    command = [sys.executable, "-m", "bench.scale", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["death_s"] > 0
    assert (found["parts"]["death"]["proxies"], found["parts"]["death"]["unchanged"]) == (10, 0)
