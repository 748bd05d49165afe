"""Notifications between control planes that there are new changes to read (PostgreSQL's LISTEN and NOTIFY).

A notification is only a hint: it may be lost, doubled or late, and only latency depends on it. It is sent
after the commit on a connection of its own, because NOTIFY inside the writing transaction would make all
writers wait for one lock.
"""

import asyncio
from contextlib import suppress

from koguma.store.contract import new_id
from koguma.store.postgres_hosts import connect
from koguma.store.postgres_pooling import Connection, is_pooled

CHANNEL = "koguma_changes"
SEND_SECONDS_MIN = 0.005  # between two of them, so that a flood of writes is not doubled
RECONNECT_SECONDS = 1.0
# A lost notification costs a poll interval, so neither disk nor standby need have it. The setting is for this
# statement alone: behind a pooler, others use the same connection to the server.
_NOTIFY = "SELECT pg_notify($1, $2) FROM set_config('synchronous_commit', 'off', true)"


class Notifications:
    """Sends and receives notifications; its own are ignored."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._id = new_id()
        self._received = asyncio.Event()
        self._to_send = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen."""
        self._task = asyncio.create_task(self._run(), name="store notifications")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def send(self) -> None:
        """Notify the others soon; several calls may become one notification."""
        self._to_send.set()

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - reaching it is no error
        """Return after the next notification, or at the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._received.wait()
        self._received.clear()

    async def _run(self) -> None:
        while True:
            with suppress(Exception):  # without notifications, polling goes on
                db = await connect(self._url)
                try:
                    if is_pooled(db):
                        return  # behind a pooler nobody can listen; polling goes on
                    await self._listen(db)
                finally:
                    db.terminate()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, db: Connection) -> None:
        db.add_termination_listener(
            lambda _db: self._to_send.set()
        )  # to see the end of the connection while idle
        await db.add_listener(CHANNEL, self._receive)
        self._received.set()
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            await db.execute(_NOTIFY, CHANNEL, self._id)
            await asyncio.sleep(SEND_SECONDS_MIN)

    def _receive(self, _db: object, _pid: int, _channel: str, sender: object) -> None:
        if sender != self._id:
            self._received.set()
