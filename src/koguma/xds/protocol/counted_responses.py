"""CountedResponses: how many responses of each type were sent on a stream, ACKed and NACKed.

There is one for each connected proxy, so the numbers are in one array and become values only where read.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from koguma.envoy.snapshot import TYPES
from koguma.xds.contract import ResponseCount

_STARTS: Final = {type_: 3 * place for place, type_ in enumerate(TYPES)}  # of sent, ACKed, NACKed
_ZEROS: Final = bytes(3 * 8 * len(TYPES))


class CountedResponses(Mapping[str, ResponseCount]):
    """The counts of one stream by type, for types of which something was sent; they grow while it is open."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("Q", _ZEROS)

    def count_sent(self, type_: str) -> None:
        """A response was sent."""
        self._numbers[_STARTS[type_]] += 1

    def count_ack(self, type_: str) -> None:
        """A response was ACKed."""
        self._numbers[_STARTS[type_] + 1] += 1

    def count_nack(self, type_: str) -> None:
        """A response was NACKed."""
        self._numbers[_STARTS[type_] + 2] += 1

    def __getitem__(self, type_: str) -> ResponseCount:
        start = _STARTS[type_]
        if not self._numbers[start]:
            raise KeyError(type_)
        return ResponseCount(*self._numbers[start : start + 3])

    def __iter__(self) -> Iterator[str]:
        return (type_ for type_, start in _STARTS.items() if self._numbers[start])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))
