"""The incremental engine: a story first, then one promise after the other.

The story. A mesh has proxies, which have labels, and timeouts, which select proxies by a label. What a proxy
gets is asked with three questions, each reading as little as it can:

    selected(proxy)   which timeouts select it: reads labels and selectors
    timeout(name)     how long one of them is: reads the policy
    config(proxy)     what the proxy gets: the shortest of what selects it

The tests that follow the story say, for one edit after the other, what ran again and what is reported.
The same at random is in test_incremental_histories.py.
"""

import contextlib
import gc
import itertools
import subprocess
import sys
import weakref

import msgspec
import pytest

from koguma.core import incremental
from koguma.core.answers import CycleError
from koguma.core.incremental import Db, QuestionCall, question
from koguma.core.inputs import Index, Input


class Proxy(msgspec.Struct, frozen=True):
    label: str
    address: str = "10.0.0.1"


class Timeout(msgspec.Struct, frozen=True):
    selects: str
    seconds: int


PROXIES: Input[str, Proxy] = Input("proxies")
TIMEOUTS: Input[str, Timeout] = Input("timeouts")
BY_LABEL = Index(TIMEOUTS, lambda _name, timeout: [timeout.selects])


@question
def label(db: Db, name: str) -> str:
    proxy = PROXIES.get(db, name)
    return proxy.label if proxy else ""


@question
def selected(db: Db, name: str) -> tuple[str, ...]:
    return BY_LABEL.keys(db, label(db, name))


@question
def seconds(db: Db, name: str) -> int:
    timeout = TIMEOUTS.get(db, name)
    assert timeout
    return timeout.seconds


@question
def config(db: Db, name: str) -> int | None:
    return min((seconds(db, each) for each in selected(db, name)), default=None)


def mesh() -> Db:
    """Two proxies of label `a`, one of `b`; a timeout for each label; all proxies are watched."""
    db = Db()
    with db.change() as change:
        for name, its in (("one", "a"), ("two", "a"), ("three", "b")):
            change.set(PROXIES, name, Proxy(its))
        change.set(TIMEOUTS, "for-a", Timeout("a", 10))
        change.set(TIMEOUTS, "for-b", Timeout("b", 20))
    for name in ("one", "two", "three"):
        db.watch(config, name)
    db.reset_counts()
    return db


def ran(db: Db) -> dict[str, int]:
    """What ran since last asked, by the function's own name."""
    counts = {name.rpartition(".")[2]: count for name, count in db.runs.items()}
    db.reset_counts()
    return counts


def reported(db: Db) -> list[str]:
    """The proxies that have to be reported."""
    return [name for asked, (name,) in db.changed() if asked is config]


# The story.


def test_editing_a_timeout_matches_nothing_again():
    db = mesh()
    db.set(TIMEOUTS, "for-a", Timeout("a", 5))
    assert reported(db) == ["one", "two"]
    assert ran(db) == {"seconds": 1, "config": 2}
    assert config(db, "one") == 5


def test_an_edit_without_effect_stops_where_it_has_none():
    db = mesh()
    db.set(PROXIES, "one", Proxy("a", address="10.0.0.9"))
    assert reported(db) == []
    assert ran(db) == {"label": 1}


def test_a_proxy_that_moves_to_another_label_disturbs_no_other():
    db = mesh()
    db.set(PROXIES, "one", Proxy("b"))
    assert reported(db) == ["one"]
    assert ran(db) == {"label": 1, "selected": 1, "config": 1}
    assert config(db, "one") == 20


def test_a_new_timeout_reaches_only_those_whom_it_selects():
    db = mesh()
    db.set(TIMEOUTS, "short-for-b", Timeout("b", 1))
    assert reported(db) == ["three"]
    assert ran(db) == {"selected": 1, "seconds": 1, "config": 1}


def test_a_new_timeout_that_loses_changes_no_answer():
    db = mesh()
    db.set(TIMEOUTS, "long-for-b", Timeout("b", 99))
    assert reported(db) == []
    assert ran(db) == {"selected": 1, "seconds": 1, "config": 1}


