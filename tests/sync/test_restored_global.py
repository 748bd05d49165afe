"""A Global that has forgotten something takes nothing from its zones until an operator agrees."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import timeout
from tests.sync.test_zones import OF_ZONE, URL, Federation, _checks, _has_mesh, _names, _token
from tests.waiting import until


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with contextlib.ExitStack() as stack:
        federation = Federation(tmp_path)
        stack.push(federation.stack)
        yield federation


def _accepted(hint: str) -> str:
    return hint.rpartition("--accept-global ")[2]


def test_a_backup_takes_nothing_away_until_somebody_agrees(federation: Federation) -> None:
    directory = federation.directory
    federation.stack.close()
    for end in ("", ".key"):
        shutil.copy(directory / f"global.db{end}", directory / f"old.db{end}")
    with federation.new_global() as top:
        federation.top = top
        with federation.zone("east") as east:
            until(lambda: _has_mesh(east), "the mesh comes from Global")
            for number in range(30):
                name = f"t{number}"
                assert top("PUT", f"{URL}/{name}", timeout(name)).status == 201
            assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
            until(lambda: len(_names(east)) == 31 and len(_names(top)) == 31, "all is everywhere")
    with federation.new_global(store=f"sqlite:///{directory / 'old.db'}") as top:
        federation.top = top
        with federation.zone("east") as east:
            until(lambda: len(_names(top)) == 1, "what Global forgot of the zone comes back by itself")
            until(lambda: "30 objects" in str(_checks(east, "sync")), "it is said what is kept")
            assert len(_names(east)) == 31
            hint = _checks(east, "sync")[0]["hint"]
            assert top("PUT", f"{URL}/t0", timeout("t0")).status == 201
            until(lambda: "29 objects" in str(_checks(east, "sync")), "one is Global's again")
        with federation.zone("east", accept_global=_accepted(hint)) as east:
            until(lambda: len(_names(east)) == 2, "the rest is given up")
            assert _checks(east, "sync") == []


@pytest.mark.expected_errors("not let in")
def test_nothing_is_taken_from_another_global_until_somebody_agrees(federation: Federation) -> None:
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        assert federation.top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
        until(lambda: len(_names(east)) == 2, "Global's is in the zone")
        federation.stack.close()
        with federation.new_global(store=f"sqlite:///{federation.directory / 'new.db'}") as top:
            assert top("PUT", f"{URL}/fast", timeout("fast")).status == 201
            (federation.directory / "east.token").write_text(_token(top, "east"))
            until(lambda: "another Global" in str(_checks(east, "sync")), "it is noticed")
            until(lambda: "kri_mt_default_east__mine_" in _names(top).values(), "it learns of the zone")
            assert set(_names(east).values()) == {"kri_mt_default___slow_", "kri_mt_default_east__mine_"}
            assert "another Global" in str(_checks(top, "sync"))
