"""Regular expressions as Envoy reads them: RE2's grammar, and a limit on their size.

Envoy refuses a whole listener for one expression that it cannot compile, so the same library compiles it
here first. The limits keep one policy from filling the memory of every proxy that it reaches.
"""

from collections.abc import Iterator
from typing import Any, Final

import re2

from koguma.model.violation import Violation

LENGTH_MAX: Final = 4096
# Envoy's own limit is 100 unless its runtime key re2.max_program_size.error_level is set.
PROGRAM_MAX: Final = 10_000


def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False  # else it prints to stderr what we say in the violation
    return options


_OPTIONS: Final = _quiet()


def violations(pattern: str, path: str) -> Iterator[Violation]:
    """What is wrong with an expression."""
    message = _problem(pattern)
    if message:
        yield Violation(path, message, "regex")


def _problem(pattern: str) -> str:
    if not pattern:
        return "must not be empty"
    if len(pattern) > LENGTH_MAX:
        return f"is {len(pattern)} characters long; a regular expression has at most {LENGTH_MAX}"
    try:
        size = re2.compile(pattern, _OPTIONS).programsize
    except (re2.error, UnicodeEncodeError) as error:
        return f"is not a regular expression that Envoy reads (RE2): {_words(error)}"
    if size > PROGRAM_MAX:
        return f"compiles to {size} instructions; a regular expression has at most {PROGRAM_MAX}"
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it contains half of a surrogate pair"
    text = error.args[0] if error.args else ""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