def test_a_timeout_that_selects_nobody_runs_nothing():
    db = mesh()
    db.set(TIMEOUTS, "for-c", Timeout("c", 1))
    assert reported(db) == []
    assert ran(db) == {}


def test_a_policy_may_come_before_its_proxy():
    db = Db()
    db.set(TIMEOUTS, "for-a", Timeout("a", 10))
    db.watch(config, "late")
    assert config(db, "late") is None
    db.set(PROXIES, "late", Proxy("a"))
    assert reported(db) == ["late"]
    assert config(db, "late") == 10


def test_a_batch_is_one_change():
    db = mesh()
    with db.change() as change:
        change.remove(TIMEOUTS, "for-a")
        change.set(TIMEOUTS, "for-a-too", Timeout("a", 10))
    assert reported(db) == []
    assert ran(db) == {"selected": 2, "seconds": 2, "config": 2}


# One promise after the other: what is run.


def test_asking_twice_runs_once():
    db = Db()
    assert (config(db, "one"), config(db, "one")) == (None, None)
    assert ran(db) == {"config": 1, "selected": 1, "label": 1}


def test_setting_an_equal_row_is_no_change():
    db = mesh()
    db.set(TIMEOUTS, "for-a", Timeout("a", 10))
    assert reported(db) == []
    assert ran(db) == {}


def test_of_several_edits_in_a_batch_the_last_counts():
    db = mesh()
    with db.change() as change:
        change.set(TIMEOUTS, "for-a", Timeout("a", 1))
        change.set(TIMEOUTS, "for-a", Timeout("a", 10))
    assert reported(db) == []
    assert ran(db) == {}


def test_a_batch_that_raises_applies_nothing():
    db = mesh()
    with contextlib.suppress(ZeroDivisionError), db.change() as change:
        change.remove(PROXIES, "one")
        raise ZeroDivisionError
    assert PROXIES.get(db, "one") == Proxy("a")


def test_removing_what_is_not_there_is_no_change():
    db = mesh()
    db.remove(PROXIES, "nobody")
    assert reported(db) == []
    assert ran(db) == {}


def test_a_question_asked_before_changed_runs_only_what_it_needs():
    db = mesh()
    with db.change() as change:
        change.set(TIMEOUTS, "for-a", Timeout("a", 5))
        change.set(TIMEOUTS, "for-b", Timeout("b", 6))
    assert config(db, "three") == 6
    assert ran(db) == {"seconds": 1, "config": 1}
    assert reported(db) == ["one", "two", "three"]
    assert ran(db) == {"seconds": 1, "config": 2}


def test_an_unwatched_question_runs_when_it_is_asked_and_not_before():
    db = mesh()
    assert config(db, "new") is None
    db.reset_counts()
    db.set(PROXIES, "new", Proxy("b"))
    assert reported(db) == []
    assert ran(db) == {}
    assert config(db, "new") == 20
    assert ran(db) == {"label": 1, "selected": 1, "config": 1}


def test_an_unwatched_question_stops_at_equal_answers_too():
    db = mesh()
    assert config(db, "new") is None
    db.reset_counts()
    db.set(PROXIES, "new", Proxy(""))
    assert reported(db) == []
    assert config(db, "new") is None
    assert ran(db) == {"label": 1}


def test_a_watched_question_may_begin_to_read_what_was_only_asked():
    db = mesh()
    db.set(TIMEOUTS, "for-c", Timeout("c", 30))
    assert (seconds(db, "for-c"), reported(db)) == (30, [])
    db.set(TIMEOUTS, "for-c", Timeout("c", 31))
    assert reported(db) == []
    db.set(PROXIES, "one", Proxy("c"))
    assert (reported(db), config(db, "one")) == (["one"], 31)
    db.set(TIMEOUTS, "for-c", Timeout("c", 32))
    assert (reported(db), config(db, "one")) == (["one"], 32)


def left_by_all_who_watch(db: Db) -> None:
    db.unwatch(config, "one")
    db.unwatch(config, "two")


def no_longer_read_by_any_who_is_watched(db: Db) -> None:
    db.set(PROXIES, "one", Proxy("b"))
    db.set(PROXIES, "two", Proxy("b"))
    db.changed()


