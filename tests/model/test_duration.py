"""Durations as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import duration


@pytest.mark.parametrize(
    ("text", "nanoseconds", "shown"),
    [
        ("0", 0, "0s"),
        ("15s", 15 * 10**9, "15s"),
        ("1h", 3600 * 10**9, "1h0m0s"),
        ("1h30m", 5400 * 10**9, "1h30m0s"),
        ("1.5s", 1_500_000_000, "1.5s"),
        ("250ms", 250_000_000, "250ms"),
        ("-3us", -3000, "-3us"),
        (".5s", 500_000_000, "500ms"),
    ],
)
def test_a_duration_reads_and_writes(text, nanoseconds, shown):
    assert duration.nanoseconds(text) == nanoseconds
    assert duration.text(nanoseconds) == shown


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "1d", "٣s", "1e3s", "9" * 60 + "h", "--1s"])
def test_what_is_no_duration_is_refused(text):
    assert not duration.is_duration(text)


@pytest.mark.property
@given(st.integers(-(2**62), 2**62))
def test_writing_and_reading_agree(value):
    assert duration.nanoseconds(duration.text(value)) == value
