"""Builders for the store's tests: resources, transactions, a manual clock, and the backends of logs."""

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from koguma.model.resource import Key, Resource
from koguma.store import Delete, Put, Store, Transaction, Watch
from koguma.store.contract import Change, Operation
from koguma.store.log import Log
from koguma.store.memory import MemoryLog
from koguma.store.sealing import PLAIN, Sealing
from koguma.store.sqlite import SqliteLog

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **step: float) -> None:
        self.now += timedelta(**step)


class MemoryBackend:
    """One log for all stores of a test."""

    def __init__(self) -> None:
        self._log = MemoryLog()

    def log(self, sealing: Sealing = PLAIN) -> Log:
        self._log._sealing = sealing
        return self._log

    def bodies(self) -> list[bytes]:
        """The stored bodies of all revisions."""
        return [self._log.rows[revision].body for revision in sorted(self._log.rows)]

    def corrupt(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        self._log.rows[revision] = self._log.rows[revision]._replace(body=body)


class SqliteBackend:
    """One SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, sealing: Sealing = PLAIN) -> Log:
        return SqliteLog(self.path, 1024 * 1024, sealing)  # a small reserve, since there are many

    def bodies(self) -> list[bytes]:
        with sqlite3.connect(self.path) as db:
            rows = db.execute("SELECT CAST(body AS BLOB) FROM changes ORDER BY revision").fetchall()
        db.close()
        return [body for (body,) in rows]

    def corrupt(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        with sqlite3.connect(self.path) as db:
            db.execute("UPDATE changes SET body = ? WHERE revision = ?", (body, revision))
        db.close()


class PostgresBackend:
    """One PostgreSQL database, which logs reach directly or through a pooler."""

    def __init__(self, server, url: str, pooler=None) -> None:
        self.server = server
        self.url = url
        self.store_url = pooler.in_front_of(url) if pooler else url

    def log(self, sealing: Sealing = PLAIN) -> Log:
        from koguma.store.postgres import PostgresLog

        return PostgresLog(self.store_url, sealing)

    def bodies(self) -> list[bytes]:
        rows = self.server.fetch("SELECT body FROM changes ORDER BY revision", self.url)
        return [body.encode() for (body,) in rows]

    def corrupt(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        self.server.execute(
            f"UPDATE changes SET body = '{body.decode()}' WHERE revision = {revision}", self.url
        )


def make_resource(
    name: str, value: object = 1, kind: str = "MeshTimeout", mesh: str = "default", **more
) -> Resource:
    """A resource; its spec is `{"value": value}`."""
    more = {"core_name": name, "spec": {"value": value}} | more
    return Resource(kind=kind, mesh=mesh, name=name, **more)


def key(name: str, kind: str = "MeshTimeout", mesh: str = "default") -> Key:
    return make_resource(name, kind=kind, mesh=mesh).key


def puts(*resources: Resource, expect: int | None = None) -> Transaction:
    return transaction_of(*(Put(resource, expect) for resource in resources))


def deletes(*keys: Key, expect: int | None = None) -> Transaction:
    return transaction_of(*(Delete(key, expect) for key in keys))


def transaction_of(*ops: Operation) -> Transaction:
    return Transaction(ops, "tester", "a test")


async def changes_after(store: Store, revision: int, kinds: frozenset[str] | None = None) -> list[Change]:
    """The changes that a watch from a revision delivers without waiting."""
    return await drained(store.watch(kinds, revision))


async def drained(watch: Watch) -> list[Change]:
    changes: list[Change] = []
    while batch := await watch.next_batch(0):
        changes += batch
    return changes


def contents(store: Store) -> dict[Key, Resource]:
    return {resource.key: resource for resource in store.state.all()}


async def seen(store: Store, count: int) -> list[int]:
    """The revisions that a watch from the start sees, until there are so many."""
    watch = store.watch(None, 0)
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [change.revision for change in await watch.next_batch(5)]
    return found