@pytest.mark.parametrize("leave", [left_by_all_who_watch, no_longer_read_by_any_who_is_watched])
def test_a_question_that_is_no_longer_watched_is_not_run_by_a_change(leave):
    db = mesh()
    db.set(PROXIES, "asked once", Proxy("a"))
    assert config(db, "asked once") == 10
    leave(db)
    db.reset_counts()
    db.set(TIMEOUTS, "for-a", Timeout("a", 11))
    assert reported(db) == []
    assert ran(db) == {}
    assert config(db, "asked once") == 11


def test_an_answer_that_changes_back_before_it_is_reported_is_not_reported():
    db = mesh()
    db.set(TIMEOUTS, "for-b", Timeout("b", 6))
    assert config(db, "three") == 6
    db.set(TIMEOUTS, "for-b", Timeout("b", 20))
    assert reported(db) == []


def test_names_and_types_of_a_question_stay():
    assert selected.name == "test_incremental.selected"
    assert selected.__wrapped__.__name__ == selected.__name__ == "selected"
    assert str(QuestionCall(selected, ("one",))) == "test_incremental.selected(one)"


def test_arguments_are_given_by_position():
    with pytest.raises(TypeError, match="give name by position"):
        config(Db(), name="one")
    with pytest.raises(TypeError, match="give name by position"):
        Db().watch(config, name="one")


@question
def size(_db: Db, what: object) -> int:
    return len(str(what))


@question
def sizes(_db: Db, one: object, other: object = "") -> int:
    return len(str(one)) + len(str(other))


def test_one_argument_that_is_a_tuple_is_not_two_arguments():
    db = Db()
    assert size(db, ("a", "b")) == 10
    assert [sizes(db, ("a", "b")), sizes(db, "a", "b")] == [10, 2]
    with pytest.raises(ValueError, match="too many values"):
        size(db, "a", "b")


def test_an_argument_that_is_a_tuple_is_reported_as_a_tuple():
    @question
    def row(db: Db, key: tuple[str, str]) -> int | None:
        return NUMBERS.get(db, "".join(key))

    db = Db()
    db.watch(row, ("a", "b"))
    db.set(NUMBERS, "ab", 1)
    assert db.changed() == [QuestionCall(row, (("a", "b"),))]


@question
def diamond_left(db: Db) -> int:
    return len(PROXIES.keys(db))


@question
def diamond_right(db: Db) -> int:
    return diamond_left(db) + 1


@question
def diamond_top(db: Db) -> int:
    return diamond_left(db) + diamond_right(db)


def test_who_reads_a_change_on_two_ways_runs_once():
    db = Db()
    db.watch(diamond_top)
    db.reset_counts()
    db.set(PROXIES, "one", Proxy("a"))
    assert db.changed() == [QuestionCall(diamond_top, ())]
    assert ran(db) == {"diamond_left": 1, "diamond_right": 1, "diamond_top": 1}


# What is read.


@question
def keys_read(db: Db) -> tuple[str, ...]:
    return PROXIES.keys(db)


@question
def items_read(db: Db) -> tuple[tuple[str, Proxy], ...]:
    return PROXIES.items(db)


@question
def group_items_read(db: Db, of: str) -> tuple[tuple[str, Timeout], ...]:
    return BY_LABEL.items(db, of)


READS = [
    (lambda db: db.set(PROXIES, "two", Proxy("z")), {"items_read"}),
    (lambda db: db.set(PROXIES, "four", Proxy("z")), {"keys_read", "items_read"}),
    (lambda db: db.remove(PROXIES, "two"), {"keys_read", "items_read"}),
    (lambda db: db.set(TIMEOUTS, "for-a", Timeout("a", 1)), {"group_items_read"}),
    (lambda db: db.set(TIMEOUTS, "for-a", Timeout("b", 1)), {"group_items_read"}),
    (lambda db: db.set(TIMEOUTS, "for-b", Timeout("b", 1)), set()),
]


