"""How the CA of a mesh changes: each case is a script of what is seen, and what is decided then."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.identity import rotation
from koguma.identity.rotation import DISTRUST_DELAY, SETTLE_TIME, TRUST_TIMEOUT, Rotation, RotationInputs

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
LONG_AGO = START - timedelta(days=1)

# A line is: seconds, `listed CAs > wanted CA`, proxies, who trust, who show; and what is decided:
# `issuer < trusted CAs`. CAs are letters; `trust` and `show` have one letter for each proxy that does.
SCRIPTS = {
    "the first CA issues at once": [
        (0, "a > a", 3, "", "", "a < a"),
    ],
    "add and enable in one write": [
        (0, "a > a", 2, "", "", "a < a"),
        (5, "ab > b", 2, "aa", "aa", "a < ab"),  # trust first
        (6, "ab > b", 2, "aab", "aa", "a < ab"),  # one does not trust it yet
        (6.5, "ab > b", 2, "aabb", "aa", "a < ab"),  # all do; those of other control planes get a moment
        (7, "ab > b", 2, "aabb", "aa", "b < ab"),
        (8, "ab > b", 2, "aabb", "bb", "b < ab"),  # listed, so still trusted
    ],
    "replace in one write": [
        (0, "a > a", 2, "", "", "a < a"),
        (5, "b > b", 2, "aa", "aa", "a < ab"),
        (7, "b > b", 2, "aabb", "aa", "b < ab"),
        (8, "b > b", 2, "aabb", "aabb", "b < ab"),  # new ones are given, the old ones may still be shown
        (9, "b > b", 2, "aabb", "bb", "b < ab"),  # none of ours shows it; those of others get a moment
        (27, "b > b", 2, "aabb", "bb", "b < b"),
    ],
    "one step after the other": [
        (0, "a > a", 2, "aa", "aa", "a < a"),
        (5, "ab > a", 2, "aa", "aa", "a < ab"),
        (60, "ab > b", 2, "aabb", "aa", "b < ab"),  # trusted for long
        (120, "b > b", 2, "aabb", "bb", "b < ab"),
        (140, "b > b", 2, "aabb", "bb", "b < b"),
    ],
    "one that never answers is not waited for without end": [
        (0, "a > a", 2, "aa", "aa", "a < a"),
        (5, "ab > b", 2, "aab", "aa", "a < ab"),
        (14.9, "ab > b", 2, "aab", "aa", "a < ab"),
        (15, "ab > b", 2, "aab", "aa", "b < ab"),
    ],
    "an old CA is trusted as long as somebody shows it": [
        (0, "a > a", 2, "aa", "aa", "a < a"),
        (5, "b > b", 2, "aa", "aa", "a < ab"),
        (15, "b > b", 2, "aab", "aa", "b < ab"),
        (900, "b > b", 2, "aab", "ab", "b < ab"),
        (901, "b > b", 2, "aab", "b", "b < b"),
    ],
    "who changes his mind changes nothing": [
        (0, "a > a", 1, "a", "a", "a < a"),
        (5, "ab > b", 1, "a", "a", "a < ab"),
        (6, "ab > a", 1, "ab", "a", "a < ab"),
        (7, "a > a", 1, "ab", "a", "a < ab"),
        (27, "a > a", 1, "ab", "a", "a < a"),
    ],
    "a CA that cannot issue leaves the old one in its place": [
        (0, "a > a", 1, "a", "a", "a < a"),
        (5, " > ", 1, "a", "a", "a < a"),
        (99, "b > ", 1, "a", "a", "a < ab"),  # its certificate is there, its key is not
        (200, "b > b", 1, "ab", "a", "b < ab"),
        (221, "b > b", 1, "ab", "b", "b < b"),
    ],
    "without proxies nobody is waited for but those of others": [
        (0, "a > a", 0, "", "", "a < a"),
        (5, "ab > b", 0, "", "", "a < ab"),
        (7, "ab > b", 0, "", "", "b < ab"),
    ],
    "who left is not waited for": [
        (0, "a > a", 2, "aa", "aa", "a < a"),
        (5, "b > b", 2, "aab", "aa", "a < ab"),
        (8, "b > b", 1, "ab", "a", "b < ab"),
        (30, "b > b", 0, "", "", "b < b"),
    ],
    "a third one begins anew": [
        (0, "a > a", 1, "a", "a", "a < a"),
        (5, "ab > b", 1, "a", "a", "a < ab"),
        (6, "abc > c", 1, "ab", "a", "a < abc"),
        (7, "abc > c", 1, "abc", "a", "a < abc"),
        (8, "abc > c", 1, "abc", "a", "c < abc"),
    ],
    "a start in the middle of a change waits like anybody": [
        (3, "ab > b", 0, "", "", " < ab"),  # the Mesh was changed_at at second 2
        (4, "ab > b", 0, "", "", "b < ab"),
    ],
    "no CA at all": [
        (0, " > ", 2, "", "", " < "),
        (9, "a > a", 2, "", "", "a < a"),
    ],
}


def at(seconds):
    return START + timedelta(seconds=seconds)


def observed(line, changed_at=LONG_AGO):
    seconds, backends, n, trusting, showing, _ = line
    listed, _, wanted = (part.strip() for part in backends.partition(">"))
    counts = [{ca: word.count(ca) for ca in word} for word in (trusting, showing)]
    return RotationInputs(at(seconds), frozenset(listed), wanted, changed_at, n, *counts)


def shown(decided):
    return f"{decided.issuer} < {''.join(sorted(decided.trusted))}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_trust_comes_first_and_leaves_last(name):
    changed_at = at(2) if "start" in name else LONG_AGO
    decided = Rotation()
    for line in SCRIPTS[name]:
        decided = rotation.next_rotation(decided, observed(line, changed_at))
        assert shown(decided) == line[-1], line


def test_a_start_with_two_old_backends_waits_for_nobody():
    assert shown(rotation.next_rotation(Rotation(), observed((0, "ab > b", 3, "", "", "")))) == "b < ab"


def test_equal_sights_decide_equally():
    line = (5, "ab > b", 2, "ab", "a", "")
    once = rotation.next_rotation(Rotation("a", {"a": START}), observed(line))
    assert rotation.next_rotation(once, observed(line)) == once


def test_it_says_when_to_look_again():
    line = (5, "b > b", 2, "ab", "aa", "")
    decided = rotation.next_rotation(Rotation("a", {"a": START}), observed(line))
    assert rotation.due(decided, observed(line)) == at(5) + SETTLE_TIME
    line = (8, *line[1:])
    decided = rotation.next_rotation(decided, observed(line))
    assert rotation.due(decided, observed(line)) == at(5) + TRUST_TIMEOUT
    line = (15, *line[1:])
    decided = rotation.next_rotation(decided, observed(line))
    assert shown(decided) == "b < ab"
    assert rotation.due(decided, observed(line)) == at(15) + DISTRUST_DELAY
    assert not rotation.is_settled(decided, "b")
    line = (40, "b > b", 2, "bb", "bb", "")
    decided = rotation.next_rotation(decided, observed(line))
    assert rotation.due(decided, observed(line)) is None
    assert rotation.is_settled(decided, "b")


_LINES = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.sets(st.sampled_from("abc")),
        st.sampled_from(["", "a", "b", "c"]),
        st.integers(0, 2),
        st.text("abc", max_size=4),
        st.text("abc", max_size=4),
    ),
    max_size=12,
)


@pytest.mark.property
@given(lines=_LINES)
def test_whoever_issues_or_is_listed_or_shown_is_trusted(lines):
    decided, seconds = Rotation(), 0.0
    for later, listed, drawn, n, trusting, showing in lines:
        seconds += later
        wanted = drawn if drawn in listed else ""
        line = (seconds, f"{''.join(listed)} > {wanted}", n, trusting, showing, "")
        before, decided = decided, rotation.next_rotation(decided, observed(line))
        trusted = set(decided.trusted)
        assert listed <= trusted
        assert {decided.issuer} - {""} <= trusted
        assert set(showing) & set(before.trusted) <= trusted
        assert decided.issuer in (before.issuer, wanted)
        if decided.issuer != before.issuer and before.issuer:
            enough = trusting.count(wanted) >= n or at(seconds) - decided.trusted[wanted] >= TRUST_TIMEOUT
            assert wanted in before.trusted
            assert enough
        due = rotation.due(decided, observed(line))
        assert due is None or due > at(seconds)
