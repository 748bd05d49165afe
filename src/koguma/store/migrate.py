"""Migrate: bring a database's tables to the form that this version reads, and never back.

A migration is a numbered file of plain SQL per dialect. Which ones ran is kept in the table
`schema_version`; the numbers are written in the same transaction as the change itself.
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
    """One step: its number, its name, and its statements."""

    version: int
    name: str
    statements: tuple[str, ...]


def migrations(dialect: str) -> tuple[Migration, ...]:
    """All steps of a dialect (`sqlite` or `postgres`), in their order."""
    return tuple(sorted(_read(dialect)))


def pending(dialect: str, version: int | None, where: str) -> tuple[Migration, ...]:
    """The steps that a database of this version still needs; refuses one that is newer than this code."""
    steps = migrations(dialect)
    known = steps[-1].version
    if version is not None and version > known:
        raise StoreUnusable(
            f"{where} has schema version {version}, and this Koguma knows versions up to {known}. A newer"
            " release wrote it: start that one or a later one, or restore a backup from before the upgrade"
        )
    return tuple(step for step in steps if version is None or step.version > version)


def _read(dialect: str) -> Iterator[Migration]:
    folder = resources.files("koguma.store").joinpath("migrations", dialect)
    for file in folder.iterdir():
        named = _FILE.fullmatch(file.name)
        if named:
            text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            yield Migration(int(named[1]), named[2], statements)