@pytest.mark.parametrize(("edit", "runs"), READS)
def test_an_edit_runs_only_who_read_that_aspect(edit, runs):
    db = mesh()
    db.unwatch(config, "one")
    db.unwatch(config, "two")
    db.unwatch(config, "three")
    for asked in (
        QuestionCall(keys_read, ()),
        QuestionCall(items_read, ()),
        QuestionCall(group_items_read, ("a",)),
    ):
        db.watch(asked.question, *asked.args)
    db.reset_counts()
    edit(db)
    db.changed()
    assert set(ran(db)) == runs


def test_keys_are_sorted_whatever_came_first():
    db = Db()
    for name in ("c", "a", "b"):
        db.set(PROXIES, name, Proxy("x"))
    db.remove(PROXIES, "a")
    db.set(PROXIES, "a", Proxy("x"))
    assert PROXIES.keys(db) == ("a", "b", "c")
    assert [key for key, _ in PROXIES.items(db)] == ["a", "b", "c"]


BY_LETTER = Index(PROXIES, lambda _name, proxy: proxy.label)


def test_a_row_can_be_in_several_groups():
    db = Db()
    db.set(PROXIES, "one", Proxy("ab"))
    assert BY_LETTER.keys(db, "a") == BY_LETTER.keys(db, "b") == ("one",)
    db.set(PROXIES, "one", Proxy("bbc"))
    assert [BY_LETTER.keys(db, group) for group in "abc"] == [(), ("one",), ("one",)]
    db.remove(PROXIES, "one")
    assert BY_LETTER.keys(db, "b") == ()


def test_who_leaves_a_group_that_was_read_is_gone_from_it():
    db = Db()
    for name in ("one", "two"):
        db.set(PROXIES, name, Proxy("a"))
    assert BY_LETTER.keys(db, "a") == ("one", "two")
    db.set(PROXIES, "one", Proxy("b"))
    assert (BY_LETTER.keys(db, "a"), BY_LETTER.keys(db, "b")) == (("two",), ("one",))


def test_tables_of_two_databases_are_apart():
    one, other = Db(), Db()
    one.set(PROXIES, "one", Proxy("a"))
    assert PROXIES.get(other, "one") is None


# Errors.

NUMBERS: Input[str, int] = Input("numbers")


@question
def quotient(db: Db, name: str) -> int:
    return 12 // (NUMBERS.get(db, name) or 0)


@question
def quotient_plus_one(db: Db, name: str) -> int:
    return quotient(db, name) + 1


@question
def quotient_or_zero(db: Db, name: str) -> int:
    try:
        return quotient(db, name)
    except ZeroDivisionError:
        return 0


def test_an_error_is_an_answer_for_all_readers():
    db = Db()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            quotient_plus_one(db, "x")
    assert quotient_or_zero(db, "x") == 0
    assert ran(db) == {"quotient": 1, "quotient_plus_one": 1, "quotient_or_zero": 1}


def test_an_error_ends_with_its_cause():
    db = Db()
    db.watch(quotient_plus_one, "x")
    db.set(NUMBERS, "x", 3)
    assert db.changed() == [QuestionCall(quotient_plus_one, ("x",))]
    assert quotient_plus_one(db, "x") == 5


def test_an_equal_error_stops_the_propagation():
    db = Db()
    db.watch(quotient_plus_one, "x")
    db.reset_counts()
    db.set(NUMBERS, "x", 0)
    assert db.changed() == []
    assert ran(db) == {"quotient": 1}


def test_a_stored_error_does_not_grow_when_it_is_raised_again():
    db = Db()
    depths = []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            quotient(db, "x")
        depths.append(len(caught.traceback))
    assert depths[1] == depths[2]


class Incomparable:
    def __eq__(self, other):
        raise ValueError

    __hash__ = None


def test_answers_that_cannot_be_compared_count_as_changed():
    @question
    def incomparable(db: Db) -> tuple:
        return NUMBERS.get(db, "x"), Incomparable()

    db = Db()
    db.watch(incomparable)
    db.set(NUMBERS, "x", 0)
    assert db.changed() == [QuestionCall(incomparable, ())]
    assert db.changed() == []


