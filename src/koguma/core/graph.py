"""Who read what: the nodes of the incremental engine, their readers, and how far a change has come.

A *cell* is something of an input that can be read; a *memo* is the kept answer of a question. Both know
their readers; a memo also knows its reads, and stands higher than all of them. That gives an order: whoever
takes stale memos lowest first never has to come back to one.

A memo is *observed* if it is held from outside, or read by one that is. Observed memos are kept true. Of the
others, a change only says that they may not be true any more; they are looked at when somebody asks.

The graph knows neither questions nor what makes answers equal; incremental.py asks and compares. All its
collections keep the order of arrival, so that equal histories run equally.
"""

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Final

SETTLED: Final = 1 << 60  # a level above all memos: nothing is stale
NEVER: Final = object()  # the answer of a question that was never asked; equals no other

# What is known against an answer, in place of the epoch in which it was found true.
MAYBE: Final = -1  # something that it depends on may have changed
STALE: Final = -2  # something that it read directly has changed

FEW: Final = 16  # among so many readers, one that leaves may be looked for
HEIGHT: Final = attrgetter("height")


class GraphNode:
    """What can be read. While anybody needs it, it lies in the dictionary `home`. By itself it is a cell."""

    __slots__ = ("_readers", "home", "key")
    height: int = 0  # cells are the ground, and what they hold is always true

    def __init__(self, home: dict[Any, Any], key: Any) -> None:
        self.home = home
        self.key = key
        # There are many nodes, and most have one reader or a few. A dictionary takes four times the room.
        self._readers: Memo | tuple[Memo, ...] | dict[Memo, None] | None = None

    @property
    def readers(self) -> "Collection[Memo]":
        """Who read it, in order."""
        found = self._readers
        if found is None:
            return ()
        return (found,) if isinstance(found, Memo) else found

    def gain(self, reader: "Memo") -> None:
        """Somebody reads it who did not."""
        found = self._readers
        if found is None:
            self._readers = reader
        elif isinstance(found, tuple):
            more = found + (reader,)  # noqa: RUF005 - unpacking takes half as long again, and this is frequent
            self._readers = more if len(more) <= FEW else dict.fromkeys(more)
        elif isinstance(found, dict):
            found[reader] = None
        else:
            self._readers = (found, reader)

    def lose(self, reader: "Memo") -> None:
        """Somebody reads it no longer."""
        found = self._readers
        if isinstance(found, dict):
            del found[reader]
            self._readers = found or None
        elif isinstance(found, tuple):
            place = found.index(reader)
            rest = found[:place] + found[place + 1 :]
            self._readers = rest if len(rest) > 1 else rest[0]
        else:
            assert found is reader
            self._readers = None


class Memo(GraphNode):
    """An answer and what it was made of. There are so many of them that each slot counts."""

    __slots__ = ("answer", "height", "n_observers", "of", "reads", "true_at")

    def __init__(self, home: dict[Any, Any], key: Any, of: Any) -> None:
        super().__init__(home, key)
        self.of = of  # whose answer it is; the graph does not look at it
        self.answer: Any = NEVER
        self.reads: tuple[GraphNode, ...] = ()
        self.height = 0
        self.true_at = STALE  # the epoch in which it was last found true, if nothing is known against it
        self.n_observers = 0


