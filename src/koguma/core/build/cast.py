"""Cast: pieces that many proxies have alike but for texts of their own, such as their name and address.

What makes such pieces is run with marks in the places of these texts, once for all proxies of one shape;
each proxy then gets the same with its own texts. Whether that gives the very bytes is tried out first, with
other texts: where it does not, there is no cast, and every proxy has its pieces made as usual.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from koguma.envoy.encode import Encoder
from koguma.envoy.mold import Mold
from koguma.envoy.snapshot import TYPE_URLS, Failure, Id, XdsResource, version_of

Texts = tuple[str, ...]
Make = Callable[[Texts], Iterable[XdsResource | Failure]]

_MARKS_MAX: Final = 32
_START: Final = "\ue000"  # of a mark; hardly ever in a text of a mesh, and then there is no cast
_MARKS: Final = tuple(f"{_START}{number:02}\ue001" for number in range(_MARKS_MAX))
# What it is tried out with is longer than names and addresses are, so that it meets rules about length.
_OTHERS: Final = tuple(f"{number:02}".ljust(1000, "x") for number in range(_MARKS_MAX))


def marks(texts: Texts) -> Texts | None:
    """As many marks as there are texts; None where nothing can be put in the places of marks."""
    # What is empty is not written by protobuf, and refused by rules.
    return _MARKS[: len(texts)] if all(texts) and len(texts) <= _MARKS_MAX else None


def has_marks(written: bytes) -> bool:
    """Whether something that is the same for all proxies looks like a mark."""
    return _START.encode() in written


class _Molded(NamedTuple):
    """A piece with marks in its name, in what it needs, or in its body."""

    type: str
    name: str
    needs: tuple[Id, ...]
    mold: Mold

    def filled(self, texts: Mapping[str, str]) -> XdsResource:
        """The piece with texts in their places."""
        body = self.mold.filled(texts)
        needs = self.needs  # one tuple for all, unless something of its own is among it
        if any(name in texts for _, name in needs):
            needs = tuple((each[0], texts[each[1]]) if each[1] in texts else each for each in needs)
        return XdsResource(self.type, texts.get(self.name, self.name), version_of(body), body, needs)


def _molded(encoder: Encoder, piece: XdsResource, marked: Texts) -> _Molded | XdsResource:
    """A piece as a mold; the piece itself where there are no marks in it: then all have that one."""
    mold = Mold(encoder.schema, TYPE_URLS[piece.type].rpartition("/")[2], piece.body, marked)
    named = (piece.name, *(name for _, name in piece.needs))
    if not mold.has_places and not any(_START in name for name in named):
        return piece
    return _Molded(piece.type, piece.name, piece.needs, mold)


class Cast:
    """Pieces that wait for texts."""

    def __init__(self, encoder: Encoder, pieces: Iterable[XdsResource], marked: Texts) -> None:
        self._marks = marked
        self._molded = tuple(_molded(encoder, each, marked) for each in pieces)

    def filled(self, texts: Texts) -> tuple[XdsResource, ...] | None:
        """The pieces of whoever has these texts; None where one of them is nothing to put there."""
        own = dict(zip(self._marks, texts, strict=True))
        try:
            return tuple(each if isinstance(each, XdsResource) else each.filled(own) for each in self._molded)
        except (TypeError, ValueError):  # no text, or one that cannot be written; the encoder says what
            return None


def made(encoder: Encoder, make: Make, number: int) -> Cast | None:
    """What `make` makes of so many texts, as a cast; None where it fails, or where that is not the same."""
    marked, others = _MARKS[:number], _OTHERS[:number]
    pieces, wanted = tuple(make(marked)), tuple(make(others))
    good = tuple(each for each in pieces if isinstance(each, XdsResource))
    if len(good) < len(pieces):
        return None
    found = Cast(encoder, good, marked)
    return found if _whole(found.filled(others) or ()) == _whole(wanted) else None


def _whole(pieces: Iterable[XdsResource | Failure]) -> list[tuple[XdsResource | Failure, object]]:
    """Pieces with what they need, which is no part of what makes them equal."""
    return [(each, each.needs if isinstance(each, XdsResource) else ()) for each in pieces]