def test_a_question_must_not_change_what_it_reads():
    @question
    def sets(db: Db) -> None:
        db.set(NUMBERS, "x", 1)

    with pytest.raises(RuntimeError, match=r"sets\(\): a question must not change, watch or collect"):
        sets(Db())


NEXT: Input[str, str] = Input("next")


@question
def end(db: Db, name: str) -> str:
    after = NEXT.get(db, name)
    return end(db, after) if after else name


@question
def end_caught(db: Db, name: str) -> str:
    after = NEXT.get(db, name)
    try:
        return end_caught(db, after) if after else name
    except Exception:  # noqa: BLE001 - as a careless question might
        return "caught"


def cycle(db: Db, *names: str) -> None:
    for name, after in zip(names, (*names[1:], names[0]), strict=True):
        db.set(NEXT, name, after)


@pytest.mark.parametrize("asked", [end, end_caught])
@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_a_cycle_is_named_the_same_wherever_it_is_entered(asked, first):
    db = Db()
    cycle(db, "a", "b", "c")
    name = asked.name
    for entry in (first, "a", "b", "c"):
        with pytest.raises(CycleError) as caught:
            asked(db, entry)
        expected = f"a question needs its own answer: {name}(a) -> {name}(b) -> {name}(c) -> {name}(a)"
        assert str(caught.value) == expected


@pytest.mark.parametrize("cut", ["a", "b", "c"])
def test_a_cycle_ends_wherever_it_is_cut_and_is_found_again(cut):
    db = Db()
    cycle(db, "a", "b", "c")
    everyone = [QuestionCall(end, (name,)) for name in "abc"]
    for name in "abc":
        db.watch(end, name)
    for _ in range(2):
        db.remove(NEXT, cut)
        assert db.changed() == everyone
        assert [end(db, name) for name in "abc"] == [cut] * 3
        cycle(db, "a", "b", "c")
        assert db.changed() == everyone
    for name in "abc":
        db.unwatch(end, name)
    assert (db.n_memos, db.n_cells) == (0, 0)


def test_a_cycle_stays_the_same_when_something_else_below_it_changes():
    db = Db()
    cycle(db, "a", "b", "c")
    db.watch(end, "a")
    assert end(db, "lower") == "lower"
    db.set(NEXT, "lower", "")
    db.watch(end, "c")
    with pytest.raises(CycleError, match=r"end\(a\) -> .*end\(b\) -> .*end\(c\) -> .*end\(a\)"):
        end(db, "b")
    assert db.changed() == []


def test_no_question_can_catch_a_cycle():
    db = Db()
    cycle(db, "a", "b")
    db.set(NEXT, "outside", "a")
    with pytest.raises(CycleError):
        end_caught(db, "outside")
    db.remove(NEXT, "b")
    assert end_caught(db, "outside") == "b"


# Depth.


def chain(db: Db, length: int) -> list[str]:
    names = [f"{number:05}" for number in range(length)]
    with db.change() as change:
        for name, after in itertools.pairwise(names):
            change.set(NEXT, name, after)
    return names


def test_a_first_answer_may_be_as_deep_as_the_limit():
    db = Db()
    first, *_, last = chain(db, incremental.DEPTH_MAX)
    assert end(db, first) == last


def test_deeper_is_refused_in_words_until_the_chain_is_shorter():
    db = Db()
    names = chain(db, 2000)
    db.watch(end, names[0])
    with pytest.raises(RecursionError, match=r"more than 100 questions deep: test_incremental.end\(00100\)"):
        end(db, names[0])
    assert db.n_memos == 1
    db.remove(NEXT, names[70])
    assert db.changed() == [QuestionCall(end, (names[0],))]
    assert end(db, names[0]) == names[70]
    db.unwatch(end, names[0])
    assert (db.n_memos, db.n_cells) == (0, 0)


