"""A redacted text shows itself nowhere by accident."""

import copy
import json
import pickle
import traceback

import msgspec
import pytest

from koguma.model.redacted import Redacted

SECRET = Redacted("hunter2")


@pytest.mark.parametrize(
    "shown",
    [str(SECRET), repr(SECRET), f"{SECRET}", f"{SECRET!r:>20}", f"{SECRET:>5}", "%s" % SECRET, str([SECRET])],  # noqa: UP031 - old formatting must not show it either
)
def test_it_prints_as_redacted(shown) -> None:
    assert "«redacted»" in shown
    assert "hunter2" not in shown


def test_it_gives_its_text_to_who_asks() -> None:
    assert SECRET.reveal() == "hunter2"


@pytest.mark.parametrize(
    "encode", [json.dumps, msgspec.json.encode, msgspec.to_builtins, pickle.dumps, copy.copy]
)
def test_no_encoder_takes_it(encode) -> None:
    with pytest.raises((TypeError, NotImplementedError)):
        encode(SECRET)


def test_an_error_that_carries_it_does_not_show_it() -> None:
    lines = traceback.format_exception(ValueError(SECRET))
    assert lines == ["ValueError: «redacted»\n"]


def test_it_compares_by_text_and_only_with_its_like() -> None:
    assert Redacted("a") == Redacted("a")
    assert Redacted("a") != Redacted("b")
    assert Redacted("a") != "a"
    assert len({Redacted("a"), Redacted("a"), Redacted("ä")}) == 2
    assert Redacted("\udcff") == Redacted("\udcff")


def test_it_does_not_change() -> None:
    with pytest.raises(AttributeError):
        SECRET.text = "x"
    with pytest.raises(AttributeError):
        SECRET._Redacted__text = "x"
    assert not hasattr(SECRET, "__dict__")
