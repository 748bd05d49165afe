"""Who read what: the nodes of the incremental engine, their readers, and how far a change has come.

A *cell* is something of an input that can be read; a *memo* is the kept answer of a question. Both know
their readers; a memo also knows its reads, and stands higher than all of them. That gives an order: whoever
takes stale memos lowest first never has to come back to one.

The graph knows neither questions nor what makes answers equal; incremental.py asks and compares. All its
collections keep the order of arrival, so that equal histories run equally.
"""

from heapq import heappop, heappush
from typing import Any, Final

SETTLED: Final = 1 << 60  # a level above all memos: nothing is stale
NEVER: Final = object()  # the answer of a question that was never asked; equals no other


class Node:
    """What can be read. While anybody needs it, it lies in the dictionary `home`. By itself it is a cell."""

    __slots__ = ("home", "key", "readers")
    height: int = 0  # cells are the ground, and what they hold is always true
    stale: bool = False

    def __init__(self, home: dict[Any, Any], key: Any) -> None:
        self.home = home
        self.key = key
        self.readers: dict[Memo, None] = {}


class Memo(Node):
    """An answer and what it was made of."""

    __slots__ = ("answer", "being_made", "height", "number", "on_circle", "reads", "stale", "true_at")

    def __init__(self, home: dict[Any, Any], key: Any, number: int) -> None:
        super().__init__(home, key)
        self.number = number  # in order of making
        self.answer: Any = NEVER
        self.reads: dict[Node, None] = {}
        self.height = 0
        self.stale = True  # something that it read directly is different now
        self.true_at = -1  # the epoch in which it was last found true
        self.being_made = False  # its question is running
        self.on_circle = False  # it was found to need its own answer


class Graph:
    """The readers, the stale memos by height, and the nodes that may have become useless."""

    def __init__(self) -> None:
        self.level = SETTLED  # no stale memo stands lower
        self.epoch = 0  # counts edits of inputs; what was found true in this one is still true
        self.held: dict[Node, Any] = {}  # needed from outside, whoever reads them
        self.loose: dict[Node, None] = {}  # first asked from outside; `collect` looks at them
        self.orphans: dict[Node, None] = {}  # perhaps useless; `sweep` looks at them
        self._stale: dict[int, dict[Memo, None]] = {}  # by height
        self._heights: list[int] = []  # a heap of these heights

    def is_true(self, memo: Memo) -> bool:
        """Whether nothing that a memo was made of can have changed; if not, that is still to be found out."""
        return not memo.stale and (memo.height <= self.level or memo.true_at == self.epoch)

    def is_needed(self, node: Node) -> bool:
        """Whether anybody would miss it."""
        return bool(node.readers) or node in self.held

    def touch(self, node: Node) -> None:
        """It is different now: its readers are stale. Their readers are not, until their turn has come."""
        for reader in node.readers:
            if not reader.stale:
                self.queue(reader)

    def queue(self, memo: Memo) -> None:
        """Count a memo as stale."""
        memo.stale = True
        height = memo.height
        if height not in self._stale:
            self._stale[height] = {}
            heappush(self._heights, height)
        self._stale[height][memo] = None
        self.level = min(self.level, height)

    def found_true(self, memo: Memo) -> None:
        """Count a memo as true."""
        if memo.stale:
            memo.stale = False
            self._unqueue(memo)
        memo.true_at = self.epoch

    def next_stale(self) -> Memo | None:
        """Take out a stale memo that someone needs, of the lowest there are; it is left to the caller."""
        self._find_level()
        while self._heights:
            memo, _ = self._stale[self.level].popitem()
            if self.is_needed(memo):
                return memo
            self.orphans[memo] = None
            self._find_level()
        return None

    def link(self, memo: Memo, reads: dict[Node, None]) -> None:
        """Exchange what a memo is known to have read."""
        old, memo.reads = memo.reads, reads
        if old.keys() == reads.keys():
            return
        height = 0
        for node in reads:
            height = max(height, node.height)
            if node not in old:
                node.readers[memo] = None
        for node in old:
            if node not in reads:
                self._unlink(node, memo)
        self._lift(memo, height + 1)

    def collect(self) -> None:
        """Drop what was only asked from outside."""
        self.orphans.update(self.loose)
        self.loose.clear()
        self.sweep()

    def sweep(self) -> None:
        """Drop the orphans that nobody needs, and what only they had read. Not while a question runs."""
        while self.orphans:
            node, _ = self.orphans.popitem()
            if not self.is_needed(node):
                del node.home[node.key]
                self.loose.pop(node, None)
                if isinstance(node, Memo):
                    self._unqueue(node)
                    for read in node.reads:
                        self._unlink(read, node)
        self._find_level()

    def _unlink(self, node: Node, memo: Memo) -> None:
        del node.readers[memo]
        if not node.readers:
            self.orphans[node] = None

    def _lift(self, memo: Memo, height: int) -> None:
        """Keep readers higher than their reads. Heights never sink, so that this is paid once."""
        todo = [(memo, height)]
        while todo:
            low, height = todo.pop()
            if height > low.height:
                was_queued = self._unqueue(low)
                low.height = height
                if was_queued:
                    self.queue(low)
                todo += [(reader, height + 1) for reader in low.readers]

    def _unqueue(self, memo: Memo) -> bool:
        same_height = self._stale.get(memo.height, {})
        if memo not in same_height:
            return False
        del same_height[memo]
        return True

    def _find_level(self) -> None:
        while self._heights and not self._stale[self._heights[0]]:
            del self._stale[heappop(self._heights)]
        self.level = self._heights[0] if self._heights else SETTLED
