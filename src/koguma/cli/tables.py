"""Tables: text in columns of equal width."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from koguma.cli import terminal

_GAP: Final = "   "
EMPTY: Final = "-"
_UNITS: Final = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TWO_UNITS_BELOW: Final = 8  # 3d4h and 2h10m, but 12d and 15h
_SECONDS_ONLY_BELOW: Final = 120


class TextTable:
    """Prints rows under a header; rows that come later keep the widths of the first."""

    def __init__(self, header: Sequence[str]) -> None:
        self._header = tuple(header)
        self._widths = [len(title) for title in header]

    def start(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """The header and the first rows."""
        cells = [self._cells(row) for row in rows]
        for row in cells:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        yield self._line(self._header)
        yield from map(self._line, cells)

    def row(self, row: Sequence[str]) -> str:
        """One more row."""
        return self._line(self._cells(row))

    def _cells(self, row: Sequence[str]) -> tuple[str, ...]:
        return tuple(terminal.printable(cell) or EMPTY for cell in row)

    def _line(self, cells: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        return _GAP.join([*padded[:-1], cells[-1]]).rstrip()


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A whole table."""
    return TextTable(header).start(rows)


def pairs(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Names and their values, one per line, with the values aligned."""
    listed = list(entries)
    width = max((len(name) for name, _ in listed), default=0) + 1
    for name, value in listed:
        yield f"{f'{name}:'.ljust(width)}  {terminal.printable(value) or EMPTY}"


def age(since: str, now: datetime) -> str:
    """How long ago an RFC 3339 time was, in kubectl's format: 45s, 3m20s, 5h, 12d."""
    try:
        span = now - datetime.fromisoformat(since)
    except (ValueError, TypeError):
        return "?"
    return length(span)


def length(span: timedelta) -> str:
    """A span of time in its largest unit, with the next smaller one where the number is small."""
    seconds = max(0, int(span.total_seconds()))
    if seconds < _SECONDS_ONLY_BELOW:
        return f"{seconds}s"
    for index, (letter, size) in enumerate(_UNITS):
        count, rest = divmod(seconds, size)
        if count:
            lower, lower_size = _UNITS[index + 1]
            more = rest // lower_size if count < _TWO_UNITS_BELOW else 0
            return f"{count}{letter}" + (f"{more}{lower}" if more else "")
    return f"{seconds}s"
