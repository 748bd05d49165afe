"""The measurements still run and say what they measured; how fast anything is, is not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "store": {
        ("SQLite, 1 client", "writes/s"),
        ("SQLite, 1 client", "p99 ms"),
        ("SQLite, 50 clients", "writes/s"),
        ("SQLite, 50 clients", "p99 ms"),
    },
    "api": {
        ("GET, 32 connections", "requests/CPU s"),
        ("GET, 32 connections", "requests/s"),
        ("GET, 32 connections", "p99 ms"),
    },
    "policies": {
        (f"{what}, 150 {of}", "CPU ms")
        for what in ("edited", "new, then deleted", "new, as a dry run")
        for of in ("policies", "policies for all proxies")
    },
    "gateway": {
        ("the message, by its virtual host", "bytes"),
        ("the message, by all routes", "bytes"),
        ("from the stored object to the ACK", "ms"),
        ("of this compiling, by a push", "ms"),
    },
    "kube": {
        *(
            (what, unit)
            for what in (
                "2,000 objects in pages of 500",
                "2,000 objects in pages of 1,000",
                "2,000 objects in one answer, against pages of 1,000",
                "2,000 objects as koguma.io/v1, in pages of 500",
                "2,000 objects as a table, in pages of 500",
                "10 changes to all 50",
                "server-side apply, against PUT",
            )
            for unit in ("CPU ms", "ms")
        ),
        *(
            (what, unit)
            for what in (
                "discovery, 304, against the 304 of an empty handler",
                "discovery, 304, against the document from an empty handler",
                "GET of one object",
            )
            for unit in ("CPU µs", "µs")
        ),
        ("50 open watches", "KiB each"),
    },
}


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("part", PARTS)
def test_a_quick_round_gives_every_figure_with_both_sides(part):
    command = [sys.executable, "-m", "bench", part, "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["parts"][part]
    assert {(figure["what"], figure["unit"]) for figure in figures} == PARTS[part]
    for figure in figures:
        if figure["unit"] != "KiB each":  # of a few watches that is less than what comes and goes meanwhile
            assert min(figure["ours"], figure["bare"], figure["ratio"]) > 0
        assert len(figure["rounds_ours"]) == len(figure["rounds_bare"]) > 1


def test_a_part_that_does_not_exist_is_refused_with_those_that_do():
    command = [sys.executable, "-m", "bench", "stor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "store, database, api, policies, lists, watches, kube, gateway, latency, startup" in done.stderr
