"""The proof: a compile from scratch finds what the engine got wrong, and nothing else."""

import pytest

from koguma.core.build import snapshot as compiled
from koguma.model.resource import Key
from koguma.prover import Prover
from tests.plane import Plane
from tests.test_fleet import connect, dataplane, next_offer

WEB = Key("Dataplane", "default", "default", "", "web-1")
API = Key("Dataplane", "default", "default", "", "api-1")


@pytest.fixture
def plane(tmp_path):
    with Plane(tmp_path) as running:
        for name in ("web-1", "api-1"):
            line = connect(running, dataplane(name, service=name[:3]), name=name)
            running.run(next_offer(line))
        yield running


def prover(plane):
    return plane.plane._proxies.prover


def plant(plane, key):
    """Let the engine remember something else than it computed, as a bug would."""

    def lie(db):
        memo = db._memos[compiled.own][key]
        memo.answer = memo.answer._replace(bundles=memo.answer.bundles[:1])

    plane.run(plane.plane._proxies.fleet._control.beside(lie))


@pytest.mark.slow
def test_what_was_compiled_step_by_step_is_what_a_compile_from_scratch_gives(plane):
    assert plane.run(prover(plane).check()) == []
    assert (prover(plane).runs, prover(plane).mismatches, prover(plane).failures) == (1, 0, 0)
    assert not any("compile from scratch" in str(check) for check in plane("GET", "/_check").json["checks"])


@pytest.mark.slow
def test_a_stale_memo_is_an_alarm_and_the_engine_begins_anew(plane):
    plant(plane, WEB)
    (difference,) = plane.run(prover(plane).check())
    assert difference.proxy == WEB
    (alarm,) = [c for c in plane("GET", "/_check").json["checks"] if "compile from scratch" in str(c)]
    assert alarm["status"] == "error"
    assert 'Dataplane "web-1"' in str(alarm)
    metrics = plane("GET", "/metrics").body.decode()
    assert "koguma_proof_mismatches_total 1.0" in metrics
    assert plane.run(prover(plane).check()) == [], "the engine is right again"


@pytest.mark.slow
def test_a_proof_that_cannot_be_made_is_no_proof(plane):
    broken = Prover(
        plane.plane._proxies.fleet._control,
        plane.settings.place,
        "/nowhere/envoy",
        lambda: frozenset({WEB, API}),
        plane.plane._proxies.fleet.clock,
    )
    assert plane.run(broken.check()) == []
    assert (broken.runs, broken.failures) == (0, 1)
