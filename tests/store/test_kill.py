"""A control plane that is killed while it writes loses nothing that it acknowledged."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_writer.py")
TIMES = [pytest.param(50, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.soak)]


def check_kills(url: str, times: int) -> None:
    command = [sys.executable, str(SCRIPT), url, str(times), "20261"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills, transactions = map(int, done.stdout.split())
    assert kills == times
    assert transactions > times


@pytest.mark.parametrize("times", TIMES)
def test_killing_loses_nothing_in_a_file(tmp_path, times) -> None:
    check_kills(f"sqlite:///{tmp_path}/store.db", times)


@pytest.mark.parametrize("times", TIMES)
def test_killing_loses_nothing_in_postgresql(postgres, times) -> None:
    check_kills(postgres.database(), times)
