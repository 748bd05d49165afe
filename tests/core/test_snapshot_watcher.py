"""SnapshotWatcher: who gets something else, where what is shared is looked at once for all who share it."""

import pytest
from building import proxies, proxy
from test_build_changes import LINK, proxy_at, running, timeout

from koguma.core import pipeline
from koguma.core.build import network, snapshot
from koguma.core.build.snapshot_watcher import SnapshotWatcher


@pytest.fixture
def mesh():
    """Three services, two proxies each, of which those of `a` are watched."""
    db = running()
    watcher = SnapshotWatcher(db)
    for name in ("a-0", "a-1"):
        watcher.add(proxy(db, name))
    return db, watcher


def names(keys):
    return sorted(key.name for key in keys)


def is_as_asked(db, watcher, *keys):
    return [watcher.of(key) for key in keys] == [snapshot.of(db, key) for key in keys]


def test_what_is_shared_is_looked_at_once_for_all(mesh):
    db, watcher = mesh
    db.reset_counts()
    pipeline.take(db, [timeout("t", 6)])
    assert names(watcher.changed()) == ["a-0", "a-1"]
    assert "snapshot.own" not in db.runs
    assert is_as_asked(db, watcher, proxy(db, "a-0"), proxy(db, "a-1"))
    assert watcher.changed() == []


def test_who_comes_between_two_changes_is_told_what_the_others_need_not_hear(mesh):
    db, watcher = mesh
    late = proxy(db, "b-0")
    pipeline.take(db, [timeout("t", 6)])
    watcher.add(late)
    pipeline.take(db, [timeout("t", 5)])
    assert names(watcher.changed()) == ["b-0"]
    assert is_as_asked(db, watcher, late, *proxies(db)[:2])


def test_who_comes_after_a_change_is_not_told_of_it(mesh):
    db, watcher = mesh
    pipeline.take(db, [timeout("t", 6)])
    watcher.add(proxy(db, "b-0"))
    assert names(watcher.changed()) == ["a-0", "a-1"]


def test_who_is_added_again_after_a_change_is_not_told_of_it(mesh):
    db, watcher = mesh
    pipeline.take(db, [timeout("t", 6)])
    watcher.add(proxy(db, "a-0"))
    assert names(watcher.changed()) == ["a-1"]
    assert is_as_asked(db, watcher, proxy(db, "a-0"), proxy(db, "a-1"))
    assert watcher.changed() == []


def test_who_is_added_again_is_told_when_it_is_as_it_was_at_first(mesh):
    db, watcher = mesh
    key = proxy(db, "b-0")
    pipeline.take(db, [], [key])
    watcher.add(key)
    pipeline.take(db, [proxy_at("10.0.0.1", "b-0", "b")])
    watcher.add(key)
    pipeline.take(db, [], [key])
    assert key in watcher.changed()
    assert watcher.of(key) is None


def test_a_proxy_that_moves_to_others_shares_with_them_from_then_on(mesh):
    db, watcher = mesh
    moved = proxy(db, "a-1")
    db.set(network.NODE_METADATA, moved, network.NodeMetadata())  # it does not bind virtual addresses
    assert names(watcher.changed()) == ["a-1"]
    assert watcher.of(moved).bundles[0] is not watcher.of(proxy(db, "a-0")).bundles[0]
    db.set(network.NODE_METADATA, moved, LINK)
    assert names(watcher.changed()) == ["a-1"]
    assert watcher.of(moved).bundles[0] is watcher.of(proxy(db, "a-0")).bundles[0]


def test_a_proxy_that_is_gone_gets_nothing_and_comes_again(mesh):
    db, watcher = mesh
    key = proxy(db, "a-0")
    pipeline.take(db, [], [key])
    assert key in watcher.changed()
    assert watcher.of(key) is None
    pipeline.take(db, [proxy_at("10.0.0.1", "a-0", "a")])
    assert key in watcher.changed()
    assert is_as_asked(db, watcher, key)


def test_nothing_is_kept_for_those_who_left():
    db = running()
    watcher, keys = SnapshotWatcher(db), proxies(db)
    for key in keys:
        watcher.add(key)
    for key in keys:
        watcher.remove(key)
        watcher.remove(key)
    pipeline.take(db, [timeout("t", 6)])
    assert watcher.changed() == []
    assert not any((watcher._watched, watcher._sharing, watcher._mixed))


@pytest.mark.parametrize("half", ["own", "shared"])
def test_a_question_that_raises_is_told_to_those_it_concerns_and_to_nobody_else(mesh, monkeypatch, half):
    db, watcher = mesh
    works = snapshot.patches.over

    def fails(db, mine, bundles):
        is_shared = bundles[0][0] == snapshot.patches.OUTBOUND
        if is_shared == (half == "shared"):
            raise ValueError("a mistake of ours")
        return works(db, mine, bundles)

    monkeypatch.setattr(snapshot.patches, "over", fails)
    keys = [proxy(db, "a-0"), proxy(db, "a-1")]
    pipeline.take(db, [timeout("t", 6), proxy_at("10.9.9.9", "a-0", "a")])
    assert names(watcher.changed()) == ["a-0", "a-1"]
    for key in keys[: 1 if half == "own" else 2]:
        with pytest.raises(ValueError, match="a mistake of ours"):
            watcher.of(key)
    assert half == "shared" or is_as_asked(db, watcher, keys[1])
    monkeypatch.setattr(snapshot.patches, "over", works)
    pipeline.take(db, [timeout("t", 7), proxy_at("10.9.9.8", "a-0", "a")])
    assert names(watcher.changed()) == ["a-0", "a-1"]
    assert is_as_asked(db, watcher, *keys)
