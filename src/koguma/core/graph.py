"""Graph: the dependency graph of the incremental engine, and how far a change has been propagated.

A *cell* is one readable part of an input; a *memo* is the memoised answer of a question. Both know their
readers. A memo also knows its reads, and its height is greater than theirs. So stale memos that run
lowest first run once each.

A memo is *observed* if it is held from outside the engine, or read by an observed memo. Observed memos are
brought up to date after a change. The others are only marked as doubtful, and verified when they are asked
for.

The graph knows neither questions nor when answers are equal; incremental.py runs and compares. All
collections keep the order of insertion, so that equal histories run in equal order.
"""

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Final

SETTLED: Final = 1 << 60  # a level above all memos: nothing is stale
NEVER: Final = object()  # the answer of a question that was never asked; equals no other

# In place of the epoch in which an answer was last verified.
MAYBE: Final = -1  # something that it depends on may have changed
STALE: Final = -2  # something that it read directly has changed

FEW: Final = 16  # up to so many readers are kept in a tuple and searched linearly
HEIGHT: Final = attrgetter("height")


class GraphNode:
    """A cell, or a memo (the subclass). It is an entry of the dictionary `home` as long as it is needed."""

    __slots__ = ("_readers", "home", "key")
    height: int = 0  # cells stand lowest, and are always up to date

    def __init__(self, home: dict[Any, Any], key: Any) -> None:
        self.home = home
        self.key = key
        # There are many nodes, and most have few readers. A dictionary takes four times a tuple's memory.
        self._readers: Memo | tuple[Memo, ...] | dict[Memo, None] | None = None

    @property
    def readers(self) -> "Collection[Memo]":
        """The memos that read it, in order."""
        readers = self._readers
        if readers is None:
            return ()
        return (readers,) if isinstance(readers, Memo) else readers

    def add_reader(self, reader: "Memo") -> None:
        """Add a reader."""
        readers = self._readers
        if readers is None:
            self._readers = reader
        elif isinstance(readers, tuple):
            joined = readers + (reader,)  # noqa: RUF005 - unpacking takes half as long again, and this is frequent
            self._readers = joined if len(joined) <= FEW else dict.fromkeys(joined)
        elif isinstance(readers, dict):
            readers[reader] = None
        else:
            self._readers = (readers, reader)

    def remove_reader(self, reader: "Memo") -> None:
        """Remove a reader."""
        readers = self._readers
        if isinstance(readers, dict):
            del readers[reader]
            self._readers = readers or None
        elif isinstance(readers, tuple):
            index = readers.index(reader)
            rest = readers[:index] + readers[index + 1 :]
            self._readers = rest if len(rest) > 1 else rest[0]
        else:
            assert readers is reader
            self._readers = None


class Memo(GraphNode):
    """An answer and what it read. There are so many memos that each slot costs noticeable memory."""

    __slots__ = ("answer", "height", "n_observers", "of", "reads", "verified_at")

    def __init__(self, home: dict[Any, Any], key: Any, of: Any) -> None:
        super().__init__(home, key)
        self.of = of  # the question; the graph does not read it
        self.answer: Any = NEVER
        self.reads: tuple[GraphNode, ...] = ()
        self.height = 0
        self.verified_at = STALE  # the epoch in which it was last verified; or STALE, or MAYBE
        self.n_observers = 0


