"""Past queries: the SQL by which logs read their history, written once for all databases.

Values are always parameters, marked by `?`; `numbered` makes PostgreSQL's `$1` of them. What compaction may
remove is said here too, since it decides which questions about the past can still be answered: a change goes
when another one of its object, or its deletion, had superseded it before the boundary. So the objects as of
the boundary and of every later revision are always there.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from koguma.store.contract import Op
from koguma.store.row import Row

_KEY: Final = ("kind", "mesh", "zone", "namespace", "name")
_KEY_COLUMNS: Final = ", ".join(_KEY)
N_KEY: Final = len(_KEY)
_UNLIMITED: Final = 1_000_000_000  # rows

BOUNDS: Final = "SELECT revision, oldest, oldest_short FROM counter WHERE id = 1"
LAST_BEFORE: Final = (
    "SELECT revision FROM changes WHERE time < ? ORDER BY time DESC, revision DESC LIMIT 1"  # by the index
)
LAST_UNTIL: Final = "SELECT revision FROM changes WHERE time <= ? ORDER BY time DESC, revision DESC LIMIT 1"
RAISE_OLDEST: Final = "UPDATE counter SET oldest = ? WHERE id = 1 AND oldest < ?"
RAISE_OLDEST_SHORT: Final = "UPDATE counter SET oldest_short = ? WHERE id = 1 AND oldest_short < ?"


class HistoryBounds(NamedTuple):
    """The newest revision, and the oldest at which all objects are known; of some kinds a later one."""

    revision: int
    oldest: int
    oldest_short: int


class ChangeFilter(msgspec.Struct, frozen=True):
    """Which changes are asked for; an empty field means all."""

    author: str = ""
    without_authors: tuple[str, ...] = ()
    kind: str = ""
    mesh: str | None = None
    of_mesh: str = ""  # objects of this mesh, and the Mesh itself
    core_name: str = ""
    transaction: str = ""


class KindChoice(NamedTuple):
    """Objects of these kinds, or of all others."""

    kinds: tuple[str, ...]
    are_excluded: bool = False

    def includes(self, kind: str) -> bool:
        """Whether objects of a kind are meant."""
        return (kind in self.kinds) is not self.are_excluded


class PastQuery(NamedTuple):
    """A statement with its values."""

    text: str
    values: tuple[Any, ...]


def numbered(text: str) -> str:
    """The statement with PostgreSQL's markers."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", text)


# The statements are put together from fixed names. `body` is how a database reads that column, with its name
# as {}.
# ruff: noqa: S608


def changes(body: str, chosen: ChangeFilter, after: int, before: int, limit: int) -> PastQuery:
    """The changes between two revisions, both left out, newest first."""
    where = ["c.revision > ?", "c.revision < ?"]
    values: list[Any] = [after, before]
    for column, value in _wanted(chosen):
        where.append(f"c.{column} = ?")
        values.append(value)
    if chosen.of_mesh:
        where.append("(c.mesh = ? OR (c.kind = 'Mesh' AND c.core_name = ?))")
        values += (chosen.of_mesh, chosen.of_mesh)
    if chosen.without_authors:
        where.append(f"c.author NOT IN ({_marks(chosen.without_authors)})")
        values += chosen.without_authors
    conditions = " AND ".join(where)
    text = f"SELECT {_columns(body)} FROM changes c WHERE {conditions} ORDER BY c.revision DESC LIMIT ?"
    return PastQuery(text, (*values, limit))


def _wanted(chosen: ChangeFilter) -> Iterator[tuple[str, Any]]:
    yield from (("mesh", chosen.mesh),) if chosen.mesh is not None else ()
    texts = (
        ("author", chosen.author),
        ("kind", chosen.kind),
        ("core_name", chosen.core_name),
        ("transaction_id", chosen.transaction),
    )
    yield from ((column, text) for column, text in texts if text)


def as_of(
    body: str, revision: int, low: int, high: int, chosen: KindChoice, limit: int | None = None
) -> PastQuery:
    """The key of each object that changed after `low` and until `high`, and its last change at `revision`."""
    kinds, kind_values = _condition("kind", chosen)
    same = " AND ".join(f"n.{name} = k.{name}" for name in _KEY)
    text = (
        f"WITH k AS (SELECT {_KEY_COLUMNS} FROM changes WHERE revision > ? AND revision <= ? AND {kinds}"
        f" GROUP BY {_KEY_COLUMNS} ORDER BY {_KEY_COLUMNS} LIMIT ?)"
        f" SELECT {', '.join(f'k.{name}' for name in _KEY)}, {_columns(body)} FROM k LEFT JOIN changes c"
        f" ON c.revision = (SELECT max(n.revision) FROM changes n WHERE {same} AND n.revision <= ?)"
    )
    return PastQuery(text, (low, high, *kind_values, limit or _UNLIMITED, revision))


def superseded(select: str, boundary: int, chosen: KindChoice) -> PastQuery:
    """A statement about the changes that were superseded by the boundary, deletions included."""
    kinds, kind_values = _condition("c.kind", chosen)
    same = " AND ".join(f"n.{name} = c.{name}" for name in _KEY)
    text = (
        f"{select} WHERE c.revision <= ? AND {kinds} AND (c.op = '{Op.DELETE.value}' OR EXISTS (SELECT 1 FROM"
        f" changes n WHERE {same} AND n.revision > c.revision AND n.revision <= ?))"
    )
    return PastQuery(text, (boundary, *kind_values, boundary))


def _columns(body: str) -> str:
    return ", ".join(body.format("c.body") if name == "body" else f"c.{name}" for name in Row._fields)


def _condition(column: str, chosen: KindChoice) -> tuple[str, tuple[str, ...]]:
    if not chosen.kinds:
        return ("1 = 1" if chosen.are_excluded else "1 = 0"), ()
    word = "NOT IN" if chosen.are_excluded else "IN"
    return f"{column} {word} ({_marks(chosen.kinds)})", chosen.kinds


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
