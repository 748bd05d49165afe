"""Incremental: the engine that memoises pure functions and recomputes only what a change affects.

A *question* is a pure function of a `Db` and some arguments. Its answer is memoised (a *memo*), and every
read that it makes, of an input or of another question, is recorded by the engine; nobody declares a cache
key.

    @question
    def labels(db: Db, name: str) -> Labels | None:     # called as labels(db, "web")
        proxy = PROXIES.get(db, name)                   # an Input; see inputs.py
        return proxy and proxy.labels

    watcher = Watcher(db)
    watcher.watch(labels, "web")                        # from now on, report when the answer changes
    db.set(PROXIES, "web", Proxy(...))
    watcher.changed()                                   # [QuestionCall(labels, ("web",))]

**Watchers.** Each `Watcher` has its own questions, and is told of changes independently of other watchers.
`Db.watch` and `Db.changed` use a watcher of the database itself, for a single user. `Db.keep` keeps an answer
up to date without reporting changes.

**Propagation.** The readable parts of inputs (cells) and the memos are nodes of an acyclic graph; each knows
its readers, and a memo stands higher than all that it reads (graph.py). Setting an input marks the direct
readers of the touched cells *stale*, and no others. `changed()` runs the stale memos, lowest first. An answer
that equals (`==`) the former one stops the propagation there: its readers are not visited. A changed answer
marks its direct readers stale. So the work follows the answers that really differ, never the number of memos.
Lowest first means that what a question reads is up to date before it runs, and that it runs once.

**Asking before `changed()`**, or reading something higher during a propagation. A memo that is not stale is
up to date if nothing stale is lower. Otherwise it is *verified*: its reads are brought up to date in the
order in which they were read, and if one has changed, the question runs. That is Salsa's verification. Here
it is the exception, and visits only what lies below the memo that is asked for.

**Unobserved memos.** `changed()` runs only what watched questions read, directly or not. Other affected memos
are marked as doubtful, and are verified when they are asked for.

**Memory.** A memo lives while it is watched, or read by another; one that was only asked from outside lives
until `collect()`, or until `collect_unused()` finds that nobody has asked it again. A dropped memo releases
what it read.

**When a question raises**, the error is its answer: kept, compared (type, arguments, attributes), and raised
for each reader, who may catch it. A question that needs its own answer is a bug: it, and all that read it,
answer with a `CycleError`, which no question can catch (answers.py). What is raised and is no `Exception` is
no answer: it passes through, and the question remains unanswered.

**Depth.** A first answer nests as its questions do, at most `DEPTH_MAX` deep, so that Python's own limit is
not hit at an arbitrary place. Beyond that the outermost question answers with a RecursionError; ask the inner
ones before it where a chain can be longer. The propagation of `changed()` does not nest.

**Assumptions.** Questions are pure, values are immutable, and equal means `==` (so 1, 1.0 and True are one
answer). A question may be run for a reader that then no longer asks it; being pure, it does no harm.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from koguma.core.answers import Circular, CycleError, Raised, same
from koguma.core.graph import SETTLED, STALE, Graph, GraphNode, Memo
from koguma.core.inputs import Input, InputChange, InputTable, K, V

DEPTH_MAX: Final = 100  # a question takes three Python frames and its own; Python's limit is 1000 frames
_ONE_PARAMETER: Final = [(inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty)]  # required

_Frame = dict[GraphNode, None]  # what a question has read so far, in order
P = ParamSpec("P")
R = TypeVar("R")


class Question(Generic[P, R]):
    """A pure function whose answers are memoised. Its name is `module.function`, as callers write it."""

    def __init__(self, function: Callable[Concatenate["Db", P], R]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        _db, *others = inspect.signature(function).parameters.values()
        self.takes_one = [(each.kind, each.default) for each in others] == _ONE_PARAMETER

    def __call__(self, db: "Db", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer."""
        if kwargs:
            self.refuse(kwargs)
        return db.ask(self, args)

    def __repr__(self) -> str:
        return self.name

    def key_of(self, args: tuple[Any, ...]) -> Any:
        """The key of a memo: the arguments; of a question with one argument that itself, to save a tuple."""
        if not self.takes_one:
            return args
        (key,) = args
        return key

    def args_of(self, key: Any) -> tuple[Any, ...]:
        """The arguments of the memo with this key."""
        return (key,) if self.takes_one else key

    def refuse(self, named: Mapping[str, object]) -> None:
        """Raise for keyword arguments: each answer must have one key."""
        if named:
            raise TypeError(f"{self.name}: give {', '.join(named)} by position; a question takes no names")


