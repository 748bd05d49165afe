"""The protocol as scripts: each file in `scripts` is one stream; `script_player` has the syntax."""

from pathlib import Path

import pytest

from tests.xds.script_player import DeltaPlayer, SotwPlayer, play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
BOTH = [script for script in SCRIPTS if "# delta only" not in script.read_text()]


def by_name(script: Path) -> str:
    return script.stem


@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_a_delta_proxy(script: Path):
    play(script, DeltaPlayer)


@pytest.mark.parametrize("script", BOTH, ids=by_name)
def test_a_sotw_proxy(script: Path):
    play(script, SotwPlayer)


def test_there_are_scripts_for_both_variants():
    assert len(SCRIPTS) >= 25
    assert len(BOTH) >= 15
