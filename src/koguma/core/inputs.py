"""Inputs of the incremental engine: tables of rows, read row by row, by key, or by group.

    PROXIES: Input[str, Proxy] = Input("proxies")       # names and types; the rows live in a Db
    BY_MESH = Index(PROXIES, lambda name, proxy: [proxy.mesh])

    PROXIES.get(db, "web")            # reads one row, present or not
    PROXIES.keys(db)                  # reads which keys there are
    PROXIES.items(db)                 # reads keys and rows
    BY_MESH.keys(db, "default")       # the same two, of one group
    BY_MESH.items(db, "default")
    BY_MESH.has(db, "default")        # reads whether the group has any row

Each of these reads is a *cell* of its own. An edit touches only the cells whose content changes: readers of
keys are not affected by an edited row, nor readers of one group by another. Keys come sorted, so that answers
do not depend on the order in which rows were written. Rows are frozen values, and never None.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from koguma.core.graph import GraphNode


class Ordered(Hashable, Protocol):
    """What can be a key: hashable and sortable."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)
V = TypeVar("V")
G = TypeVar("G", bound=Hashable)


class Reader(Protocol):
    """The part of the engine that inputs use."""

    def table(self, of: "Input[Any, Any]") -> "InputTable":
        """The rows of an input."""

    def record(self, cells: dict[Any, GraphNode], key: Any) -> None:
        """Record that the running question reads this cell."""


class Input(Generic[K, V]):
    """A table of inputs: its name, and the types of its keys and rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._all: Index[K, V, None] = Index(self, lambda _key, _row: (None,))

    def __repr__(self) -> str:
        return self.name

    def get(self, db: Reader, key: K) -> V | None:
        """The row of this key, or None."""
        table = db.table(self)
        db.record(table.cells, key)
        return table.rows.get(key)

    def keys(self, db: Reader) -> tuple[K, ...]:
        """All keys, sorted."""
        return self._all.keys(db, None)

    def items(self, db: Reader) -> tuple[tuple[K, V], ...]:
        """All keys with their rows, sorted by key."""
        return self._all.items(db, None)


class Index(Generic[K, V, G]):
    """Groups of a table's rows; `groups` says to which a row belongs, and must not raise.

    It costs nothing until it is first read; from then on an edit moves only the edited row.
    """

    def __init__(self, of: Input[K, V], groups: Callable[[K, V], Iterable[G]]) -> None:
        self.of = of
        self.groups = groups

    def keys(self, db: Reader, group: G) -> tuple[K, ...]:
        """The keys of a group, sorted."""
        groups = db.table(self.of).grouped(self)
        db.record(groups.key_cells, group)
        return groups.sorted_keys(group)

    def items(self, db: Reader, group: G) -> tuple[tuple[K, V], ...]:
        """The keys of a group with their rows, sorted by key."""
        table = db.table(self.of)
        groups = table.grouped(self)
        db.record(groups.item_cells, group)
        return tuple((key, table.rows[key]) for key in groups.sorted_keys(group))

    def has(self, db: Reader, group: G) -> bool:
        """Whether any row is in a group; does not change with the second one."""
        groups = db.table(self.of).grouped(self)
        db.record(groups.existence_cells, group)
        return group in groups.members


class InputChange:
    """Edits that belong together; of several edits of one row only the last one counts."""

    def __init__(self) -> None:
        self.edits: dict[tuple[Input[Any, Any], Any], Any] = {}

    def set(self, table: Input[K, V], key: K, row: V) -> None:
        """Write a row."""
        self.edits[table, key] = row

    def remove(self, table: Input[K, V], key: K) -> None:
        """Remove a row, if it is there."""
        self.edits[table, key] = None


class InputTable:
    """The rows of one input in one Db, the cells that were read, and the indexes that were read."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.cells: dict[Any, GraphNode] = {}
        self.indexes: dict[Index[Any, Any, Any], _Groups] = {}

    @property
    def n_cells(self) -> int:
        """How many cells are recorded."""
        return len(self.cells) + sum(each.n_cells for each in self.indexes.values())

    def grouped(self, index: Index[Any, Any, Any]) -> "_Groups":
        """The groups of an index, built when it is first read."""
        groups = self.indexes.get(index)
        if groups is None:
            groups = self.indexes[index] = _Groups()
            for key, row in self.rows.items():
                groups.join(key, index.groups(key, row))
        return groups

    def put(self, key: Any, row: Any) -> list[GraphNode]:
        """Write a row, or remove it where it is None; gives the cells whose content changed."""
        old = self.rows.get(key)
        if old == row:
            return []
        touched = [self.cells.get(key)]
        for index, groups in self.indexes.items():
            left, joined = (() if each is None else index.groups(key, each) for each in (old, row))
            touched += groups.move(key, dict.fromkeys(left), dict.fromkeys(joined))
        if row is None:
            del self.rows[key]
        else:
            self.rows[key] = row
        return [cell for cell in touched if cell is not None]


class _Groups:
    """The groups of one index: their members, and the cells that were read."""

    def __init__(self) -> None:
        self.members: dict[Any, set[Any]] = {}
        self.sorted: dict[Any, list[Any]] = {}  # of groups whose keys were read
        self.key_cells: dict[Any, GraphNode] = {}
        self.item_cells: dict[Any, GraphNode] = {}
        self.existence_cells: dict[Any, GraphNode] = {}

    @property
    def n_cells(self) -> int:
        """How many cells are recorded."""
        return len(self.key_cells) + len(self.item_cells) + len(self.existence_cells)

    def sorted_keys(self, group: Any) -> tuple[Any, ...]:
        """The keys in a group; sorted once, then each row is put in its place."""
        if group not in self.members:
            return ()
        if group not in self.sorted:
            self.sorted[group] = sorted(self.members[group])
        return tuple(self.sorted[group])

    def move(self, key: Any, old: dict[Any, None], new: dict[Any, None]) -> list[GraphNode | None]:
        """Move a row between groups; gives the cells that this touches."""
        left, joined = old.keys() - new.keys(), new.keys() - old.keys()
        existed = {group for group in joined if group in self.members}
        self.leave(key, left)
        self.join(key, joined)
        touched = [self.item_cells.get(group) for group in old | new]
        touched += [self.key_cells.get(group) for group in old | new if group in left or group in joined]
        ended = [group for group in old if group not in self.members]
        begun = [group for group in new if group in joined and group not in existed]
        return touched + [self.existence_cells.get(group) for group in (*ended, *begun)]

    def join(self, key: Any, groups: Iterable[Any]) -> None:
        """Put a row into groups."""
        for group in groups:
            self.members.setdefault(group, set()).add(key)
            if group in self.sorted:
                insort(self.sorted[group], key)

    def leave(self, key: Any, groups: Iterable[Any]) -> None:
        """Remove a row from groups; an empty group is dropped."""
        for group in groups:
            self.members[group].remove(key)
            if group in self.sorted:
                del self.sorted[group][bisect_left(self.sorted[group], key)]
            if not self.members[group]:
                del self.members[group]
                self.sorted.pop(group, None)
