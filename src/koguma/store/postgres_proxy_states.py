"""Proxy states in PostgreSQL, on a connection of their own: a sign of life waits for no read of the log.

At rest a flush is one statement for one row. The SQL is plain, as that of the log, and needs no setting of
the session: behind a pooler each transaction may have another one.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from koguma.model.resource import Key
from koguma.store.postgres_connection import PostgresConnection
from koguma.store.postgres_pooling import Connection
from koguma.store.proxy_states import LEFT, InstanceRow, StateRow

ROWS_MAX: Final = 2_000  # in one statement, so that none takes long

# The statements are put together from fixed names; values are always parameters.
# ruff: noqa: S608
_KEY: Final = "kind, mesh, zone, namespace, name"
_KEYS: Final = ", ".join(f"${at}::text[]" for at in range(2, 7))
# What is lost is written again, so neither disk nor standby need have it before the answer. The setting is
# for this transaction alone.
_NOT_WAITING: Final = "SELECT set_config('synchronous_commit', 'off', true)"
_UPDATE: Final = """
UPDATE instances SET beat = $2, version = $3, revision = $4, data = $5
FROM (SELECT set_config('synchronous_commit', 'off', true)) s WHERE instance = $1 AND beat >= $6
RETURNING beat
"""
_INSERT: Final = "INSERT INTO instances (instance, beat, version, revision, data) VALUES ($1, $2, $3, $4, $5)"
_PUT: Final = f"""
INSERT INTO proxy_states (instance, {_KEY}, version, data)
SELECT $1, r.* FROM unnest({_KEYS}, $7::bigint[], $8::text[]) AS r ({_KEY}, version, data)
ON CONFLICT (instance, {_KEY}) DO UPDATE SET version = excluded.version, data = excluded.data
"""
_SAME_KEY: Final = " AND ".join(f"p.{name} = r.{name}" for name in _KEY.split(", "))
_DELETE: Final = f"""
DELETE FROM proxy_states p USING unnest({_KEYS}) AS r ({_KEY}) WHERE p.instance = $1 AND {_SAME_KEY}
"""
_INSTANCES: Final = "SELECT instance, beat, version, revision, data FROM instances"
_STATES: Final = f"SELECT {_KEY}, version, data FROM proxy_states WHERE instance = $1 AND version > $2"
_DELETE_INSTANCE: Final = "DELETE FROM instances WHERE instance = $1"
_DELETE_STATES: Final = "DELETE FROM proxy_states WHERE instance = $1"


class PostgresProxyStates:
    """The rows in the database at `url`."""

    def __init__(self, url: str) -> None:
        self._connection = PostgresConnection(url)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def write(
        self, row: InstanceRow, after: int, states: Sequence[StateRow], removed: Collection[Key]
    ) -> bool:
        """Write a flush."""
        values = (*row[:4], row.data.decode(), after)
        async with self._connection.use() as db:
            if not states and not removed:
                return await db.fetchval(_UPDATE, *values) is not None
            async with db.transaction():
                if await db.fetchval(_UPDATE, *values) is None:
                    return False
                if removed:
                    await db.execute(_DELETE, row.instance, *zip(*removed, strict=True))
                await _put(db, row.instance, states)
        return True

    async def begin(self, row: InstanceRow, states: Sequence[StateRow]) -> None:
        """Write everything anew."""
        async with self._connection.use() as db, db.transaction():
            await db.execute(_NOT_WAITING)
            await db.execute(_DELETE_INSTANCE, row.instance)
            await db.execute(_DELETE_STATES, row.instance)
            await db.execute(_INSERT, *row[:4], row.data.decode())
            await _put(db, row.instance, states)

    async def leave(self, instance: str) -> None:
        """Note that it has stopped."""
        async with self._connection.use() as db:
            await db.execute("UPDATE instances SET beat = $2 WHERE instance = $1", instance, LEFT)

    async def instances(self) -> list[InstanceRow]:
        """All instances."""
        async with self._connection.use() as db:
            rows = await db.fetch(_INSTANCES)
        return [InstanceRow(row[0], row[1], row[2], row[3], row[4].encode()) for row in rows]

    async def states(self, instance: str, after: int) -> list[StateRow]:
        """What is newer."""
        async with self._connection.use() as db:
            rows = await db.fetch(_STATES, instance, after)
        return [StateRow(Key(*key), version, data.encode()) for *key, version, data in map(tuple, rows)]

    async def remove(self, instance: str, beat: int) -> None:
        """Remove an instance that is gone."""
        async with self._connection.use() as db, db.transaction():
            if (
                await db.fetchval(f"{_DELETE_INSTANCE} AND beat = $2 RETURNING beat", instance, beat)
                is not None
            ):
                await db.execute(_DELETE_STATES, instance)


async def _put(db: Connection, instance: str, states: Sequence[StateRow]) -> None:
    for chunk in _chunks(states):
        keys = zip(*(each.key for each in chunk), strict=True)
        versions, data = [each.version for each in chunk], [each.data.decode() for each in chunk]
        await db.execute(_PUT, instance, *keys, versions, data)


def _chunks(states: Sequence[StateRow]) -> Iterator[Sequence[StateRow]]:
    return (states[at : at + ROWS_MAX] for at in range(0, len(states), ROWS_MAX))
