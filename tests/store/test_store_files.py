"""What is particular to SQLite: the file, its lock, its permissions; and addresses and migrations."""

import asyncio
import os
import sqlite3
import stat
import sys

import pytest
from store_cases import contents, make_resource, puts

from koguma import __version__
from koguma.model.redacted import masked_url
from koguma.store import StoreUnusable, migrate, open_store
from koguma.store.sqlite import SqliteLog
from koguma.store.store_format import FORMAT, SINCE


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_its_owner_can_read_a_store(tmp_path) -> None:
    file = tmp_path / "new" / "folder" / "store.db"
    store = await open_store(f"sqlite:///{file}")
    await store.write(puts(make_resource("secret")))
    assert mode(file.parent) == 0o700
    assert {path.name: mode(path) for path in file.parent.iterdir()} == {
        "store.db": 0o600,
        "store.db-shm": 0o600,
        "store.db-wal": 0o600,
        "store.db.lock": 0o600,
        "store.db.reserve": 0o600,
    }
    await store.close()


async def test_a_second_process_is_told_who_has_the_file(tmp_path) -> None:
    file = tmp_path / "store.db"
    first = await open_store(f"sqlite:///{file}")
    with pytest.raises(StoreUnusable) as refusal:
        await open_store(f"sqlite:///{file}")
    assert str(file) in str(refusal.value)
    assert f"process {os.getpid()}" in str(refusal.value)
    await first.close()
    await (await open_store(f"sqlite:///{file}")).close()


async def test_a_file_with_a_second_name_is_refused_under_both(tmp_path) -> None:
    file, other = tmp_path / "store.db", tmp_path / "elsewhere" / "other.db"
    other.parent.mkdir()
    first = await open_store(f"sqlite:///{file}")
    os.link(file, other)
    with pytest.raises(StoreUnusable, match="hard links") as refusal:
        await open_store(f"sqlite:///{other}")
    assert str(other) in refusal.value.detail
    await first.close()
    with pytest.raises(StoreUnusable, match="2 names"):
        await open_store(f"sqlite:///{file}")
    other.unlink()
    await (await open_store(f"sqlite:///{file}")).close()


async def test_a_symbolic_link_does_not_pass_the_lock(tmp_path) -> None:
    file, link = tmp_path / "store.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(file)
    first = await open_store(f"sqlite:///{file}")
    with pytest.raises(StoreUnusable, match=f"in use by process {os.getpid()}"):
        await open_store(f"sqlite:///{link}")
    await first.close()


async def test_a_write_is_on_the_disk_when_it_is_answered(tmp_path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/store.db")
    db = store.log._database._db
    settings = await store.log._database.run(
        lambda: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert settings == ["wal", 2]
    await store.close()


@pytest.mark.parametrize(
    "content", [b"this is no database, it is a letter to my aunt" * 100, b"SQLite format 3\0"]
)
async def test_a_file_that_is_no_database_is_refused_by_name(tmp_path, content) -> None:
    file = tmp_path / "letter.txt"
    file.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"letter\.txt cannot be used as a store"):
        await open_store(f"sqlite:///{file}")


async def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match=r"file/store\.db cannot be used as a store"):
        await open_store(f"sqlite:///{tmp_path}/file/store.db")


async def test_a_relative_address_begins_where_we_are(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///data/store.db")
    await store.close()
    assert (tmp_path / "data" / "store.db").exists()


async def test_a_store_in_memory_is_forgotten() -> None:
    store = await open_store("memory://")
    await store.write(puts(make_resource("a")))
    await store.close()
    store = await open_store("memory://")
    assert contents(store) == {}
    await store.close()


@pytest.mark.parametrize(
    "url", ["", "mysql://root:secret@host/db", "sqlite://", "sqlite:///", "/var/lib/store.db"]
)
async def test_an_address_that_means_nothing_is_refused_with_those_that_do(url) -> None:
    with pytest.raises(StoreUnusable) as refusal:
        await open_store(url)
    assert "sqlite:///" in str(refusal.value)
    assert "postgresql://" in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_without_asyncpg_the_error_says_how_to_get_it(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("asyncpg")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("postgres", "link", "notices"):
        monkeypatch.delitem(sys.modules, f"koguma.store.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreUnusable, match=r"pip install 'koguma\[postgres\]'"):
        await open_store("postgresql://localhost/koguma")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://joe:secret@db:5432/koguma", "postgresql://joe:*****@db:5432/koguma"),
        ("postgresql://joe:sec/r@et@db/koguma", "postgresql://joe:*****@db/koguma"),
        (
            "postgresql://db/koguma?user=joe&password=secret&x=1",
            "postgresql://db/koguma?user=joe&password=*****&x=1",
        ),
        ("postgresql://joe@db/koguma", "postgresql://joe@db/koguma"),
    ],
)
def test_passwords_are_hidden(url, shown) -> None:
    assert masked_url(url) == shown


def test_migrations_are_numbered_without_gaps_and_alike_in_all_dialects() -> None:
    steps = {dialect: migrate.migrations(dialect) for dialect in ("sqlite", "postgres")}
    names = {dialect: [(step.version, step.name) for step in found] for dialect, found in steps.items()}
    assert names["sqlite"] == names["postgres"]
    assert [version for version, _ in names["sqlite"]] == list(range(1, len(names["sqlite"]) + 1))
    assert all(step.statements for found in steps.values() for step in found)


async def test_a_database_with_a_later_format_is_refused_and_says_what_it_needs(tmp_path) -> None:
    file = tmp_path / "store.db"
    await (await open_store(f"sqlite:///{file}")).close()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE store_format SET format = 99, needs = '7.0.0'")
    db.close()
    with pytest.raises(StoreUnusable) as refusal:
        await open_store(f"sqlite:///{file}")
    expected = (str(file), "store format 99", f"Koguma {__version__}", "start 7.0.0 or a later one")
    assert [words for words in expected if words not in str(refusal.value)] == []


async def test_tables_that_a_newer_release_has_added_are_no_reason_to_refuse(tmp_path) -> None:
    file = tmp_path / "store.db"
    await (await open_store(f"sqlite:///{file}")).close()
    with sqlite3.connect(file) as db:
        db.execute("INSERT INTO schema_version VALUES (99, 'from_the_future')")
        db.execute("DROP TABLE store_format")  # as in a store from before there was one
    db.close()
    await (await open_store(f"sqlite:///{file}")).close()
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT format, needs FROM store_format").fetchall() == [(FORMAT, SINCE)]
    db.close()


async def test_a_question_that_is_cancelled_does_not_harm_the_next(tmp_path) -> None:
    log = SqliteLog(tmp_path / "store.db")
    await log.open()
    question = asyncio.ensure_future(log.load())
    await asyncio.sleep(0)
    question.cancel()
    assert (await log.load()).revision == 0
    await log.close()
    await log.close()
