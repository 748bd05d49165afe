"""Link: one connection to PostgreSQL that is made when needed, and again after it broke.

Passwords stay in here: texts and errors that leave this module show the address without them.
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

# The server went away, was told to stop, or has no room: what was asked may or may not have happened.
LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg says when the server left in the wrong moment
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
)


def words(error: BaseException) -> str:
    """An error in one line, also where its own text is empty."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _full(url: str, error: asyncpg.DiskFullError) -> str:
    return (
        f"the disk of the database {masked_url(url)} is full ({error}); make room there. Deletes need some"
        " too, and a shorter --history removes old revisions"
    )


async def connect(url: str) -> Connection:
    """A new connection. What the address itself breaks is said without quoting it."""
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


class Link:
    """One connection, used by one task at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, alone; LogLost if it breaks, and the next use makes a new one."""
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connected()
            try:
                yield self._connection
            except asyncpg.DiskFullError as error:  # an error of one statement: what was asked did not happen
                raise LogFull(_full(self._url, error)) from error
            except LOST as error:
                if isinstance(error, ValueError):  # asyncpg's own check of arguments: a mistake of ours
                    raise
                self.drop()
                raise LogLost(words(error)) from error

    async def _connected(self) -> Connection:
        try:
            return await connect(self._url)
        except LOST as error:
            if isinstance(error, ValueError):
                raise
            raise LogUnreachable(words(error)) from error

    def drop(self) -> None:
        """Let go of the connection at once."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Say goodbye, then let go."""
        if self._connection is not None:
            with suppress(*LOST):
                await self._connection.close(timeout=1)
            self.drop()
