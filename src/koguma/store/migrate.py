"""Migrations: bring the tables of a database to the newest schema, and never back.

A migration is a numbered file of plain SQL per dialect. The table `schema_version` lists those that ran; a
number is written in the same transaction as the migration itself.
"""

import re
from collections.abc import Iterator
from importlib import resources

import msgspec

from koguma.store.contract import StoreUnusable

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


def pending(dialect: str, version: int | None, where: str) -> tuple[Migration, ...]:
    """The migrations that a database still needs; StoreUnusable if it is newer than this code."""
    known_migrations = migrations(dialect)
    known = known_migrations[-1].version
    if version is not None and version > known:
        raise StoreUnusable(
            f"{where} has schema version {version}, and this Koguma knows versions up to {known}. A newer"
            " release wrote it: start that one or a later one, or restore a backup from before the upgrade"
        )
    return tuple(
        migration for migration in known_migrations if version is None or migration.version > version
    )


def _read(dialect: str) -> Iterator[Migration]:
    folder = resources.files("koguma.store").joinpath("migrations", dialect)
    for file in folder.iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            yield Migration(int(match[1]), match[2], statements)
