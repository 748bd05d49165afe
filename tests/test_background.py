"""Background tasks: one that fails is counted, told and started again; one that is cancelled just ends."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.runtime import background, logs
from koguma.runtime.background import Background
from tests.build import dataplane, timeout
from tests.control_plane import LocalControlPlane
from tests.error_lines import errors_in, unexpected
from tests.proxy_connections import connect, next_offer
from tests.waiting import until

FAILS = "a background task failed"


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setattr(background, "RESTART_SECONDS_MIN", 0.001)
    return Background(lambda: datetime(2026, 1, 2, tzinfo=UTC))


class Work:
    """Something that does another thing each time that it is started."""

    def __init__(self, *deeds):
        self._deeds = iter(deeds)
        self.is_steady = asyncio.Event()

    async def run(self):
        deed = next(self._deeds, None)
        if deed is None:
            self.is_steady.set()
            await asyncio.sleep(60)
        deed()


def oops():
    raise ValueError("oops")


def ends():
    pass


def waits_for_what_is_cancelled():
    raise asyncio.CancelledError


@pytest.mark.expected_errors(FAILS)
@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        (oops, "ValueError: oops"),
        (ends, "it ended by itself"),
        (waits_for_what_is_cancelled, "CancelledError"),
    ],
)
async def test_a_task_that_ends_is_counted_told_and_started_again(tasks, capsys, deed, reason):
    logs.configure("info", "json")
    work = Work(deed, deed)
    tasks.forever("work", work.run)
    await work.is_steady.wait()
    (failures,) = tasks.failures
    assert (failures.task, failures.count, failures.reason, tasks.n_failures) == ("work", 2, reason, 2)
    lines = errors_in(capsys.readouterr().err)
    assert len(lines) == 2
    assert all('"task": "work"' in line and FAILS in line for line in lines)
    await tasks.stop()


async def test_a_task_that_is_cancelled_or_may_end_is_not_a_failure(tasks):
    work = Work()
    running = tasks.forever("work", work.run)
    finished = tasks.forever("short work", Work(ends).run, may_end=True)
    await work.is_steady.wait()
    await finished
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert tasks.failures == []


@pytest.mark.expected_errors(FAILS)
async def test_what_runs_once_is_not_run_again_and_is_counted_by_its_sort(tasks):
    for name in ("web-1", "web-2"):
        await tasks.once(f"readiness of {name}", Work(oops).run())
    assert [(each.task, each.count) for each in tasks.failures] == [("readiness", 2)]


@pytest.mark.expected_errors("nobody waits for this", "ZeroDivisionError")
async def test_an_error_that_nobody_waits_for_is_counted_too(tasks):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(tasks.on_loop_error)
    loop.call_soon(lambda: 1 / 0)
    loop.call_exception_handler({"message": "nobody waits for this", "exception": OSError("a peer left")})
    await asyncio.sleep(0.01)
    assert [(each.task, each.reason) for each in tasks.failures] == [
        ("event loop", "ZeroDivisionError: division by zero")
    ]


def test_a_failure_is_recent_for_a_while():
    moments = iter([datetime(2026, 1, 2, tzinfo=UTC) + timedelta(minutes=n) for n in (0, 1, 11)])
    tasks = Background(lambda: next(moments))
    tasks.failed("work", ValueError("oops"))
    (failures,) = tasks.failures
    assert [tasks.is_recent(failures), tasks.is_recent(failures)] == [True, False]


ROUND = "proxies could not be served; all are looked at again"


@pytest.mark.expected_errors(ROUND)
def test_a_round_that_raises_is_counted_and_shown_and_the_next_one_serves(tmp_path, monkeypatch):
    with LocalControlPlane(tmp_path) as plane:
        connection = connect(plane, dataplane("web-1", service="web"), name="web-1")
        plane.run(next_offer(connection))
        assert "koguma_push_rounds_failed_total 0.0" in plane("GET", "/metrics").body.decode()
        works = SnapshotWatcher.changed
        failures = iter([ValueError("too many values to unpack")])

        def fails(watcher):
            for error in failures:
                raise error
            return works(watcher)

        monkeypatch.setattr(SnapshotWatcher, "changed", fails)
        assert plane("PUT", "/meshes/default/meshtimeouts/t", timeout("t")).status == 201
        plane.run(next_offer(connection))
        metrics = plane("GET", "/metrics").body.decode()
        assert "koguma_push_rounds_failed_total 1.0" in metrics
        assert "koguma_background_failures_total 1.0" in metrics
        (check,) = [each for each in plane("GET", "/_check").json["checks"] if each["name"] == "background"]
        assert check["status"] == "error"
        assert check["message"].startswith("push round failed once, last at ")
        assert check["message"].endswith("ValueError: too many values to unpack")


def test_policies_that_tie_fail_no_round(tmp_path):
    """What the advice to writers keeps up to date is none of the fleet's business."""
    with LocalControlPlane(tmp_path) as plane:
        fleet = plane.plane._proxies.fleet
        connection = connect(plane, dataplane("web-1", service="web"), name="web-1")
        plane.run(next_offer(connection))
        for name, idle in (("one", "5s"), ("two", "6s")):
            made = plane("PUT", f"/meshes/default/meshtimeouts/{name}", timeout(name, idle=idle))
            until(lambda: fleet.rounds.revision >= int(made.headers["Koguma-Revision"]), "it was looked at")  # noqa: B023 - asked at once
        assert "KG010" in str(made.json["warnings"])
        assert plane.plane.background.failures == []


@pytest.mark.expected_errors(FAILS)
def test_a_task_of_the_control_plane_that_dies_lives_again(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "RESTART_SECONDS_MIN", 0.001)
    with LocalControlPlane(tmp_path) as plane:
        fleet = plane.plane._proxies.fleet
        works = fleet.rounds._wait
        failures = iter([RuntimeError("dead")])

        async def fails():
            for error in failures:
                raise error
            await works()

        monkeypatch.setattr(fleet.rounds, "_wait", fails)
        connection = connect(plane, dataplane("web-1", service="web"), name="web-1")
        plane.run(next_offer(connection))
        assert [(each.task, each.count) for each in plane.plane.background.failures] == [("proxies", 1)]


OUTPUT = """\
koguma 0.1.0 is ready: http://127.0.0.1:1 ("level": "error" is no record here)
{"event": "fine", "level": "info"}
{"event": "slow", "level": "warning", "reason": "error"}
{"event": "broken", "level": "error"}
{"event": "cut off", "level": "error", "reason": "a
Traceback (most recent call last):
F1116 11:01:44.246102   11441 ev_epoll1_linux.cc:1121] Check failed: next_worker->state == KICKED
"""


def test_error_lines_are_found_in_every_form_and_fail_who_does_not_expect_them():
    found = errors_in(OUTPUT)
    assert found == OUTPUT.splitlines()[3:]
    assert unexpected(found, ["broken", "cut", "^Traceback"]) == found[-1:]
