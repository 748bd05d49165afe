"""Background: the tasks that a control plane runs beside requests, and what becomes of one that fails.

A task that ended unseen would leave something undone for ever. So all of them are started here. One that
raises, or that ends though it should run until it is cancelled, is logged, counted, shown by `koguma check`,
and started again. Who catches mistakes itself, so as to go on at once, reports them here too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from koguma.runtime.clock import now

RESTART_SECONDS_MIN: Final = 1.0
RESTART_SECONDS_MAX: Final = 60.0
STEADY_SECONDS: Final = 60.0  # a task that ran this long did not fail at its start
RECENT: Final = timedelta(minutes=10)

_log = structlog.get_logger("koguma.background")


class TaskFailures(msgspec.Struct, frozen=True):
    """How often a task failed, and the last time."""

    task: str
    count: int
    last_at: datetime
    reason: str


class Background:
    """Starts tasks, keeps them running, and knows which of them failed."""

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, TaskFailures] = {}

    @property
    def failures(self) -> list[TaskFailures]:
        """The tasks that failed since the start, by name."""
        return [self._failures[task] for task in sorted(self._failures)]

    @property
    def n_failures(self) -> int:
        """How often any of them failed."""
        return sum(each.count for each in self._failures.values())

    def is_recent(self, failures: TaskFailures) -> bool:
        """Whether a task failed so shortly ago that it may well do so again."""
        return self._clock() - failures.last_at < RECENT

    def forever(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, may_end: bool = False
    ) -> asyncio.Task[None]:
        """Run something until it is cancelled, again where it fails; `may_end` lets it return in peace."""
        return self._start(name, self._again_and_again(name, work, may_end=may_end))

    def once(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something to its end, which is not waited for."""
        return self._start(name, self._to_its_end(name, work))

    def failed(self, name: str, error: BaseException) -> None:
        """Count a failure whose log line the caller writes."""
        self._note(name, reason_of(error))

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """What the event loop calls for an error that nobody waited for: in a callback, or of a lost task."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._note("event loop", reason_of(error))
        loop.default_exception_handler(dict(context))

    async def stop(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)  # the event loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _again_and_again(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, may_end: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        pause = RESTART_SECONDS_MIN
        while True:
            begun_at = loop.time()
            error = await _error_of(work())
            if error is None and may_end:
                return
            if loop.time() - begun_at > STEADY_SECONDS:
                pause = RESTART_SECONDS_MIN
            reason = "it ended by itself" if error is None else reason_of(error)
            self._note(name, reason)
            _log.error(
                "a background task failed and is started again",
                task=name,
                reason=reason,
                restart_in=f"{pause:g}s",
                exc_info=error,
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS_MAX)

    async def _to_its_end(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        error = await _error_of(work)
        if error is not None:
            self._note(name.partition(" of ")[0], reason_of(error))
            _log.error("a background task failed", task=name, reason=reason_of(error), exc_info=error)

    def _note(self, name: str, reason: str) -> None:
        before = self._failures.get(name)
        count = before.count + 1 if before else 1
        self._failures[name] = TaskFailures(name, count, self._clock(), reason)


async def _error_of(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run something; what it raises. Only a cancellation that is meant for this task goes through."""
    try:
        await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return error  # it waited for something that was cancelled, and did not expect that
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and told
        return error
    return None


def reason_of(error: BaseException) -> str:
    """An error in one line, also where its own text is empty."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
