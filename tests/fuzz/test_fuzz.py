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
SECONDS = 60 if os.environ.get("KOGUMA_SOAK") else 1


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_kept_cases(name):
    target = TARGETS[name]
    for data in (*target.seeds, *(case.read_bytes() for case in cases(name)), b""):
        target.run(data)


@pytest.fixture(scope="module")
def searched() -> dict[str, tuple[str, int]]:
    """What the search of each target wrote, and its exit code."""
    command = [sys.executable, "-m", "tests.fuzz", *TARGETS, "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    parts = re.split(r"^(\w+) ended with (-?\d+)$", done.stderr, flags=re.MULTILINE)
    return {
        name: (text, int(code))
        for text, name, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False)
    }


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_new_is_found(searched, name):
    text, code = searched[name]
    assert code == 0, text[-3000:]
    executed = re.search(r"number_of_executed_units: (\d+)", text)
    assert executed, text[-3000:]
    assert int(executed[1]) > 100
