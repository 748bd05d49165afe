"""Answers of questions: a value, or the exception that was raised instead; and when two answers are equal.

A question that needs its own answer is on a dependency cycle. That error passes through questions as
`Circular`, which they cannot catch: their answers would depend on where the cycle was entered.
"""

from collections.abc import Sequence
from types import TracebackType


class CycleError(RuntimeError):
    """A question needs its own answer; the text names the cycle, the same wherever it was entered."""

    def __init__(self, names: Sequence[str]) -> None:
        first = names.index(min(names))
        cycle = [*names[first:], *names[: first + 1]]
        super().__init__(f"a question needs its own answer: {' -> '.join(cycle)}")


class Circular(BaseException):
    """A CycleError on its way through questions."""

    def __init__(self, error: CycleError) -> None:
        self.error = error


class Raised:
    """The answer of a question that raised."""

    __slots__ = ("error", "traceback")
    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback: TracebackType | None = error.__traceback__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and _content(self.error) == _content(other.error)

    def throw(self, *, inside: bool) -> None:
        """Raise it, for another question or for a caller outside; its traceback does not grow by that."""
        if inside and isinstance(self.error, CycleError):
            raise Circular(self.error)
        raise self.error.with_traceback(self.traceback)


def same(answer: object, other: object) -> bool:
    """Whether two answers are equal."""
    try:
        return answer is other or bool(answer == other)
    except Exception:  # noqa: BLE001 - what cannot be compared counts as changed
        return False


def _content(error: Exception) -> tuple[object, ...]:
    return type(error), error.args, vars(error)
