"""The measurements about proxies still run and say what they measured; no time is asserted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = {"moves", "ten", "route", "service", "no_effect", "joins", "everything"}


def result(*words: str) -> Any:
    command = [sys.executable, "-m", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_mesh_is_compiled_to_bytes_and_each_change_touches_what_it_is_about():
    found = result("bench.snapshots", "--proxies", "40", "--services", "10", "--policies", "20")
    assert set(found["ratios"]) == CHANGES
    for size in (found["small"], found["large"]):
        touched = {name: size[name]["pieces_made"] for name in CHANGES}
        assert touched["no_effect"] == 0
        assert 0 < touched["route"] < touched["everything"]
        assert size["moves"]["proxies_changed"] == size["proxies"]
        assert size["full_s"] > 0


@pytest.mark.slow
def test_a_change_is_seen_live_and_its_way_is_told_in_parts():
    found = result("bench.live", "--quick")
    assert [part["whose"] for part in found["parts"]] == ["ours", "ours", "ours", "Envoy's", "both", "all"]
    way = {part["what"]: part["median"] for part in found["parts"]}
    assert way["write answered to seen by a call"] > 0
    assert way["bytes sent to acknowledged"] > 0
    assert len(found["fleet"]) == 2
    assert 0 <= found["ours"] <= 1
