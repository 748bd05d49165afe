"""Tables: words and rows as Markdown shows them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_NOTE: Final = "<!-- Made by `make docs` from {source}; change it there. -->\n"


def text(words: str) -> str:
    """Words as they may stand in a table's cell."""
    return " ".join(words.replace("|", "\\|").replace("<", "&lt;").split())


def code(words: object) -> str:
    """Words as code, also in a table's cell."""
    return f"`{words}`".replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, and an empty one."""
    yield _row(header)
    yield "|" + "---|" * len(header)
    yield from map(_row, rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def page(source: str, lines: Iterator[str]) -> str:
    """A page, with a note that says where it comes from."""
    return _NOTE.format(source=source) + "\n".join(lines).rstrip("\n") + "\n"
