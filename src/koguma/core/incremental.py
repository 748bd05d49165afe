"""The incremental engine: inputs are set, questions are asked, and a change costs only what it touches.

A *question* is a pure function of a `Db` and some arguments. Its answer is kept (a *memo*), and every read
that it makes, of an input or of another question, is recorded by the engine; nobody declares a cache key.

    @question
    def labels(db: Db, name: str) -> Labels | None:     # called as labels(db, "web")
        proxy = PROXIES.get(db, name)                   # an Input; see inputs.py
        return proxy and proxy.labels

    db.watch(labels, "web")                             # from now on, tell when the answer is another one
    db.set(PROXIES, "web", Proxy(...))
    db.changed()                                        # [Asked(labels, ("web",))]

**How a change travels.** What can be read of inputs (cells) and memos are nodes of a graph without circles;
each knows its readers, and a memo stands higher than all that it reads (graph.py). Setting an input marks the
direct readers of the touched cells *stale*, and nobody else. `changed()` runs the stale memos, lowest first.
An answer that equals (`==`) the former one ends the wave there: whoever reads it is not even looked at. A new
answer marks its direct readers stale, and they wait for their turn. So the work follows the answers
that really differ, never the number of memos. Lowest first means that what a question reads again is
settled before it runs, and that it runs once.

**Asking before `changed()`**, or reading something higher while the wave is under way. A memo that is not
stale is true if nothing stale is lower. Otherwise its reads are *replayed*: each is made true in the order
in which it was read, and if one turns out different, the question runs. That is Salsa's verification. Here it
is the exception, and looks only at what lies below the memo that is asked for.

**For whom.** `changed()` runs only what watched questions read, directly or not. What was made for others is
marked as doubtful, and waits until it is asked for; then its reads are replayed, too.

**How memory is given back.** A memo lives while it is watched, or read by another; one that was only asked
from outside lives until `collect()`. A memo that goes releases what it read.

**When a question raises**, the error is its answer: kept, compared (type, arguments, attributes), and raised
for each reader, who may catch it. A question that needs its own answer is a bug: it, and all who ask for it,
answer with a `CycleError`, which no question can catch (answers.py). What is no `Exception` is no answer: it
passes through, and the question remains to be answered.

**How deep.** A first answer nests as its questions do, `DEPTH_MAX` at most, so that Python's own limit is not
met at random. Beyond that the outermost question answers with a RecursionError; ask the inner ones before it
where a chain can be longer. The wave of `changed()` does not nest, however long a chain is.

**What it trusts.** Questions are pure, values never change, and equal is `==` (so that 1, 1.0 and True are
one answer). A question may be run for a reader that then no longer asks it; being pure, it does no harm.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from koguma.core.answers import Circular, CycleError, Raised, same
from koguma.core.graph import STALE, Graph, Memo, Node
from koguma.core.inputs import Change, Input, K, Table, V

DEPTH_MAX: Final = (
    100  # each takes three calls of Python and those of the question itself; Python allows 1000
)

P = ParamSpec("P")
R = TypeVar("R")


class Question(Generic[P, R]):
    """A pure function whose answers are kept. Its name is `module.function`, as callers write it."""

    def __init__(self, function: Callable[Concatenate["Db", P], R]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    def __call__(self, db: "Db", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer."""
        if kwargs:
            self.refuse(kwargs)
        return db.ask(self, args)

    def __repr__(self) -> str:
        return self.name

    def refuse(self, named: Mapping[str, object]) -> None:
        """Arguments have one spelling, so that an answer has one memo."""
        if named:
            raise TypeError(f"{self.name}: give {', '.join(named)} by position; a question takes no names")


def question(function: Callable[Concatenate["Db", P], R]) -> Question[P, R]:
    """Make a pure function a question: called as before, answered from memory where nothing changed."""
    return Question(function)


class Asked(NamedTuple):
    """A question with its arguments."""

    question: Question[..., Any]
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.question.name}({', '.join(map(str, self.args))})"


