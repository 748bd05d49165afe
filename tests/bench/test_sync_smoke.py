"""The measurements of zones still run and say what they measured; how fast anything is, is not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOTH_SIDES = {
    ("first sync", "s"),
    ("first sync, both ends", "CPU ms"),
    ("first sync", "MB"),
    ("resume, against a whole copy", "MB"),
    ("resume, both ends, against a whole copy", "CPU ms"),
    ("one change on Global seen in a zone's Envoy, against one in the zone, p50", "ms"),
    ("one change on Global seen in a zone's Envoy, against one in the zone, p99", "ms"),
}
GLOBAL_ALONE = {
    ("4 zones that have everything connect: the last one is greeted", "s"),
    ("4 zones that have everything connect: Global", "CPU ms a zone"),
    ("4 zones that have everything connect: slowest GET meanwhile", "ms"),
    ("4 zones: memory of Global", "KiB a zone"),
    ("one change to 4 zones: write sent to p50", "ms"),
    ("one change to 4 zones: write sent to p99", "ms"),
    ("one change to 4 zones: write sent to the last", "ms"),
    ("one change to 4 zones: Global", "CPU ms"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_round_copies_connects_and_changes() -> None:
    command = [sys.executable, "-m", "bench.sync", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    figures = {(each["what"], each["unit"]): each for each in json.loads(done.stdout)}
    assert set(figures) == BOTH_SIDES | GLOBAL_ALONE
    for name in BOTH_SIDES:
        assert min(figures[name]["ours"], figures[name]["bare"], figures[name]["ratio"]) > 0
    # Of few objects, what says that nothing is missing is much; of many it is as little.
    assert figures["resume, against a whole copy", "MB"]["ours"] < 0.1
