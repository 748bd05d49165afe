"""Migration of a PostgreSQL store; several control planes may start at once."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import asyncpg

from koguma.store import migrate, store_format
from koguma.store.log import LogLost
from koguma.store.postgres_pooling import Connection

_ATTEMPTS: Final = 20
_SECONDS: Final = 600.0  # for a statement of a migration
_NO_TIMEOUT: Final = "SET LOCAL statement_timeout = 0"


async def run(db: Connection, where: str) -> None:
    """Run pending migrations: of several control planes one wins, and the others check again."""
    for attempt in range(_ATTEMPTS):
        noted = await _first(db, store_format.READ)
        has_format = store_format.is_noted(tuple(noted) if noted else None, where)
        newest = await _first(db, migrate.NEWEST)
        migrations = migrate.pending("postgres", newest[0] if newest else None)
        if has_format and not migrations:
            return
        with suppress(asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.SerializationError):
            await _apply(db, migrations)
        await asyncio.sleep(0.05 * attempt)
    raise LogLost("another control plane keeps changing the tables")


async def _first(db: Connection, query: str) -> "asyncpg.Record | None":
    """The first row; None where there is no such table yet."""
    try:
        return await db.fetchrow(query)
    except asyncpg.UndefinedTableError:
        return None


async def _apply(db: Connection, migrations: Sequence[migrate.Migration]) -> None:
    async with db.transaction():
        await db.execute(_NO_TIMEOUT)
        await db.execute(migrate.VERSIONS_TABLE)
        for migration in migrations:  # its number first: a second writer waits here, and then fails
            await db.execute("INSERT INTO schema_version VALUES ($1, $2)", migration.version, migration.name)
            for statement in migration.statements:
                await db.execute(statement, timeout=_SECONDS)
        await db.execute(store_format.TABLE)
        await db.execute(store_format.WRITE)
