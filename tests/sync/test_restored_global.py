"""A Global that has forgotten something takes nothing from its zones until an operator agrees."""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from koguma.sync.last_global import GlobalSeen
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.postgres import Databases
from tests.sync.test_zones import OF_ZONE, URL, Federation, _checks, _has_mesh, _names, _token
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with contextlib.ExitStack() as stack:
        federation = Federation(tmp_path)
        stack.push(federation.stack)
        yield federation


def _accepted(hint: str) -> str:
    return hint.rpartition("--accept-global ")[2]


def _back_up(federation: Federation) -> None:
    """Stop Global, and copy its store."""
    federation.stack.close()
    for end in ("", ".key"):
        shutil.copy(federation.directory / f"global.db{end}", federation.directory / f"old.db{end}")


def _put(plane: LocalControlPlane, *names: str, **about: Any) -> None:
    for name in names:
        assert plane("PUT", f"{URL}/{name}", timeout(name, **about)).status in (200, 201)


def _kept(plane: LocalControlPlane) -> str:
    return "".join(check["message"] for check in _checks(plane, "sync"))


def test_a_backup_takes_nothing_away_until_somebody_agrees(federation: Federation) -> None:
    directory = federation.directory
    _back_up(federation)
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


def test_the_doubt_stays_when_global_reaches_the_revisions_of_before(federation: Federation) -> None:
    _back_up(federation)
    with federation.new_global() as top:
        federation.top = top
        with federation.zone("east") as east, federation.zone("west") as west:
            until(lambda: _has_mesh(east) and _has_mesh(west), "the mesh comes from Global")
            _put(top, "late")
            _put(east, "a", "b", "c", labels=OF_ZONE)
            until(lambda: len(_names(east)) == len(_names(top)) == 4, "both have all")
            until(lambda: len(_names(west)) == 1, "Global's is in west")
    with federation.new_global(store=f"sqlite:///{federation.directory / 'old.db'}") as top:
        federation.top = top
        with federation.zone("east") as east:
            until(lambda: len(_names(top)) == 3, "the zone's own come back to Global")
            until(lambda: "restored from a backup; 1 objects" in _kept(east), "it is noticed")
        _put(top, *(f"new{number}" for number in range(10)))
        with federation.zone("east") as east, federation.zone("west") as west:
            until(lambda: len(_names(east)) == 14 and len(_names(west)) == 11, "the new ones come")
            for zone in (east, west):  # west sees the restored Global for the first time
                assert "kri_mt_default___late_" in _names(zone).values()
                until(lambda zone=zone: "restored from a backup; 1 objects" in _kept(zone), "it is kept")
            _put(top, "late")
            until(lambda: not _kept(east) and not _kept(west), "Global has it again")
        assert top("DELETE", f"{URL}/new0").status == 200
        with federation.zone("east") as east:
            until(lambda: len(_names(east)) == 13, "what Global deletes from now on goes")
            assert _kept(east) == ""


def test_what_global_deletes_while_a_zone_is_away_goes_as_long_as_history_tells(
    federation: Federation,
) -> None:
    with federation.zone("east") as east:
        _put(federation.top, "one", "two", "three")
        until(lambda: len(_names(east)) == 3, "Global's are in the zone")
    _put(federation.top, "three", idle="7s")
    assert federation.top("DELETE", f"{URL}/one").status == 200
    federation.stack.close()  # an ordinary restart
    with federation.new_global() as top:
        federation.top = top
        top.run(top.plane.store.compact())
        with federation.zone("east") as east:
            until(lambda: len(_names(east)) == 2, "what Global deleted is gone")
            assert _kept(east) == ""
            _put(top, "three", idle="8s")
            until(lambda: "8s" in str(east("GET", "/_kri/kri_mt_default___three_").json), "it changes")
        _put(top, "three", idle="9s")
        top.run(top.plane.store.compact((), timedelta(minutes=-1)))  # all that is superseded
        with federation.zone("east") as east:
            until(lambda: "9s" in str(east("GET", "/_kri/kri_mt_default___three_").json), "it changes")
            until(lambda: _kept(east) == "", "nothing can be lost, so nobody has to agree")
            _put(top, "three", idle="6s")
            until(lambda: "6s" in str(east("GET", "/_kri/kri_mt_default___three_").json), "it changes")
        _put(top, "three", idle="5s")
        assert top("DELETE", f"{URL}/two").status == 200
        top.run(top.plane.store.compact((), timedelta(minutes=-1)))
        with federation.zone("east") as east:
            until(lambda: "does not keep revision" in _kept(east), "nobody knows, and it is said")
            until(lambda: "5s" in str(east("GET", "/_kri/kri_mt_default___three_").json), "the rest comes")
            assert len(_names(east)) == 2


def test_control_planes_of_one_global_are_not_in_doubt_and_a_replaced_database_is(
    federation: Federation, postgres: Databases
) -> None:
    federation.stack.close()
    store = postgres.database()
    tables = ("changes", "current", "counter")
    with federation.new_global(store=store) as top:
        federation.top = top
        with federation.zone("east") as east:
            until(lambda: _has_mesh(east), "the mesh comes from Global")
    copies = (f"CREATE TABLE old_{table} AS TABLE {table}" for table in tables)
    postgres.execute("; ".join(copies), store)
    with federation.new_global(store=store) as top, federation.new_global(store=store, sync_port=0) as other:
        for number, plane in enumerate((top, other, top, other)):
            federation.top, federation.sync_port = plane, plane.plane.ports["sync"]
            _put(top if plane is other else other, f"late{number}")
            with federation.zone("east") as east:
                until(lambda number=number: len(_names(east)) == number + 1, "all is there")
                assert _kept(east) == ""
        federation.top, federation.sync_port = top, top.plane.ports["sync"]
        with federation.zone("east") as east:
            until(lambda: _checks(east, "global")[0]["status"] == "ok", "it is connected")
            restores = (f"DELETE FROM {table}; INSERT INTO {table} TABLE old_{table}" for table in tables)
            postgres.execute("; ".join(restores), store)  # as one transaction
            until(lambda: len(_names(top)) == 0, "the control planes of Global read the restored one")
            until(lambda: "restored from a backup; 4 objects" in _kept(east), "it is noticed")
            assert len(_names(east)) == 4


@pytest.mark.parametrize(
    ("noted", "revision", "transaction", "words"),
    [
        (GlobalSeen("g", 50, "t50"), 50, "t50", ""),
        (GlobalSeen("g", 50, "t50"), 90, "t50", ""),
        (GlobalSeen("g", 50, "t50"), 49, "", "was at 50"),
        (GlobalSeen("g", 50, "t50"), 52, "other", "another change at revision 50"),
        (GlobalSeen("g", 50, "t50"), 52, "", "does not keep revision 50"),
        (GlobalSeen("g", 50, "t50"), 52, None, ""),  # a Global of an earlier version
        (GlobalSeen("g", 50, "t50"), 49, None, "was at 50"),
        (GlobalSeen("g", 50), 52, "t50", ""),  # a note of an earlier version
        (GlobalSeen("g", 50, "t50", "it is in doubt"), 52, "t50", "it is in doubt"),
        (GlobalSeen("g", 50, "t50", "it is in doubt"), 52, None, "it is in doubt"),
    ],
)
def test_what_tells_a_restored_global(
    noted: GlobalSeen, revision: int, transaction: str | None, words: str
) -> None:
    doubt = noted.doubt_about(revision, transaction)
    assert words in doubt
    assert bool(doubt) == bool(words)
