"""Worker: one thread that runs jobs in order for an event loop.

Like `run_in_executor`, but the result takes one turn of the loop less; for a short write to SQLite that is
measurable.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class Worker:
    """A thread and its queue. It starts with the first job and ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on the thread; the future gets its result or error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(loop, future, work))
        return future

    def stop(self) -> None:
        """End the thread after its queued jobs."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _main(self) -> None:
        while (job := self._queue.get()) is not None:
            result, error = None, None
            try:
                result = job.work()
            except Exception as raised:  # noqa: BLE001 - it is raised for the caller
                error = raised
            with suppress(RuntimeError):  # the loop was closed meanwhile
                job.loop.call_soon_threadsafe(_settle, job.future, result, error)
            del job, result, error  # keep nothing alive while waiting for the next job


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