def question(function: Callable[Concatenate["Db", P], R]) -> Question[P, R]:
    """Make a pure function a question: called as before, run only where something that it read changed."""
    return Question(function)


class QuestionCall(NamedTuple):
    """A question with its arguments."""

    question: Question[..., Any]
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.question.name}({', '.join(map(str, self.args))})"


class Db:
    """Inputs, and the answers that follow from them. Not thread-safe. `runs` counts what ran, by name."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self._tables: dict[Input[Any, Any], InputTable] = {}
        self._memos: dict[Question[..., Any], dict[Any, Memo]] = {}  # by key
        self._graph = Graph()
        self._watchers: dict[Memo, tuple[Watcher, ...]] = {}
        self._kept: set[Memo] = set()
        self._own_watcher: Watcher | None = None
        self._running: dict[Memo, _Frame] = {}  # memos whose question runs, innermost last
        self._frame: _Frame | None = None  # of the innermost

    # For users of the engine.

    def set(self, table: Input[K, V], key: K, row: V) -> None:
        """Write a row of an input."""
        self._put(table, key, row)

    def remove(self, table: Input[K, V], key: K) -> None:
        """Remove a row of an input, if it is there."""
        self._put(table, key, None)

    @contextmanager
    def change(self) -> Iterator[InputChange]:
        """Collect edits and apply them together at the end; none of them if the block raises."""
        change = InputChange()
        yield change
        for (table, key), row in change.edits.items():
            self._put(table, key, row)

    def watch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """`Watcher.watch`, for a single user of the database."""
        self._watcher().watch(question, *args, **kwargs)

    def unwatch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """`Watcher.unwatch`, for a single user of the database."""
        self._watcher().unwatch(question, *args, **kwargs)

    def changed(self) -> list[QuestionCall]:
        """`Watcher.changed`, for a single user of the database."""
        return self._watcher().changed()

    def keep(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer this, and keep the answer up to date from now on, without reporting its changes."""
        question.refuse(kwargs)
        self._kept.add(self.hold(question, args))

    def keeps(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether the answer to this is kept up to date."""
        question.refuse(kwargs)
        return self.memo_of(question, args) in self._kept

    def settle_below(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Bring all watched and kept answers up to date that stand lower than this one, if it was asked.

        Whoever asks it then need not verify what it has read, of which most has not changed.
        """
        question.refuse(kwargs)
        memo = self.memo_of(question, args)
        if memo is not None:
            self.settle(memo.height - 1)

    # For watchers.

    def hold(self, question: Question[..., Any], args: tuple[Any, ...]) -> Memo:
        """Answer this, and keep it up to date."""
        self._refuse_inside_question()
        memo = self._memo(question, question.key_of(args))
        try:
            if not self._graph.is_up_to_date(memo):
                self._refresh(memo)
            self._graph.hold(memo)
        finally:
            self._graph.sweep()
        return memo

    def add_watcher(self, memo: Memo, watcher: "Watcher") -> None:
        """Notify a watcher when a held answer changes."""
        self._watchers[memo] = (*self._watchers.get(memo, ()), watcher)

    def memo_of(self, question: Question[..., Any], args: tuple[Any, ...]) -> Memo | None:
        """The memo of a question, if there is one."""
        self._refuse_inside_question()
        return self._memos.get(question, {}).get(question.key_of(args))

    def remove_watcher(self, memo: Memo, watcher: "Watcher") -> None:
        """Stop notifying a watcher; what nothing else watches, keeps or reads is dropped."""
        others = tuple(other for other in self._watchers.pop(memo) if other is not watcher)
        if others:
            self._watchers[memo] = others
        elif memo not in self._kept:
            self._graph.release(memo)
            self._graph.sweep()

    def settle(self, height_max: int = SETTLED) -> None:
        """Bring all watched and kept answers up to a height up to date, and notify their watchers."""
        self._refuse_inside_question()
        while (memo := self._graph.next_stale(height_max)) is not None:
            self._refresh(memo)
        self._graph.sweep()

    # Maintenance.

    def collect(self) -> None:
        """Drop the answers that were only asked from outside."""
        self._refuse_inside_question()
        self._graph.collect()

    def collect_unused(self) -> None:
        """Drop those that were not asked again since the last call."""
        self._refuse_inside_question()
        self._graph.collect_unused()

    def reset_counts(self) -> None:
        """Set the counts of what ran to zero."""
        self.runs.clear()

    @property
    def n_memos(self) -> int:
        """How many answers are kept."""
        return sum(map(len, self._memos.values()))

    @property
    def n_cells(self) -> int:
        """How many cells of inputs are recorded."""
        return sum(table.n_cells for table in self._tables.values())

    # Reading; called by Question, Input and Index.

    def ask(self, question: Question[..., R], args: tuple[Any, ...]) -> R:
        """The answer; memoised where it is up to date."""
        # The hottest path of the engine, so `key_of` and `Graph.is_up_to_date` are inlined.
        key: Any = args
        if question.takes_one:
            (key,) = args
        try:
            memo = self._memos[question][key]
        except KeyError:
            memo = self._memo(question, key)
        graph = self._graph
        if memo.verified_at < 0 or (memo.height > graph.level and memo.verified_at != graph.epoch):
            try:
                self._refresh(memo)
            finally:
                if not self._running:
                    graph.sweep()
        frame = self._frame
        if frame is not None:
            frame[memo] = None
        answer = memo.answer
        if answer.__class__ is Raised:
            answer.throw(inside=frame is not None)
        return answer  # type: ignore[no-any-return]  # what this question's function returned

    def table(self, of: Input[Any, Any]) -> InputTable:
        """The rows of an input."""
        table = self._tables.get(of)
        if table is None:
            table = self._tables[of] = InputTable()
        return table

    def record(self, cells: dict[Any, GraphNode], key: Any) -> None:
        """Record that the running question reads this cell."""
        frame = self._frame
        if frame is not None:
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = GraphNode(cells, key)
            frame[cell] = None

    # Internals.

    def _watcher(self) -> "Watcher":
        if self._own_watcher is None:
            self._own_watcher = Watcher(self)
        return self._own_watcher

    def _put(self, table: Input[Any, Any], key: Any, row: Any) -> None:
        self._refuse_inside_question()
        self._graph.epoch += 1
        for cell in self.table(table).put(key, row):
            self._graph.touch(cell)

    def _memo(self, question: Question[..., Any], key: Any) -> Memo:
        home = self._memos.setdefault(question, {})
        memo = home.get(key)
        if memo is None:
            memo = home[key] = Memo(home, key, question)
            if not self._running:
                self._graph.asked_outside[memo] = None
        return memo

    def _refresh(self, memo: Memo) -> None:
        """Bring an answer up to date: run the question, unless none of its reads has changed."""
        if memo in self._running:
            raise self._cycle(memo)
        asker, frame = self._frame, self._enter(memo)
        try:
            try:
                if self._verify(memo, frame):
                    self._graph.mark_verified(memo)
                    return
                question: Question[..., Any] = memo.of
                self.runs[question.name] += 1
                answer = question.function(self, *question.args_of(memo.key))
            except Circular as circular:
                answer = Raised(circular.error)
            except Exception as error:
                if isinstance(error, RecursionError) and asker is not None:
                    raise  # only the outermost question is too deep: asked alone, inner ones have an answer
                answer = Raised(error)
            is_changed = not same(answer, memo.answer)
        except BaseException:
            self._abandon(memo, frame, asker)
            raise
        finally:
            del self._running[memo]
            self._frame = asker
        self._graph.link(memo, frame)
        self._graph.mark_verified(memo)
        if is_changed:
            before, memo.answer = memo.answer, answer
            self._graph.touch(memo)
            for watcher in self._watchers.get(memo, ()):
                watcher.notify(memo, before)

    def _enter(self, memo: Memo) -> _Frame:
        if len(self._running) >= DEPTH_MAX:
            self._graph.orphans[memo] = None
            inner = f"{_asked(memo)}, asked by {self._innermost()}"
            raise RecursionError(f"more than {DEPTH_MAX} questions deep: {inner}; ask the inner ones first")
        frame: _Frame = {}
        self._running[memo] = self._frame = frame
        return frame

    def _verify(self, memo: Memo, frame: _Frame) -> bool:
        """Whether no read has changed. A memo on a cycle has also reads of the others, so it runs again."""
        if memo in self._graph.on_cycle:
            del self._graph.on_cycle[memo]
            return False
        for read in memo.reads:
            if memo.verified_at == STALE:
                break
            if isinstance(read, Memo) and not self._graph.is_up_to_date(read):
                self._refresh(read)
            frame[read] = None
        return memo.verified_at != STALE

    def _cycle(self, memo: Memo) -> Circular:
        """The error of a memo that is asked for while its question runs.

        All memos on the cycle get it as their answer, and depend on what any of them has read.
        """
        cycle = [*self._running.items()][[*self._running].index(memo) :]
        reads = {read: None for _, frame in cycle for read in frame}
        for member, frame in cycle:
            frame.update(reads)
            self._graph.on_cycle[member] = None
        return Circular(CycleError([str(_asked(member)) for member, _ in cycle]))

    def _abandon(self, memo: Memo, frame: _Frame, asker: _Frame | None) -> None:
        """A run was aborted: queue the memo again if it is needed. Its asker depends on what it has read."""
        if asker is not None:
            asker.update(frame)
        self._graph.orphans |= frame
        self._graph.orphans[memo] = None
        memo.verified_at = STALE
        if self._graph.is_needed(memo):
            self._graph.queue(memo)

    def _refuse_inside_question(self) -> None:
        if self._running:
            raise RuntimeError(f"{self._innermost()}: a question must not change, watch or collect")

    def _innermost(self) -> QuestionCall:
        return _asked(next(reversed(self._running)))


class Watcher:
    """The questions that one part of the program watches, and which of their answers have changed."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._n_watched = 0
        # In which order they were watched, and the answer that was last reported.
        self._reported: dict[Memo, tuple[int, Any]] = {}
        # Changed since; whether the answer is known to differ from the one that was last reported.
        self._pending: dict[Memo, bool] = {}

    def watch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer this, keep it up to date, and let `changed` report when the answer differs from now."""
        question.refuse(kwargs)
        memo = self._db.hold(question, args)
        if memo not in self._reported:
            self._db.add_watcher(memo, self)
            self._reported[memo] = self._n_watched, memo.answer
            self._n_watched += 1

    def unwatch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Stop watching, and drop what nothing needs any more."""
        question.refuse(kwargs)
        memo = self._db.memo_of(question, args)
        if memo is not None and memo in self._reported:
            self._db.remove_watcher(memo, self)
            del self._reported[memo]
            self._pending.pop(memo, None)

    def changed(self) -> list[QuestionCall]:
        """The watched questions whose answer differs from the last reported one, in the order of watching."""
        self._db.settle()
        return self._changed()

    def changed_alone(self) -> list[QuestionCall]:
        """The same, without bringing answers up to date that stand higher than all that is watched here.

        So whoever sets inputs that follow from other inputs does not run the rest twice.
        """
        height = -1
        while height != (height := max((memo.height for memo in self._reported), default=0)):
            self._db.settle(height)  # a question that runs may come to stand higher
        return self._changed()

    def _changed(self) -> list[QuestionCall]:
        reported = self._reported
        changed = [
            memo
            for memo, differs in self._pending.items()
            if differs or not same(memo.answer, reported[memo][1])
        ]
        self._pending.clear()
        for memo in changed:
            reported[memo] = reported[memo][0], memo.answer
        return [_asked(memo) for memo in sorted(changed, key=lambda memo: reported[memo][0])]

    def notify(self, memo: Memo, before: Any) -> None:
        """Called by the database: a watched question has another answer than `before`."""
        self._pending[memo] = before is self._reported[memo][1]


def _asked(memo: Memo) -> QuestionCall:
    return QuestionCall(memo.of, memo.of.args_of(memo.key))
