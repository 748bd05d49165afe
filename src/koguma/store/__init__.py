"""The store: objects, their history, and watches on them, in SQLite, PostgreSQL or memory.

Read `contract` for its values, `evaluate` for its rules, `writer` for how a write becomes durable.
"""

from koguma.store.contract import (
    Change,
    Delete,
    DeleteMesh,
    DeleteZone,
    Op,
    Put,
    Require,
    RequireNone,
    StoreUnusable,
    Transaction,
    Unreadable,
)
from koguma.store.log import Log
from koguma.store.memory import MemoryLog
from koguma.store.sealing import PLAIN, Sealing
from koguma.store.state import State
from koguma.store.store import Store
from koguma.store.watch import Watch

__all__ = [
    "Change",
    "Delete",
    "DeleteMesh",
    "DeleteZone",
    "Op",
    "Put",
    "Require",
    "RequireNone",
    "State",
    "Store",
    "StoreUnusable",
    "Transaction",
    "Unreadable",
    "Watch",
    "key_file_of",
    "log_at",
    "open_store",
]

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


async def open_store(url: str, sealing: Sealing = PLAIN) -> Store:
    """An open store: `sqlite:///FILE`, `postgresql://...` or `memory://`."""
    store = Store(log_at(url, sealing))
    await store.open()
    return store


def log_at(url: str, sealing: Sealing = PLAIN) -> Log:
    """The log at an address, not open yet. A log on a disk is encrypted as `sealing` says."""
    if url == "memory://":
        return MemoryLog()
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        from koguma.store.sqlite import SqliteLog  # noqa: PLC0415 - imported only where it is used

        return SqliteLog(url.removeprefix(_SQLITE), sealing=sealing)
    if url.startswith(_POSTGRES):
        return _postgres(url, sealing)
    scheme = url.partition("://")[0] if "://" in url else ""
    what = f'"{scheme}://"' if scheme else "an address without a scheme"
    raise StoreUnusable(
        f"{what} is no store that Koguma knows; use sqlite:///relative/file, sqlite:////absolute/file,"
        " postgresql://user:password@host:port/database, or memory:// for a store that is forgotten"
    )


def key_file_of(url: str) -> str:
    """The default key file for the Secrets of a store: beside an SQLite file; none for other stores."""
    return f"{url.removeprefix(_SQLITE)}.key" if url.startswith(_SQLITE) else ""


def _postgres(url: str, sealing: Sealing) -> Log:
    try:
        from koguma.store.postgres import PostgresLog  # noqa: PLC0415 - asyncpg is an extra
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreUnusable(
            "a PostgreSQL store needs asyncpg, which is not installed: pip install 'koguma[postgres]'"
        ) from error
    return PostgresLog(url, sealing)
