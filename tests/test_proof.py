"""The proof: a compile from scratch finds what the engine got wrong, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from koguma.core.build import snapshot as compiled
from koguma.model.resource import Key
from koguma.proof import prover as prover_module
from koguma.proof.prover import Prover
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer, web_token
from tests.waiting import until

WEB = Key("Dataplane", "default", "default", "", "web-1")
API = Key("Dataplane", "default", "default", "", "api-1")


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        for name in ("web-1", "api-1"):
            shown = web_token(running, tags={"kuma.io/service": [name[:3]]})
            connection = connect(running, dataplane(name, service=name[:3]), name=name, shown=shown)
            running.run(next_offer(connection))
        yield running


def prover(plane):
    return plane.plane._proxies.prover


def plant(plane, key):
    """Let the engine remember something else than it computed, as a bug would."""

    def lie(db):
        memo = db._memos[compiled.own][key]
        memo.answer = memo.answer._replace(bundles=memo.answer.bundles[:1])

    plane.run(plane.plane._proxies.fleet.rounds._engine.beside(lie))


@pytest.mark.slow
def test_what_was_compiled_step_by_step_is_what_a_compile_from_scratch_gives(plane):
    assert plane.run(prover(plane).check()) == []
    assert (prover(plane).runs, prover(plane).mismatches, prover(plane).failures) == (1, 0, 0)
    assert not any("compile from scratch" in str(check) for check in plane("GET", "/_check").json["checks"])


@pytest.mark.slow
@pytest.mark.expected_errors("the engine was wrong")
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


def broken(plane, proxies=frozenset({WEB, API})):
    """A prover whose process cannot do its work."""
    fleet = plane.plane._proxies.fleet
    return Prover(
        fleet.rounds._engine,
        plane.settings.control_plane,
        "/nowhere/envoy",
        lambda: proxies,
        plane.plane._proxies._clock,
    )


CANNOT = "the proof could not be made"


@pytest.mark.slow
@pytest.mark.expected_errors(CANNOT)
def test_a_proof_that_cannot_be_made_is_no_proof(plane):
    failing = broken(plane)
    assert plane.run(failing.check()) == []
    assert (failing.runs, failing.failures, failing.last_at) == (0, 1, None)
    assert failing.failure.startswith("its process ended with code 1: ")


@pytest.mark.expected_errors(CANNOT)
@pytest.mark.parametrize(
    "error", [BrokenPipeError("the child is gone"), ConnectionResetError(), ValueError("a mistake of ours")]
)
def test_proofs_go_on_after_one_that_failed(plane, monkeypatch, error):
    """Whatever ends an attempt, there is another one."""
    failing = broken(plane)

    def started():
        raise error

    async def run():
        plane.plane.background.forever("proof that fails", lambda: failing.run(0.001))

    monkeypatch.setattr(prover_module, "_started", started)
    plane.run(run())
    until(lambda: failing.failures >= 3, "three attempts")
    assert plane.plane.background.failures == []


def test_a_proof_that_is_owed_for_too_long_is_an_alarm(plane):
    """Older than three intervals, while there are proxies: who checks is told."""
    proving, moments = prover(plane), [datetime(2026, 1, 2, tzinfo=UTC)]
    proving._clock = lambda: moments[-1]
    proving.every_seconds, proving._owed_since = 600.0, moments[0]

    def found():
        return [
            (c["status"], c["message"])
            for c in plane("GET", "/_check").json["checks"]
            if c["name"] == "proof"
        ]

    assert found() == [("ok", "not made yet")]
    moments.append(moments[0] + timedelta(minutes=31))
    ((status, message),) = found()
    assert status == "error"
    assert message == "not made yet, which is longer ago than three times --proof-interval"
    proving.failure, proving.last_at = "its process ended with SIGABRT: no words", moments[0]
    ((status, message),) = found()
    assert status == "error"
    assert "last made at 2026-01-02T00:00:00Z" in message
    assert "the last attempt failed: its process ended with SIGABRT" in message
    assert "koguma_proof_last_timestamp_seconds 1.7673" in plane("GET", "/metrics").body.decode()
