"""Appends: the connection for appends, and whether the standbys have what was appended.

A primary that waits for its standbys answers after they have a commit. If the answer is lost, or the wait was
given up (a timeout, which PostgreSQL only warns of), the commit may stand on the primary alone, and be gone
after a failover. It is not believed before another commit has reached the standbys: then all before it has.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import asyncpg

from koguma.store.log import LogFull, LogLost, LogUnreachable
from koguma.store.postgres_connection import PostgresConnection
from koguma.store.postgres_pooling import Connection

_COMMIT: Final = "UPDATE counter SET revision = revision WHERE id = 1"


class Appends:
    """The connection for appends."""

    def __init__(self, url: str) -> None:
        self._connection = PostgresConnection(url)
        self._is_in_doubt = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, exclusively; LogLost also where standbys may not have what was committed."""
        try:
            async with self._connection.use() as db:
                with _warnings_of(db) as warnings:
                    yield db
                _believe(warnings)
        except (LogUnreachable, LogFull):
            raise  # nothing was committed
        except BaseException:
            self._is_in_doubt = True
            raise
        self._is_in_doubt = False

    async def settle(self) -> None:
        """Return when what was appended stays, whatever happens to the primary; at once where it does."""
        if self._is_in_doubt:
            async with self.use() as db:
                await db.execute(_COMMIT)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


@contextmanager
def _warnings_of(db: Connection) -> Iterator[list[str]]:
    """The warnings that the server sends meanwhile."""
    warnings: list[str] = []

    def note(_db: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.severity_en == "WARNING":
            warnings.append(str(message.message))

    db.add_log_listener(note)
    try:
        yield warnings
    finally:
        if not db.is_closed():
            db.remove_log_listener(note)


def _believe(warnings: list[str]) -> None:
    """Raise where a commit came with a warning: it was not sent to all standbys; nothing else warns here."""
    if warnings:
        raise LogLost(warnings[0])