class Graph:
    """The stale memos by height, and the nodes that may no longer be needed."""

    def __init__(self) -> None:
        self.level = SETTLED  # the height of the lowest queued memo
        self.epoch = 0  # counts edits of inputs; what was verified in this epoch is up to date
        self.held: dict[GraphNode, None] = {}  # watched or kept from outside the engine
        self.asked_outside: dict[Memo, None] = {}  # first asked from outside; `collect` drops them
        self.on_cycle: dict[GraphNode, None] = {}  # were on a cycle when they last ran
        self.orphans: dict[GraphNode, None] = {}  # perhaps not needed; `sweep` checks them
        self._stale: dict[int, dict[Memo, None]] = {}  # by height
        self._heights: list[int] = []  # a heap of these heights

    def is_up_to_date(self, memo: Memo) -> bool:
        """Whether an answer is known to be up to date; if not, it is yet to be verified."""
        return memo.verified_at >= 0 and (memo.height <= self.level or memo.verified_at == self.epoch)

    def is_needed(self, node: GraphNode) -> bool:
        """Whether it has readers or is held."""
        return bool(node.readers) or node in self.held

    def touch(self, node: GraphNode) -> None:
        """A node has changed: queue its direct readers. Their readers follow only if these change too."""
        for reader in node.readers:
            if reader.verified_at != STALE:
                self.queue(reader)

    def queue(self, memo: Memo) -> None:
        """Mark a memo as stale, and queue it by height."""
        memo.verified_at = STALE
        height = memo.height
        if height not in self._stale:
            self._stale[height] = {}
            heappush(self._heights, height)
        self._stale[height][memo] = None
        self.level = min(self.level, height)

    def mark_verified(self, memo: Memo) -> None:
        """Mark a memo as up to date in this epoch."""
        if memo.verified_at < 0:
            self._unqueue(memo)
        memo.verified_at = self.epoch

    def next_stale(self, height_max: int = SETTLED) -> Memo | None:
        """Take an observed stale memo of the lowest height out of the queue; the caller refreshes it.

        None where nothing up to `height_max` is left.
        """
        self._find_level()
        while self._heights and self.level <= height_max:
            memo, _ = self._stale[self.level].popitem()
            if memo.n_observers:
                return memo
            self._mark_readers_doubtful(memo)
            self._find_level()
        return None

    def hold(self, memo: Memo) -> None:
        """Observe a memo that is up to date, until `release`."""
        if memo not in self.held:
            self.held[memo] = None
            self.asked_outside.pop(memo, None)
            self._observe([memo], 1)

    def release(self, memo: Memo) -> None:
        """Undo `hold`."""
        if memo in self.held:
            del self.held[memo]
            self._observe([memo], -1)
            self.orphans[memo] = None

    def link(self, memo: Memo, reads: dict[GraphNode, None]) -> None:
        """Replace the recorded reads of a memo."""
        old, memo.reads = memo.reads, tuple(reads)
        if old == memo.reads:
            return
        kept = reads.keys() & old
        gained = [node for node in reads if node not in kept] if kept else memo.reads
        lost = [node for node in old if node not in kept]
        for node in gained:
            node.add_reader(memo)
        if memo.n_observers:
            self._observe(gained, 1)
            self._observe(lost, -1)
        for node in lost:
            self._unlink(node, memo)
        self._lift(memo, 1 + max(map(HEIGHT, reads), default=0))

    def collect(self) -> None:
        """Drop the memos that were only asked from outside."""
        self.orphans |= dict.fromkeys(self.asked_outside)
        self.asked_outside.clear()
        self.sweep()

    def collect_unused(self) -> None:
        """Drop those of them that were not asked again since the last call; others become doubtful.

        So whoever asks one again verifies it, by which it is known to be in use.
        """
        asked, self.asked_outside = self.asked_outside, {}
        for memo in asked:
            if memo.verified_at >= 0 and not memo.n_observers:
                self.asked_outside[memo] = None
            else:
                self.orphans[memo] = None
        for memo in self.asked_outside:
            memo.verified_at = MAYBE
            self._mark_readers_doubtful(memo)
        self.sweep()

    def sweep(self) -> None:
        """Drop orphans that are not needed, and what only they had read. Never while a question runs."""
        while self.orphans:
            node, _ = self.orphans.popitem()
            if not self.is_needed(node):
                del node.home[node.key]
                self.on_cycle.pop(node, None)
                if isinstance(node, Memo):
                    self.asked_outside.pop(node, None)
                    self._unqueue(node)
                    for read in node.reads:
                        self._unlink(read, node)
        self._find_level()

    def _observe(self, nodes: Iterable[GraphNode], step: int) -> None:
        """Change the count of observers of memos, and of their reads where being observed starts or ends."""
        todo = [node for node in nodes if isinstance(node, Memo)]
        while todo:
            memo = todo.pop()
            before = memo.n_observers
            memo.n_observers += step
            if before == 0 or memo.n_observers == 0:
                todo += [read for read in memo.reads if isinstance(read, Memo)]

    def _mark_readers_doubtful(self, memo: Memo) -> None:
        """Mark all transitive readers of an unobserved memo as doubtful; none of them is observed either."""
        todo = [memo]
        while todo:
            for reader in todo.pop().readers:
                if reader.verified_at >= 0:
                    reader.verified_at = MAYBE
                    todo.append(reader)

    def _unlink(self, node: GraphNode, memo: Memo) -> None:
        node.remove_reader(memo)
        if not node.readers:
            self.orphans[node] = None

    def _lift(self, memo: Memo, height: int) -> None:
        """Keep readers higher than their reads. Heights never shrink, so this cost is paid once."""
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
