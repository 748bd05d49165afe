"""Migrations: bring the tables of a database to the newest schema, and never back.

A migration is a numbered file of plain SQL per dialect. The table `schema_version` lists those that ran; a
number is written in the same transaction as the migration itself. Whether a release can use a store that a
newer one has migrated is said by `store_format`.
"""

import re
from collections.abc import Iterator
from importlib import resources

import msgspec

VERSIONS_TABLE = """
CREATE TABLE IF NOT EXISTS schema_version (
    version BIGINT PRIMARY KEY,
    name    TEXT NOT NULL
)
"""
NEWEST = "SELECT max(version) FROM schema_version"

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True, order=True):
    """One migration."""

    version: int
    name: str
    statements: tuple[str, ...]


def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect (`sqlite` or `postgres`), in order."""
    return tuple(sorted(_read(dialect)))


def pending(dialect: str, version: int | None) -> tuple[Migration, ...]:
    """The migrations that a database still needs; none where a newer release has run more than we know."""
    known = migrations(dialect)
    return tuple(migration for migration in known if version is None or migration.version > version)


def _read(dialect: str) -> Iterator[Migration]:
    folder = resources.files("koguma.store").joinpath("migrations", dialect)
    for file in folder.iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            yield Migration(int(match[1]), match[2], statements)
