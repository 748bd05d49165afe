"""Connections to PostgreSQL, direct or through a pooler such as PgBouncer.

A pooler in transaction mode gives a client another connection to the server for each transaction. So nothing
may belong to the session: no prepared statements, no LISTEN, no settings; a statement stands in a transaction
that begins with its limits. In session mode a client keeps its server until it leaves, as without a pooler;
only settings of the start are refused. The two modes cannot be told apart from outside, so a pooler is taken
for one in transaction mode, which is right for both; the address may say `pool_mode=session`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from koguma.model.redacted import masked_url
from koguma.store.contract import StoreUnusable

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS: Final = 3.0
COMMAND_SECONDS: Final = 5.0
# A control plane that hangs or is cut off must not block the others by a lock.
LIMITS: Final = {"statement_timeout": "5000", "idle_in_transaction_session_timeout": "5000"}
NAME: Final = {"application_name": "koguma"}  # poolers take it
_SET: Final = " ".join(f"SET {name} = {value};" for name, value in LIMITS.items())
_SET_LOCAL: Final = _SET.replace("SET ", "SET LOCAL ")
_POOL_MODE: Final = re.compile(r"([?&])pool_mode=([^&]*)(&?)")
_MODES: Final = ("session", "transaction")
_FAILED: Final = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresError)


class NoServer(ConnectionError):
    """A pooler answers, but has no connection to a server: nothing was sent."""


class PooledConnection(Connection):
    """A connection to a pooler in transaction mode; each statement outside of a transaction gets one."""

    async def execute(self, query: str, *args: Any, **more: Any) -> str:
        """Run a statement. A transaction begins here too, together with its limits."""
        if args:
            async with self._in_transaction():
                return await super().execute(query, *args, **more)
        if not query.startswith("BEGIN"):
            return await super().execute(query, **more)
        try:
            return await super().execute(f"{query} {_SET_LOCAL}", **more)
        except _FAILED as error:
            reason = str(error) or type(error).__name__
            raise NoServer(f"the pooler has no connection to a server: {reason}") from error

    async def fetch(self, *args: Any, **more: Any) -> Any:
        """All rows."""
        async with self._in_transaction():
            return await super().fetch(*args, **more)

    async def fetchrow(self, *args: Any, **more: Any) -> Any:
        """The first row."""
        async with self._in_transaction():
            return await super().fetchrow(*args, **more)

    async def fetchval(self, *args: Any, **more: Any) -> Any:
        """A value of the first row."""
        async with self._in_transaction():
            return await super().fetchval(*args, **more)

    @asynccontextmanager
    async def _in_transaction(self) -> AsyncIterator[None]:
        if self.is_in_transaction():
            yield
            return
        transaction = self.transaction()
        await transaction.start()
        try:
            yield
        except BaseException:
            if not self.is_closed():  # else rolling back would hide the reason
                await transaction.rollback()
            raise
        await transaction.commit()


def is_pooled(db: Connection | None) -> bool:
    """Whether it is one to a pooler. To asyncpg every connection is an instance of any class of them."""
    return type(db) is PooledConnection


async def opened(address: str) -> Connection:
    """A connection to one host, of the sort that what is there needs."""
    address, mode = _without_pool_mode(address)
    if mode == "transaction":
        return await _pooled(address)
    if mode == "session":
        db = await _connected(address, server_settings=NAME)
        async with ended_on_error(db):
            await db.execute(_SET)
        return db
    try:
        db = await _connected(address, server_settings=NAME | LIMITS)
    except asyncpg.ProtocolViolationError:  # how poolers refuse settings that they cannot keep
        return await _pooled(address)
    async with ended_on_error(db):
        if not await _has_pooler_between(db):
            return db
        await db.close()
    return await _pooled(address)


@asynccontextmanager
async def ended_on_error(db: Connection) -> AsyncIterator[None]:
    """Leaves no open connection behind an error or a cancellation."""
    try:
        yield
    except BaseException:
        db.terminate()
        raise


async def _pooled(address: str) -> Connection:
    return await _connected(
        address, server_settings=NAME, statement_cache_size=0, connection_class=PooledConnection
    )


async def _has_pooler_between(db: Connection) -> bool:
    """Whether the server behind is another than the one that answered: a pooler gives a number of its own.

    Its statement has no name, since it would outlive this client, and meet the same name of another one.
    """
    async with db.transaction():
        statement = await db.prepare("SELECT pg_backend_pid()", name="")
        return bool(await statement.fetchval() != db.get_server_pid())


async def _connected(address: str, **more: Any) -> Connection:
    """A connection. An error about the address does not quote it."""
    try:
        return await asyncpg.connect(
            address, timeout=CONNECT_SECONDS, command_timeout=COMMAND_SECONDS, **more
        )
    except ValueError:  # asyncpg quotes parts of the address, and a part may be the password
        raise StoreUnusable(
            f"{masked_url(address)} cannot be read as an address; write postgresql://user:password@host:port/database,"
            " with %XX for special characters in the password"
        ) from None


def _without_pool_mode(address: str) -> tuple[str, str]:
    """The address as PostgreSQL knows it, and the mode of the pooler where it says one."""
    found = _POOL_MODE.search(address)
    if found is None:
        return address, ""
    before, mode, after = found.groups()
    if mode not in _MODES:
        raise StoreUnusable(f"pool_mode={mode} in {masked_url(address)} is none of {', '.join(_MODES)}")
    return address[: found.start()] + (before if after else "") + address[found.end() :], mode
