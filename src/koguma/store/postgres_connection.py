"""PostgresConnection: one connection to PostgreSQL, opened when needed and again after it broke.

The messages and errors it returns show the address without its password.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from koguma.model.redacted import masked_url
from koguma.store.log import LogFull, LogLost, LogUnreachable
from koguma.store.postgres_hosts import LOST, connect, one_line
from koguma.store.postgres_pooling import Connection, NoServer, is_pooled


def _disk_full(url: str, error: asyncpg.DiskFullError) -> str:
    return (
        f"the disk of the database {masked_url(url)} is full ({error}); make room there. Deletes need some"
        " too, and a shorter --history removes old revisions"
    )


class StaleConnection(LogUnreachable):
    """A connection that the other side had given up; a new one may do."""


class PostgresConnection:
    """One connection, used by one task at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, exclusively; LogLost if it breaks, and the next use opens a new one."""
        async with self._lock:
            is_new = self._connection is None or self._connection.is_closed()
            if is_new:
                self._connection = await self._connected()
            assert self._connection is not None
            try:
                yield self._connection
            except asyncpg.DiskFullError as error:  # an error of one statement, which did not happen
                raise LogFull(_disk_full(self._url, error)) from error
            except asyncpg.ReadOnlySQLTransactionError as error:  # it was the primary once; nothing happened
                self.drop()
                raise LogUnreachable(f"the database takes no writes, as a standby does ({error})") from error
            except NoServer as error:
                is_stale = self._connection.is_closed() and not is_new
                self.drop()
                raise (StaleConnection if is_stale else LogUnreachable)(str(error)) from error
            except LOST as error:
                if isinstance(error, ValueError):  # asyncpg's check of arguments: a bug of ours
                    raise
                self.drop()
                raise LogLost(one_line(error)) from error

    @property
    def is_pooled(self) -> bool:
        """Whether there is a pooler between, as far as known."""
        return is_pooled(self._connection)

    async def _connected(self) -> Connection:
        try:
            return await connect(self._url)
        except LOST as error:
            if isinstance(error, ValueError):
                raise
            raise LogUnreachable(one_line(error)) from error

    def drop(self) -> None:
        """Terminate the connection at once."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close the connection properly."""
        if self._connection is not None:
            with suppress(*LOST):
                await self._connection.close(timeout=1)
            self.drop()