class Graph:
    """The readers, the stale memos by height, and the nodes that may have become useless."""

    def __init__(self) -> None:
        self.level = SETTLED  # no stale memo that waits for its turn stands lower
        self.epoch = 0  # counts edits of inputs; what was found true in this one is still true
        self.held: dict[GraphNode, None] = {}  # needed from outside, whoever reads them
        self.loose: dict[GraphNode, None] = {}  # first asked from outside; `collect` looks at them
        self.circled: dict[GraphNode, None] = {}  # were found to need their own answer
        self.orphans: dict[GraphNode, None] = {}  # perhaps useless; `sweep` looks at them
        self._stale: dict[int, dict[Memo, None]] = {}  # by height
        self._heights: list[int] = []  # a heap of these heights

    def is_true(self, memo: Memo) -> bool:
        """Whether nothing that a memo was made of can have changed; if not, that is still to be found out."""
        return memo.true_at >= 0 and (memo.height <= self.level or memo.true_at == self.epoch)

    def is_needed(self, node: GraphNode) -> bool:
        """Whether anybody would miss it."""
        return bool(node.readers) or node in self.held

    def touch(self, node: GraphNode) -> None:
        """It is different now: its readers are stale. Their readers are not, until their turn has come."""
        for reader in node.readers:
            if reader.true_at != STALE:
                self.queue(reader)

    def queue(self, memo: Memo) -> None:
        """Count a memo as stale, and let it wait for its turn."""
        memo.true_at = STALE
        height = memo.height
        if height not in self._stale:
            self._stale[height] = {}
            heappush(self._heights, height)
        self._stale[height][memo] = None
        self.level = min(self.level, height)

    def found_true(self, memo: Memo) -> None:
        """Count a memo as true."""
        if memo.true_at < 0:
            self._unqueue(memo)
        memo.true_at = self.epoch

    def next_stale(self) -> Memo | None:
        """Take out an observed stale memo, of the lowest there are; it is left to the caller."""
        self._find_level()
        while self._heights:
            memo, _ = self._stale[self.level].popitem()
            if memo.n_observers:
                return memo
            self._doubt_readers(memo)
            self._find_level()
        return None

    def hold(self, memo: Memo) -> None:
        """Observe a memo that is true, and keep it."""
        if memo not in self.held:
            self.held[memo] = None
            self.loose.pop(memo, None)
            self._observe([memo], 1)

    def release(self, memo: Memo) -> None:
        """Hold it no longer."""
        if memo in self.held:
            del self.held[memo]
            self._observe([memo], -1)
            self.orphans[memo] = None

    def link(self, memo: Memo, reads: dict[GraphNode, None]) -> None:
        """Exchange what a memo is known to have read."""
        old, memo.reads = memo.reads, tuple(reads)
        if old == memo.reads:
            return
        kept = reads.keys() & old
        gained = [node for node in reads if node not in kept] if kept else memo.reads
        lost = [node for node in old if node not in kept]
        for node in gained:
            node.gain(memo)
        if memo.n_observers:
            self._observe(gained, 1)
            self._observe(lost, -1)
        for node in lost:
            self._unlink(node, memo)
        self._lift(memo, 1 + max(map(HEIGHT, reads), default=0))

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
                self.circled.pop(node, None)
                if isinstance(node, Memo):
                    self._unqueue(node)
                    for read in node.reads:
                        self._unlink(read, node)
        self._find_level()

    def _observe(self, nodes: Iterable[GraphNode], step: int) -> None:
        """Give memos an observer more or less, and so on downwards where that makes a difference."""
        todo = [node for node in nodes if isinstance(node, Memo)]
        while todo:
            memo = todo.pop()
            before = memo.n_observers
            memo.n_observers += step
            if before == 0 or memo.n_observers == 0:
                todo += [read for read in memo.reads if isinstance(read, Memo)]

    def _doubt_readers(self, memo: Memo) -> None:
        """Nobody observes this, nor therefore what reads it: let all of it wait until it is asked for."""
        todo = [memo]
        while todo:
            for reader in todo.pop().readers:
                if reader.true_at >= 0:
                    reader.true_at = MAYBE
                    todo.append(reader)

    def _unlink(self, node: GraphNode, memo: Memo) -> None:
        node.lose(memo)
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
        same_height = self._stale.get(memo.height)
        if same_height is None or memo not in same_height:
            return False
        del same_height[memo]
        return True

    def _find_level(self) -> None:
        while self._heights and not self._stale[self._heights[0]]:
            del self._stale[heappop(self._heights)]
        self.level = self._heights[0] if self._heights else SETTLED
