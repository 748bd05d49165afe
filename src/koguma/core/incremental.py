"""The incremental engine: inputs are set, questions are asked, and a change costs only what it touches.

A *question* is a pure function of a `Db` and some arguments. Its answer is kept (a *memo*), and every read
that it makes, of an input or of another question, is recorded by the engine; nobody declares a cache key.

    @question
    def labels(db: Db, name: str) -> Labels | None:     # called as labels(db, "web")
        proxy = PROXIES.get(db, name)                   # an Input; see inputs.py
        return proxy and proxy.labels

    watcher = Watcher(db)
    watcher.watch(labels, "web")                        # from now on, tell when the answer is another one
    db.set(PROXIES, "web", Proxy(...))
    watcher.changed()                                   # [Asked(labels, ("web",))]

**Who is told.** Each `Watcher` has its own questions and its own news: what one is told, or does, takes
nothing from another. `Db.watch` and `Db.changed` are a watcher that the database has itself, for who has the
database alone. `Db.keep` only keeps an answer up to date, and tells nobody.

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
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from koguma.core.answers import Circular, CycleError, Raised, same
from koguma.core.graph import STALE, Graph, GraphNode, Memo
from koguma.core.inputs import Input, InputChange, InputTable, K, V

DEPTH_MAX: Final = 100  # each takes three calls of Python and those of the question; Python allows 1000
ONE: Final = [(inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty)]  # one, always given

_Frame = dict[GraphNode, None]  # what a question has read so far, in order
P = ParamSpec("P")
R = TypeVar("R")


class Question(Generic[P, R]):
    """A pure function whose answers are kept. Its name is `module.function`, as callers write it."""

    def __init__(self, function: Callable[Concatenate["Db", P], R]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        _db, *others = inspect.signature(function).parameters.values()
        self.takes_one = [(each.kind, each.default) for each in others] == ONE

    def __call__(self, db: "Db", /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer."""
        if kwargs:
            self.refuse(kwargs)
        return db.ask(self, args)

    def __repr__(self) -> str:
        return self.name

    def key_of(self, args: tuple[Any, ...]) -> Any:
        """By what a memo is found: most questions' only argument, without the room of a tuple around it."""
        if not self.takes_one:
            return args
        (key,) = args
        return key

    def args_of(self, key: Any) -> tuple[Any, ...]:
        """The arguments of a memo that is found by this."""
        return (key,) if self.takes_one else key

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
        self._tables: dict[Input[Any, Any], InputTable] = {}
        self._memos: dict[Question[..., Any], dict[Any, Memo]] = {}  # by key
        self._graph = Graph()
        self._watchers: dict[Memo, tuple[Watcher, ...]] = {}
        self._kept: set[Memo] = set()
        self._own_watcher: Watcher | None = None
        self._making: dict[Memo, _Frame] = {}  # whose question runs, innermost last
        self._frame: _Frame | None = None  # that of the innermost

    # What happens from outside.

    def set(self, table: Input[K, V], key: K, row: V) -> None:
        """Write a row of an input."""
        self._put(table, key, row)

    def remove(self, table: Input[K, V], key: K) -> None:
        """Take a row of an input out, if it is there."""
        self._put(table, key, None)

    @contextmanager
    def change(self) -> Iterator[InputChange]:
        """Collect edits and apply them together at the end; none of them if the block raises."""
        change = InputChange()
        yield change
        for (table, key), row in change.edits.items():
            self._put(table, key, row)

    def watch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """`Watcher.watch`, for who has the database alone."""
        self._watcher().watch(question, *args, **kwargs)

    def unwatch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """`Watcher.unwatch`, for who has the database alone."""
        self._watcher().unwatch(question, *args, **kwargs)

    def changed(self) -> list[Asked]:
        """`Watcher.changed`, for who has the database alone."""
        return self._watcher().changed()

    def keep(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer this, and keep the answer up to date from now on, as a watched one is; nobody is told."""
        question.refuse(kwargs)
        self._kept.add(self.hold(question, args))

    # For watchers.

    def hold(self, question: Question[..., Any], args: tuple[Any, ...]) -> Memo:
        """Answer this, and keep it up to date."""
        self._must_be_outside()
        memo = self._memo(question, question.key_of(args))
        try:
            if not self._graph.is_true(memo):
                self._refresh(memo)
            self._graph.hold(memo)
        finally:
            self._graph.sweep()
        return memo

    def tell(self, memo: Memo, watcher: "Watcher") -> None:
        """Let a watcher note when a held answer is another one."""
        self._watchers[memo] = (*self._watchers.get(memo, ()), watcher)

    def memo_of(self, question: Question[..., Any], args: tuple[Any, ...]) -> Memo | None:
        """What is kept for a question, if anything is."""
        self._must_be_outside()
        return self._memos.get(question, {}).get(question.key_of(args))

    def let_go(self, memo: Memo, watcher: "Watcher") -> None:
        """A watcher stops; what nobody else watches, keeps or reads is dropped."""
        others = tuple(other for other in self._watchers.pop(memo) if other is not watcher)
        if others:
            self._watchers[memo] = others
        elif memo not in self._kept:
            self._graph.release(memo)
            self._graph.sweep()

    def settle(self) -> None:
        """Make true what is watched or kept, by whomever; each watcher notes its own news."""
        self._must_be_outside()
        while (memo := self._graph.next_stale()) is not None:
            self._refresh(memo)
        self._graph.sweep()

    # Other things from outside.

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
        return sum(map(len, self._memos.values()))

    @property
    def n_cells(self) -> int:
        """How many different reads of inputs are remembered."""
        return sum(table.n_cells for table in self._tables.values())

    # Reading. Question, Input and Index stand before these.

    def ask(self, question: Question[..., R], args: tuple[Any, ...]) -> R:
        """The answer; from memory where it is true."""
        # Most calls end here, so `key_of` and `Graph.is_true` are written out.
        key: Any = args
        if question.takes_one:
            (key,) = args
        try:
            memo = self._memos[question][key]
        except KeyError:
            memo = self._memo(question, key)
        graph = self._graph
        if memo.true_at < 0 or (memo.height > graph.level and memo.true_at != graph.epoch):
            try:
                self._refresh(memo)
            finally:
                if not self._making:
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
        """Remember that the running question reads this cell."""
        frame = self._frame
        if frame is not None:
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = GraphNode(cells, key)
            frame[cell] = None

    # Inside.

    def _watcher(self) -> "Watcher":
        if self._own_watcher is None:
            self._own_watcher = Watcher(self)
        return self._own_watcher

    def _put(self, table: Input[Any, Any], key: Any, row: Any) -> None:
        self._must_be_outside()
        self._graph.epoch += 1
        for cell in self.table(table).put(key, row):
            self._graph.touch(cell)

    def _memo(self, question: Question[..., Any], key: Any) -> Memo:
        home = self._memos.setdefault(question, {})
        memo = home.get(key)
        if memo is None:
            memo = home[key] = Memo(home, key, question)
            if not self._making:
                self._graph.loose[memo] = None
        return memo

    def _refresh(self, memo: Memo) -> None:
        """Make an answer true: run the question, unless a replay of its reads finds nothing new."""
        if memo in self._making:
            raise self._circle(memo)
        asker, frame = self._frame, self._enter(memo)
        try:
            try:
                if self._replay(memo, frame):
                    self._graph.found_true(memo)
                    return
                question: Question[..., Any] = memo.of
                self.runs[question.name] += 1
                answer = question.function(self, *question.args_of(memo.key))
            except Circular as circular:
                answer = Raised(circular.error)
            except Exception as error:
                if isinstance(error, RecursionError) and asker is not None:
                    raise  # the inner ones are not to blame: asked by themselves, they have an answer
                answer = Raised(error)
            is_news = not same(answer, memo.answer)
        except BaseException:
            self._give_up(memo, frame, asker)
            raise
        finally:
            del self._making[memo]
            self._frame = asker
        self._graph.link(memo, frame)
        self._graph.found_true(memo)
        if is_news:
            before, memo.answer = memo.answer, answer
            self._graph.touch(memo)
            for watcher in self._watchers.get(memo, ()):
                watcher.note(memo, before)

    def _enter(self, memo: Memo) -> _Frame:
        if len(self._making) >= DEPTH_MAX:
            self._graph.orphans[memo] = None
            inner = f"{_asked(memo)}, asked by {self._innermost()}"
            raise RecursionError(f"more than {DEPTH_MAX} questions deep: {inner}; ask the inner ones first")
        frame: _Frame = {}
        self._making[memo] = self._frame = frame
        return frame

    def _replay(self, memo: Memo, frame: _Frame) -> bool:
        """Whether all reads are as they were. One from a circle also has reads of others, so that it runs."""
        if memo in self._graph.circled:
            del self._graph.circled[memo]
            return False
        for read in memo.reads:
            if memo.true_at == STALE:
                break
            if isinstance(read, Memo) and not self._graph.is_true(read):
                self._refresh(read)
            frame[read] = None
        return memo.true_at != STALE

    def _circle(self, memo: Memo) -> Circular:
        """A memo is asked for while it is being made: all from it inwards fail for what all of them read."""
        circle = [*self._making.items()][[*self._making].index(memo) :]
        reads = {read: None for _, frame in circle for read in frame}
        for member, frame in circle:
            frame.update(reads)
            self._graph.circled[member] = None
        return Circular(CycleError([str(_asked(member)) for member, _ in circle]))

    def _give_up(self, memo: Memo, frame: _Frame, asker: _Frame | None) -> None:
        """A run was broken off: it remains to be done, if anyone needs it. Who asked depends on its reads."""
        if asker is not None:
            asker.update(frame)
        self._graph.orphans |= frame
        self._graph.orphans[memo] = None
        memo.true_at = STALE
        if self._graph.is_needed(memo):
            self._graph.queue(memo)

    def _must_be_outside(self) -> None:
        if self._making:
            raise RuntimeError(f"{self._innermost()}: a question must not change, watch or collect")

    def _innermost(self) -> Asked:
        return _asked(next(reversed(self._making)))


class Watcher:
    """The questions that one part of the program waits for, and which of them have another answer."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._n_watched = 0
        # In which order they were watched, and the answer that was last told.
        self._told: dict[Memo, tuple[int, Any]] = {}
        # Answered anew since; whether that is known to differ from what was last told.
        self._to_tell: dict[Memo, bool] = {}

    def watch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Answer this, keep it, and let `changed` tell when the answer is no longer what it is now."""
        question.refuse(kwargs)
        memo = self._db.hold(question, args)
        if memo not in self._told:
            self._db.tell(memo, self)
            self._told[memo] = self._n_watched, memo.answer
            self._n_watched += 1

    def unwatch(self, question: Question[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Stop watching, and drop what nothing reads any more."""
        question.refuse(kwargs)
        memo = self._db.memo_of(question, args)
        if memo is not None and memo in self._told:
            self._db.let_go(memo, self)
            del self._told[memo]
            self._to_tell.pop(memo, None)

    def changed(self) -> list[Asked]:
        """The watched questions with another answer than was last told, in the order of watching."""
        self._db.settle()
        told = self._told
        news = [
            memo for memo, differs in self._to_tell.items() if differs or not same(memo.answer, told[memo][1])
        ]
        self._to_tell.clear()
        for memo in news:
            told[memo] = told[memo][0], memo.answer
        return [_asked(memo) for memo in sorted(news, key=lambda memo: told[memo][0])]

    def note(self, memo: Memo, before: Any) -> None:
        """A watched question has another answer than `before`; the database calls this."""
        self._to_tell[memo] = before is self._told[memo][1]


def _asked(memo: Memo) -> Asked:
    return Asked(memo.of, memo.of.args_of(memo.key))