def test_a_chain_that_becomes_too_deep_stops_nobody_else():
    db = Db()
    names = chain(db, 90)
    for name in (names[0], "other"):
        db.watch(end, name)
    with db.change() as change:
        for number in range(90, 250):
            change.set(NEXT, f"{number - 1:05}", f"{number:05}")
        change.set(NEXT, "other", "else")
    assert db.changed() == [QuestionCall(end, (names[0],)), QuestionCall(end, ("other",))]
    assert end(db, "other") == "else"
    assert end(db, "00200") == "00249"
    db.remove(NEXT, "00180")
    assert db.changed() == [QuestionCall(end, (names[0],))]
    assert end(db, names[0]) == "00180"


def test_a_chain_asked_from_its_inner_end_has_no_limit_nor_has_its_propagation():
    db = Db()
    names = chain(db, 2000)
    for name in reversed(names):
        assert end(db, name) == names[-1]
    db.watch(end, names[0])
    db.reset_counts()
    db.set(NEXT, names[-1], "beyond")
    assert db.changed() == [QuestionCall(end, (names[0],))]
    assert end(db, names[0]) == "beyond"
    assert ran(db) == {"end": 2001}


class Interrupt(BaseException):
    pass


@question
def interrupted(db: Db, name: str) -> int:
    number = NUMBERS.get(db, name) or 0
    if number < 0:
        raise Interrupt
    return number


@question
def above_interrupted(db: Db, name: str) -> int:
    return interrupted(db, name) + 1


def test_an_aborted_propagation_continues_where_it_was():
    db = Db()
    for name in ("x", "y"):
        db.watch(above_interrupted, name)
    db.set(NUMBERS, "x", -1)
    db.set(NUMBERS, "y", 5)
    for _ in range(2):
        with pytest.raises(Interrupt):
            db.changed()
        with pytest.raises(Interrupt):
            above_interrupted(db, "x")
    db.set(NUMBERS, "x", 7)
    assert db.changed() == [QuestionCall(above_interrupted, ("x",)), QuestionCall(above_interrupted, ("y",))]
    assert [above_interrupted(db, name) for name in ("x", "y")] == [8, 6]


# Memory.


def test_a_thousand_proxies_come_and_go_and_leave_nothing():
    db = mesh()
    before = db.n_memos, db.n_cells
    names = [f"proxy-{number}" for number in range(1000)]
    for name in names:
        db.set(PROXIES, name, Proxy("a"))
        db.watch(config, name)
    assert db.n_memos == before[0] + 3000
    for name in names:
        db.remove(PROXIES, name)
        db.unwatch(config, name)
    assert reported(db) == []
    assert (db.n_memos, db.n_cells) == before
    assert [config(db, name) for name in ("one", "two", "three")] == [10, 10, 20]


def test_answers_that_are_let_go_are_really_freed():
    class Big:
        pass

    @question
    def big(db: Db, name: str) -> tuple[int | None, Big]:
        return NUMBERS.get(db, name), Big()

    db = Db()
    for number in range(100):
        db.watch(big, str(number))
        db.set(NUMBERS, str(number), 1)
        db.unwatch(big, str(number))
    gc.collect()
    assert not any(isinstance(each, Big) for each in gc.get_objects())


def test_a_memo_that_was_on_a_cycle_is_really_freed():
    class Place:
        pass

    @question
    def around(db: Db, place: Place) -> None:
        around(db, place)

    db = Db()
    for _ in range(3):
        place = Place()
        db.watch(around, place)
        db.unwatch(around, place)
        del place
    gc.collect()
    assert not any(isinstance(each, Place) for each in gc.get_objects())


def test_who_left_is_not_run_again():
    db = mesh()
    db.remove(PROXIES, "one")
    db.unwatch(config, "one")
    assert reported(db) == []
    assert ran(db) == {}


def test_what_two_proxies_share_stays_until_both_have_left():
    db = mesh()
    db.unwatch(config, "one")
    db.reset_counts()
    assert (seconds(db, "for-a"), ran(db)) == (10, {})
    db.unwatch(config, "two")
    db.reset_counts()
    assert (seconds(db, "for-a"), ran(db)) == (10, {"seconds": 1})


def test_collect_drops_what_was_only_asked():
    db = mesh()
    before = db.n_memos
    assert config(db, "unknown") is None
    assert db.n_memos == before + 3
    db.collect()
    assert db.n_memos == before


