"""Proxy states in SQLite: a control plane that starts again knows who was connected before."""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Final

from koguma.model.resource import Key
from koguma.store.proxy_states import LEFT, InstanceRow, StateRow
from koguma.store.sqlite_database import SqliteDatabase

# The statements are put together from fixed names; values are always parameters.
# ruff: noqa: S608
_KEY: Final = "kind, mesh, zone, namespace, name"
_BY_KEY: Final = "instance = ? AND kind = ? AND mesh = ? AND zone = ? AND namespace = ? AND name = ?"
_UPDATE: Final = (
    "UPDATE instances SET beat = ?, version = ?, revision = ?, data = ? WHERE instance = ? AND beat >= ?"
)
_INSERT: Final = "INSERT INTO instances (instance, beat, version, revision, data) VALUES (?, ?, ?, ?, ?)"
_PUT: Final = (
    f"INSERT OR REPLACE INTO proxy_states (instance, {_KEY}, version, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_DELETE: Final = f"DELETE FROM proxy_states WHERE {_BY_KEY}"
_INSTANCES: Final = "SELECT instance, beat, version, revision, data FROM instances"
_STATES: Final = f"SELECT {_KEY}, version, data FROM proxy_states WHERE instance = ? AND version > ?"


class SqliteProxyStates:
    """The rows in the database of a log."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def write(
        self, row: InstanceRow, after: int, states: Sequence[StateRow], removed: Collection[Key]
    ) -> bool:
        """Write a flush."""
        return await self._database.run(lambda: self._write(row, after, states, removed))

    async def begin(self, row: InstanceRow, states: Sequence[StateRow]) -> None:
        """Write everything anew."""
        await self._database.run(lambda: self._begin(row, states))

    async def leave(self, instance: str) -> None:
        """Note that it has stopped."""
        statement = "UPDATE instances SET beat = ? WHERE instance = ?"
        await self._database.run(lambda: self._database.connection.execute(statement, (LEFT, instance)))

    async def instances(self) -> list[InstanceRow]:
        """All instances."""
        rows = await self._database.run(lambda: self._database.connection.execute(_INSTANCES).fetchall())
        return [InstanceRow(*row) for row in rows]

    async def states(self, instance: str, after: int) -> list[StateRow]:
        """What is newer."""
        values = instance, after
        rows = await self._database.run(lambda: self._database.connection.execute(_STATES, values).fetchall())
        return [StateRow(Key(*key), version, data) for *key, version, data in rows]

    async def remove(self, instance: str, beat: int) -> None:
        """Remove an instance that is gone."""
        await self._database.run(lambda: self._database.with_reserve(lambda: self._remove(instance, beat)))

    # What follows runs on the thread of the database.

    def _write(
        self, row: InstanceRow, after: int, states: Sequence[StateRow], removed: Collection[Key]
    ) -> bool:
        def written() -> bool:
            with self._database.transaction() as db:
                if db.execute(_UPDATE, (*row[1:], row.instance, after)).rowcount == 0:
                    return False
                db.executemany(_DELETE, [(row.instance, *key) for key in removed])
                db.executemany(_PUT, [(row.instance, *each.key, each.version, each.data) for each in states])
            return True

        return self._with_room(written)

    def _begin(self, row: InstanceRow, states: Sequence[StateRow]) -> None:
        def written() -> bool:
            with self._database.transaction() as db:
                db.execute("DELETE FROM instances WHERE instance = ?", (row.instance,))
                db.execute("DELETE FROM proxy_states WHERE instance = ?", (row.instance,))
                db.execute(_INSERT, row)
                db.executemany(_PUT, [(row.instance, *each.key, each.version, each.data) for each in states])
            return True

        self._with_room(written)

    def _with_room(self, work: Callable[[], bool]) -> bool:
        """Write, unless that would use up the space that deletes need on a full disk."""
        if not self._database.has_reserve():
            raise self._database.full_error()
        try:
            return work()
        except sqlite3.OperationalError as error:
            if self._database.is_full(error):
                raise self._database.full_error() from error
            raise

    def _remove(self, instance: str, beat: int) -> None:
        with self._database.transaction() as db:
            values = instance, beat
            if db.execute("DELETE FROM instances WHERE instance = ? AND beat = ?", values).rowcount:
                db.execute("DELETE FROM proxy_states WHERE instance = ?", (instance,))
