"""`make demo ZONES=2`, as a newcomer runs it: another zone takes over, and all that is killed comes back."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_run import Demo
from tests.live_mesh import KOGUMA
from tests.waiting import until

ROOT = Path(__file__).parent.parent
ONLY_EAST, ONLY_WEST = r"^east █+ 100%$", r"^west █+ 100%$"


def _koguma(demo: Demo, plane: str, *words: str) -> str:
    environment = {**os.environ, **demo.exported_for(plane)}
    done = subprocess.run(
        [KOGUMA, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def _offered(demo: Demo, about: str) -> int:
    """The process that the demo tells people to kill, below the words about it."""
    killed = re.search(rf"# {about}.*\n  kill (\d+)", demo.text)
    assert killed is not None, demo.text
    return int(killed.group(1))


@pytest.mark.slow
def test_west_answers_while_the_backend_of_east_is_stopped() -> None:
    with Demo("examples.demo_zones", "2") as demo:
        demo.shows(ONLY_EAST)
        zones = _koguma(demo, "Global", "get", "zones").splitlines()
        assert [line.split()[:3] for line in zones[1:]] == [["east", "true", "yes"], ["west", "true", "yes"]]
        for zone, n_proxies in (("east", 3), ("west", 2)):
            until(
                lambda zone=zone, n_proxies=n_proxies: (
                    _koguma(demo, zone, "get", "proxies", "-m", "shop").count("synced") == n_proxies
                ),
                f"the proxies of {zone} have everything",
            )
        os.kill(_offered(demo, "stop the backend of east"), signal.SIGTERM)
        demo.shows(ONLY_WEST)
        demo.until("backend-1 of east runs again")
        demo.shows(ONLY_EAST)
        os.kill(_offered(demo, "stop Global"), signal.SIGTERM)
        demo.until("the control plane global runs again")
        until(lambda: _koguma(demo, "Global", "get", "zones").count("yes") == 2, "the zones are back")
        answers = [line for line in demo.lines if "█" in line]
        assert all(re.fullmatch(r"((east|west) █+ \d+%\s*)+", line) for line in answers), answers
        assert demo.end(signal.SIGTERM) == 0
        assert demo.made == []
        assert demo.alive == []
    assert "Traceback" not in demo.text


def test_a_wrong_number_of_zones_is_refused() -> None:
    for words in (["1"], ["two"], ["5"], []):
        command = [sys.executable, "-m", "examples.demo_zones", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "from 2 to 4: make demo ZONES=2" in done.stderr