def test_collect_unused_keeps_what_was_asked_again():
    db = mesh()
    before = db.n_memos
    assert config(db, "unknown") is None
    for _ in range(3):
        db.collect_unused()
        db.reset_counts()
        assert (config(db, "unknown"), ran(db)) == (None, {})
        assert db.n_memos == before + 3
    db.collect_unused()
    assert db.n_memos == before + 3  # it was asked since
    db.collect_unused()
    assert db.n_memos == before


def test_what_collect_unused_keeps_follows_changes():
    db = mesh()
    assert config(db, "unknown") is None
    db.collect_unused()
    db.set(PROXIES, "unknown", PROXIES.get(db, "one"))
    assert config(db, "unknown") == config(db, "one")


def test_watching_twice_is_watching_once():
    db = mesh()
    db.watch(config, "one")
    db.unwatch(config, "one")
    db.unwatch(config, "one")
    db.set(TIMEOUTS, "for-a", Timeout("a", 1))
    assert reported(db) == ["two"]


# How much: what a change costs depends on what it touches.


@question
def is_short(db: Db, name: str) -> bool:
    return seconds(db, name) < 60


@question
def shared(db: Db, name: str) -> tuple[str, bool]:
    return label(db, name), is_short(db, "for-all")


def cost_of(edit, *, size: int) -> tuple[int, dict[str, int]]:
    """What an edit costs in a mesh of so many proxies that all read one timeout: calls, and what ran."""
    db = Db()
    db.set(TIMEOUTS, "for-all", Timeout("a", 10))
    for number in range(size):
        db.set(PROXIES, f"{number:04}", Proxy("a"))
        db.watch(shared, f"{number:04}")
    db.reset_counts()
    edit(db)
    return python_calls(db.changed), ran(db)


def ten_move(db: Db) -> None:
    for number in range(10):
        db.set(PROXIES, f"{number:04}", Proxy("b"))


COSTS = [
    (lambda db: db.set(TIMEOUTS, "for-all", Timeout("a", 11)), {"seconds": 1, "is_short": 1}),
    (ten_move, {"label": 10, "shared": 10}),
]


@pytest.mark.parametrize(("edit", "runs"), COSTS)
def test_who_is_not_touched_is_not_looked_at(edit, runs):
    small, large = cost_of(edit, size=20), cost_of(edit, size=200)
    assert small == large
    assert large[1] == runs


def python_calls(function) -> int:
    """How many calls of Python functions a call makes: a cost that no other load on the machine disturbs."""
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event == "call"

    gc.collect()
    gc.disable()  # else whoever listens to the collector is counted too, where it happens to run
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_order_does_not_depend_on_hash_seeds():
    program = (
        "import test_incremental as t; db = t.mesh();"
        "db.set(t.TIMEOUTS, 'x', t.Timeout('a', 1)); db.set(t.TIMEOUTS, 'y', t.Timeout('b', 1));"
        "print(db.changed(), list(db.runs.items()))"
    )
    seen = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", program]
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": __file__.rpartition("/")[0]}
        seen.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(seen) == 1


class Large:
    """Something that takes memory, and whose end can be seen."""


def test_what_a_question_had_before_it_raised_is_freed_at_once():
    lives: list[weakref.ref[Large]] = []

    @question
    def fails(db: Db) -> str:
        large = Large()
        lives.append(weakref.ref(large))
        raise ValueError(label(db, "web"))

    @question
    def above(db: Db) -> str:
        large = Large()
        lives.append(weakref.ref(large))
        return fails(db)

    db = Db()
    db.set(PROXIES, "web", Proxy("x"))
    gc.disable()
    try:
        for name in "xyz":
            db.set(PROXIES, "web", Proxy(name))
            with pytest.raises(ValueError, match=name) as raised:
                above(db)
            assert "test_incremental.py" in raised.value.__notes__[0]
            assert raised.value.__notes__[0].endswith(".fails")
            del raised
        assert len(lives) == 6
        assert not any(live() for live in lives)
    finally:
        gc.enable()
