"""Answers of questions: a value, or what was raised instead; and when two of them are the same.

A question that needs its own answer stands on a circle. That error passes through questions as `Circular`,
which they cannot catch: what they would make of it would depend on where the circle was entered.
"""

from collections.abc import Sequence
from types import TracebackType


class CycleError(RuntimeError):
    """A question needs its own answer; the text names the circle, the same wherever it was entered."""

    def __init__(self, names: Sequence[str]) -> None:
        first = names.index(min(names))
        circle = [*names[first:], *names[: first + 1]]
        super().__init__(f"a question needs its own answer: {' -> '.join(circle)}")


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
        """Raise it, for another question or for the outside; its traceback does not grow by that."""
        if inside and isinstance(self.error, CycleError):
            raise Circular(self.error)
        raise self.error.with_traceback(self.traceback)


def same(one: object, other: object) -> bool:
    """Whether an answer is no news after another."""
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - what cannot be compared is news
        return False


def _content(error: Exception) -> tuple[object, ...]:
    return type(error), error.args, vars(error)
