"""PostgresConnection: one connection to PostgreSQL, opened when needed and again after it broke.

Passwords stay in this module: the messages and errors it returns show the address without them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from koguma.model.redacted import masked_url
from koguma.store.contract import StoreUnusable
from koguma.store.log import LogFull, LogLost, LogUnreachable

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 3.0
COMMAND_SECONDS = 5.0
_SERVER_SETTINGS = {
    "application_name": "koguma",
    "statement_timeout": "5000",
    "idle_in_transaction_session_timeout": "5000",
}

# The server disconnected, is shutting down or lacks resources: the statement may or may not have happened.
LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # asyncpg raises it when the server disconnects in the wrong moment
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
)


def one_line(error: BaseException) -> str:
    """An error as text, even where its message is empty."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _disk_full(url: str, error: asyncpg.DiskFullError) -> str:
    return (
        f"the disk of the database {masked_url(url)} is full ({error}); make room there. Deletes need some"
        " too, and a shorter --history removes old revisions"
    )


async def connect(url: str) -> Connection:
    """A new connection. An error about the address does not quote it."""
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings=_SERVER_SETTINGS,
        )
    except ValueError:  # asyncpg quotes parts of the address, and a part may be the password
        raise StoreUnusable(
            f"{masked_url(url)} cannot be read as an address; write postgresql://user:password@host:port/database,"
            " with %XX for special characters in the password"
        ) from None


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
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connected()
            try:
                yield self._connection
            except asyncpg.DiskFullError as error:  # an error of one statement, which did not happen
                raise LogFull(_disk_full(self._url, error)) from error
            except LOST as error:
                if isinstance(error, ValueError):  # asyncpg's check of arguments: a bug of ours
                    raise
                self.drop()
                raise LogLost(one_line(error)) from error

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
