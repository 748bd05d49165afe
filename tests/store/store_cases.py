"""Small words for the store's tests: resources, transactions, a clock set by hand, where logs live."""

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
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **step: float) -> None:
        self.now += timedelta(**step)


class InMemory:
    """One log for all stores of a test."""

    def __init__(self) -> None:
        self.kept = MemoryLog()

    def log(self, sealing: Sealing = PLAIN) -> Log:
        self.kept._sealing = sealing
        return self.kept

    def bodies(self) -> list[bytes]:
        """What is kept of all revisions, as it is kept."""
        return [self.kept.rows[revision].body for revision in sorted(self.kept.rows)]

    def spoil(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        self.kept.rows[revision] = self.kept.rows[revision]._replace(body=body)


class InFile:
    """One SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, sealing: Sealing = PLAIN) -> Log:
        return SqliteLog(self.path, 1024 * 1024, sealing)  # a small reserve, since there are many

    def bodies(self) -> list[bytes]:
        with sqlite3.connect(self.path) as db:
            found = db.execute("SELECT CAST(body AS BLOB) FROM changes ORDER BY revision").fetchall()
        db.close()
        return [body for (body,) in found]

    def spoil(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        with sqlite3.connect(self.path) as db:
            db.execute("UPDATE changes SET body = ? WHERE revision = ?", (body, revision))
        db.close()


class InPostgres:
    """One PostgreSQL database."""

    def __init__(self, server, url: str) -> None:
        self.server = server
        self.url = url

    def log(self, sealing: Sealing = PLAIN) -> Log:
        from koguma.store.postgres import PostgresLog

        return PostgresLog(self.url, sealing)

    def bodies(self) -> list[bytes]:
        found = self.server.fetch("SELECT body FROM changes ORDER BY revision", self.url)
        return [body.encode() for (body,) in found]

    def spoil(self, revision: int) -> None:
        self.replace(revision, b'{"uid": "half')

    def replace(self, revision: int, body: bytes) -> None:
        self.server.execute(
            f"UPDATE changes SET body = '{body.decode()}' WHERE revision = {revision}", self.url
        )


def thing(name: str, value: object = 1, kind: str = "MeshTimeout", mesh: str = "default", **more) -> Resource:
    """A resource; its spec is `{"value": value}`."""
    more = {"core_name": name, "spec": {"value": value}} | more
    return Resource(kind=kind, mesh=mesh, name=name, **more)


def key(name: str, kind: str = "MeshTimeout", mesh: str = "default") -> Key:
    return thing(name, kind=kind, mesh=mesh).key


def puts(*resources: Resource, expect: int | None = None) -> Transaction:
    return does(*(Put(resource, expect) for resource in resources))


def deletes(*keys: Key, expect: int | None = None) -> Transaction:
    return does(*(Delete(one, expect) for one in keys))


def does(*ops: Operation) -> Transaction:
    return Transaction(ops, "tester", "a test")


async def all_after(store: Store, revision: int, kinds: frozenset[str] | None = None) -> list[Change]:
    """Everything that a watch from a revision hands out without waiting."""
    return await drained(store.watch(kinds, revision))


async def drained(watch: Watch) -> list[Change]:
    found: list[Change] = []
    while batch := await watch.next_batch(0):
        found += batch
    return found


def contents(store: Store) -> dict[Key, Resource]:
    return {resource.key: resource for resource in store.state.all()}
