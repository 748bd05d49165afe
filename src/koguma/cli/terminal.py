"""The terminal: colours where the output is a terminal, plain text elsewhere."""

import os
import sys
from typing import Final, TextIO

_COLUMNS: Final = 80  # where nobody says how many
_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}


def is_coloured(stream: TextIO) -> bool:
    """Whether to print colours: on a terminal, unless NO_COLOR is set (no-color.org) or TERM is dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, *, error: bool = False) -> str:
    """The text in a colour, if standard output (or standard error) is coloured."""
    if not is_coloured(sys.stderr if error else sys.stdout):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def print_stderr(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)


def error_columns() -> int:
    """How wide the terminal is that standard error goes to."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def printable(text: str) -> str:
    """The text without control characters, so that stored data cannot control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def can_show(text: str) -> bool:
    """Whether standard output's encoding has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
