"""Quarantine: what a proxy refused is held back for it, and for nobody else, until it changes."""

import asyncio

import pytest

from koguma.application import transactions
from koguma.envoy.snapshot import CLUSTER, LISTENER, SECRET, Snapshot, XdsResource, bundle, version_of
from koguma.fleet import quarantine
from koguma.fleet.quarantine import Quarantine
from koguma.model.resource import Key
from koguma.store.contract import Put, Transaction
from tests.control_plane import LocalControlPlane
from tests.waiting import until

WEB = Key("Dataplane", "default", "default", "", "web-1")


def piece(type_, name, text):
    return XdsResource(type_, name, version_of(text.encode()), text.encode(), ((CLUSTER, "other"),))


def bodies(snapshot):
    return {each.id: each.body.decode() for each in snapshot}


def snapshot(**clusters):
    shared = bundle(piece(CLUSTER, name, text) for name, text in clusters.items())
    return Snapshot((shared, bundle([piece(LISTENER, "in", "listener")])))


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path, store=f"sqlite:///{tmp_path / 'mesh.db'}") as running:
        yield running


def made(plane):
    return Quarantine(plane.plane._proxies.fleet.context)


def refused(bad, good, text="no such filter", **more):
    return quarantine.held(bad, good, text, **more)


def test_a_proxy_keeps_what_it_took_last_and_everything_else_goes_on(plane):
    held = made(plane)
    bad, good = piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good")
    assert held.hold(WEB, [refused(bad, good)])
    offered = held.without_rejected(WEB, snapshot(a="bad", b="new"))
    assert bodies(offered) == {(CLUSTER, "a"): "good", (CLUSTER, "b"): "new", (LISTENER, "in"): "listener"}
    assert offered.get((CLUSTER, "a")).needs == ((CLUSTER, "other"),)
    untouched = snapshot(a="bad")
    assert held.without_rejected(Key(*WEB[:4], "web-2"), untouched) is untouched


def test_only_bundles_that_hold_it_are_copied(plane):
    held = made(plane)
    held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good"))])
    compiled = snapshot(a="bad")
    assert held.without_rejected(WEB, compiled).bundles[1] is compiled.bundles[1]


@pytest.mark.parametrize("after", [{"a": "fixed"}, {"b": "x"}])
def test_what_changes_is_released(plane, after):
    held = made(plane)
    held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good"), revision=9, had=7)])
    assert held.release_changed(WEB, snapshot(a="bad")) is None
    compiled = snapshot(**after)
    assert held.release_changed(WEB, compiled) == 7
    assert held.without_rejected(WEB, compiled) is compiled
    assert held.of(WEB) == {}


def test_the_same_refusal_twice_is_no_news_and_another_one_is(plane):
    held = made(plane)
    good = piece(CLUSTER, "a", "good")
    assert held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), good)])
    assert not held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), good)])
    assert held.hold(WEB, [refused(piece(CLUSTER, "a", "worse"), good)])


def test_what_was_never_taken_in_any_version_is_left_out_so_that_all_else_can_be_acknowledged(plane):
    held = made(plane)
    held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), None)])
    compiled = snapshot(a="bad", b="new")
    offered = held.without_rejected(WEB, compiled)
    assert bodies(offered) == {(CLUSTER, "b"): "new", (LISTENER, "in"): "listener"}
    assert offered.bundles[1] is compiled.bundles[1]
    held.release_acked(WEB, offered)
    assert set(held.of(WEB)) == {(CLUSTER, "a")}, "it is still refused"
    held.release_changed(WEB, snapshot(a="fixed"))
    assert bodies(held.without_rejected(WEB, snapshot(a="fixed")))[CLUSTER, "a"] == "fixed"


@pytest.mark.parametrize("id_", [(CLUSTER, "other"), (LISTENER, "kri_dp_default_default__web-1_in")])
def test_what_others_wait_for_and_what_lets_a_proxy_be_called_is_not_left_out(plane, id_):
    held = made(plane)
    bad = piece(*id_, "bad")
    held.hold(WEB, [refused(bad, None)])
    compiled = Snapshot((bundle([bad]), bundle([piece(CLUSTER, "a", "x")])))
    assert bodies(held.without_rejected(WEB, compiled)) == bodies(compiled)


IN_USE = "cannot bind '127.0.0.1:80': Address already in use"


def test_what_was_refused_for_a_passing_reason_can_be_tried_again_and_is_held_no_more_once_it_is_taken(plane):
    held = made(plane)
    held.hold(WEB, [refused(piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good"))])
    assert not held.has_passing(WEB)
    held.hold(WEB, [refused(piece(CLUSTER, "b", "new"), piece(CLUSTER, "b", "old"), IN_USE)])
    assert held.has_passing(WEB)
    compiled = snapshot(a="bad", b="new")
    assert bodies(held.without_rejected(WEB, compiled))[CLUSTER, "b"] == "old"
    tried = held.without_lasting(WEB, compiled)
    assert (bodies(tried)[CLUSTER, "a"], bodies(tried)[CLUSTER, "b"]) == ("good", "new")
    held.release_acked(WEB, held.without_rejected(WEB, compiled))
    assert set(held.of(WEB)) == {(CLUSTER, "a"), (CLUSTER, "b")}
    held.release_acked(WEB, tried)
    assert set(held.of(WEB)) == {(CLUSTER, "a")}
    assert not held.has_passing(WEB)


def test_keys_are_never_held(plane):
    held = made(plane)
    assert not held.hold(WEB, [refused(piece(SECRET, "identity", "key"), piece(SECRET, "identity", "old"))])
    assert held.of(WEB) == {}


def stored(plane):
    configs = plane.plane.store.state.listed("Config")
    return [config for config in configs if config.name.startswith(quarantine.PREFIX)]


def test_what_is_held_outlives_the_control_plane_and_goes_with_its_release(plane):
    held = made(plane)
    running = asyncio.run_coroutine_threadsafe(held.run(), plane._loop)
    kri = "kri_mpp_default_default__patch_"
    bad, good = piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good")

    async def refuse():
        held.hold(WEB, [refused(bad, good, policies=[kri])])

    plane.run(refuse())
    until(lambda: stored(plane))
    later = made(plane)
    later.load()
    assert later.of(WEB) == held.of(WEB)
    assert later.of(WEB)[CLUSTER, "a"].policies == (kri,)

    async def release():
        held.release_changed(WEB, snapshot(a="fixed"))

    plane.run(release())
    until(lambda: not stored(plane))
    running.cancel()


def test_what_cannot_be_read_is_passed_over(plane):
    context = plane.plane._proxies.fleet.context
    config = {"type": "Config", "name": f"{quarantine.PREFIX}x", "config": "rubbish"}
    put = Put(transactions.control_plane_object(context, config), 0)
    plane.run(context.store.write(Transaction((put,), "test", "rubbish")))
    held = made(plane)
    held.load()
    assert stored(plane)
    assert held.of(WEB) == {}


@pytest.mark.parametrize(
    ("had", "words"),
    [
        ((True,), "keep what they had: "),
        ((False,), "go without it: "),
        ((True, False), "keep what they had of it, or go without it: "),
    ],
)
def test_nothing_is_said_to_be_kept_that_never_was(had, words):
    bad, good = piece(CLUSTER, "a", "bad"), piece(CLUSTER, "a", "good")
    refusals = [(WEB, refused(bad, good if each else None)) for each in had]
    assert f'web-1" (mesh default zone default), which {words}' in quarantine._condition(refusals)["message"]