class Db:
    """Inputs, and the answers that follow from them. For one thread; `runs` counts what ran, by name."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self._tables: dict[Input[Any, Any], Table] = {}
        self._memos: dict[tuple[Question[..., Any], tuple[Any, ...]], Memo] = {}
        self._n_made = 0
        self._graph = Graph()
        self._watched = self._graph.held  # with the answer that was last told
        self._to_tell: dict[Memo, None] = {}  # watched, and answered anew since
        self._stack: list[Memo] = []  # being made, innermost last
        self._frames: list[dict[Node, None]] = []  # what each of these has read so far

    # What happens from outside.

    def set(self, table: Input[K, V], key: K, row: V) -> None:
        """Write a row of an input."""
        self._put(table, key, row)

    def remove(self, table: Input[K, V], key: K) -> None:
        """Take a row of an input out, if it is there."""
        self._put(table, key, None)

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Collect edits and apply them together at the end; none of them if the block raises."""
        change = Change()
        yield change
        for (table, key), row in change.edits.items():
            self._put(table, key, row)

    def watch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer this, keep it, and let `changed` tell when the answer is no longer what it is now."""
        self._must_be_outside()
        question.refuse(kwargs)
        memo = self._memo(question, args)
        try:
            if not self._graph.is_true(memo):
                self._refresh(memo)
            self._graph.hold(memo, memo.answer)
        finally:
            self._graph.sweep()

    def unwatch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Stop watching, and drop what nothing reads any more."""
        self._must_be_outside()
        question.refuse(kwargs)
        memo = self._memos.get((question, args))
        if memo is not None:
            self._to_tell.pop(memo, None)
            self._graph.release(memo)
            self._graph.sweep()

    def changed(self) -> list[Asked]:
        """The watched questions with another answer than was last told, in the order of first asking."""
        self._must_be_outside()
        while (memo := self._graph.next_stale()) is not None:
            self._refresh(memo)
        self._graph.sweep()
        news = [memo for memo in self._to_tell if not same(memo.answer, self._watched[memo])]
        self._to_tell.clear()
        for memo in news:
            self._watched[memo] = memo.answer
        return [memo.key for memo in sorted(news, key=lambda memo: memo.number)]

    def collect(self) -> None:
        """Drop the answers that were only asked from outside."""
        self._must_be_outside()
        self._graph.collect()

    def reset_counts(self) -> None:
        """Count again from zero what runs."""
        self.runs.clear()

    @property
    def n_memos(self) -> int:
        """How many answers are kept."""
        return len(self._memos)

    @property
    def n_cells(self) -> int:
        """How many different reads of inputs are remembered."""
        return sum(table.n_cells for table in self._tables.values())

    # Reading. Question, Input and Index stand before these.

    def ask(self, question: Question[..., R], args: tuple[Any, ...]) -> R:
        """The answer; from memory where it is true."""
        memo = self._memos.get((question, args))
        graph = self._graph
        # The test is `Graph.is_true`, written out: most calls end here.
        if memo is None or memo.doubt or (memo.height > graph.level and memo.true_at != graph.epoch):
            memo = memo or self._memo(question, args)
            try:
                self._refresh(memo)
            finally:
                if not self._stack:
                    graph.sweep()
        if self._frames:
            self._frames[-1][memo] = None
        answer = memo.answer
        if answer.__class__ is Raised:
            answer.throw(inside=bool(self._stack))
        return answer  # type: ignore[no-any-return]  # what this question's function returned

    def table(self, of: Input[Any, Any]) -> Table:
        """The rows of an input."""
        table = self._tables.get(of)
        if table is None:
            table = self._tables[of] = Table()
        return table

    def record(self, cells: dict[Any, Node], key: Any) -> None:
        """Remember that the running question reads this cell."""
        if self._frames:
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Node(cells, key)
            self._frames[-1][cell] = None

    # Inside.

    def _put(self, table: Input[Any, Any], key: Any, row: Any) -> None:
        self._must_be_outside()
        self._graph.epoch += 1
        for cell in self.table(table).put(key, row):
            self._graph.touch(cell)

    def _memo(self, question: Question[..., Any], args: tuple[Any, ...]) -> Memo:
        memo = self._memos.get((question, args))
        if memo is None:
            key = Asked(question, args)
            memo = self._memos[key] = Memo(self._memos, key, self._n_made)
            self._n_made += 1
            if not self._stack:
                self._graph.loose[memo] = None
        return memo

    def _refresh(self, memo: Memo) -> None:
        """Make an answer true: run the question, unless a replay of its reads finds nothing new."""
        if memo.being_made:
            raise self._circle(memo)
        frame = self._enter(memo)
        try:
            try:
                if self._replay(memo, frame):
                    self._graph.found_true(memo)
                    return
                self.runs[memo.key.question.name] += 1
                answer = memo.key.question.function(self, *memo.key.args)
            except Circular as circular:
                answer = Raised(circular.error)
            except Exception as error:
                if isinstance(error, RecursionError) and len(self._stack) > 1:
                    raise  # the inner ones are not to blame: asked by themselves, they have an answer
                answer = Raised(error)
            is_news = not same(answer, memo.answer)
        except BaseException:
            self._give_up(memo, frame)
            raise
        finally:
            self._leave()
        self._graph.link(memo, frame)
        self._graph.found_true(memo)
        if is_news:
            memo.answer = answer
            self._graph.touch(memo)
            if memo in self._watched:
                self._to_tell[memo] = None

    def _enter(self, memo: Memo) -> dict[Node, None]:
        if len(self._stack) >= DEPTH_MAX:
            self._graph.orphans[memo] = None
            inner = f"{memo.key}, asked by {self._stack[-1].key}"
            raise RecursionError(f"more than {DEPTH_MAX} questions deep: {inner}; ask the inner ones first")
        frame: dict[Node, None] = {}
        self._stack.append(memo)
        self._frames.append(frame)
        memo.being_made = True
        return frame

    def _leave(self) -> None:
        self._stack.pop().being_made = False
        self._frames.pop()

    def _replay(self, memo: Memo, frame: dict[Node, None]) -> bool:
        """Whether all reads are as they were. One from a circle also has reads of others, so that it runs."""
        if memo.on_circle:
            memo.on_circle = False
            return False
        for read in memo.reads:
            if memo.doubt == STALE:
                break
            if isinstance(read, Memo) and not self._graph.is_true(read):
                self._refresh(read)
            frame[read] = None
        return memo.doubt != STALE

    def _circle(self, memo: Memo) -> Circular:
        """A memo is asked for while it is being made: all from it inwards fail for what all of them read."""
        start = self._stack.index(memo)
        reads = {read: None for frame in self._frames[start:] for read in frame}
        for frame in self._frames[start:]:
            frame.update(reads)
        for member in self._stack[start:]:
            member.on_circle = True
        return Circular(CycleError([str(member.key) for member in self._stack[start:]]))

    def _give_up(self, memo: Memo, frame: dict[Node, None]) -> None:
        """A run was broken off: it remains to be done, if anyone needs it. Who asked depends on its reads."""
        for frame_of_asker in self._frames[-2:-1]:
            frame_of_asker.update(frame)
        self._graph.orphans |= frame
        self._graph.orphans[memo] = None
        memo.doubt = STALE
        if self._graph.is_needed(memo):
            self._graph.queue(memo)

    def _must_be_outside(self) -> None:
        if self._stack:
            raise RuntimeError(f"{self._stack[-1].key}: a question must not change, watch or collect")
