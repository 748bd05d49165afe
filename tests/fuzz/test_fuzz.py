"""Untrusted input: every kept case, and a short coverage-guided search for new ones.

`make test` looks for a few seconds, `make soak` for a minute each; `python -m tests.fuzz NAME` for as long as
you like.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, cases

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60 if os.environ.get("KOGUMA_SOAK") else 2


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_kept_cases(name):
    target = TARGETS[name]
    for data in (*target.seeds, *(case.read_bytes() for case in cases(name)), b""):
        target.run(data)


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_new_is_found(name):
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed, done.stderr[-3000:]
    assert int(executed[1]) > 100
