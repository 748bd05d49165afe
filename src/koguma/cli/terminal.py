"""The terminal: colours where a person reads, plain text everywhere else."""

import os
import sys
from typing import Final, TextIO

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}


def is_coloured(stream: TextIO) -> bool:
    """Whether colours are welcome: on a terminal, unless NO_COLOR (no-color.org) says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, *, error: bool = False) -> str:
    """The text in a colour, if the stream that it goes to shows colours."""
    if not is_coloured(sys.stderr if error else sys.stdout):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def complain(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text without control characters, so that stored data cannot steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def can_show(text: str) -> bool:
    """Whether standard output's encoding has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
