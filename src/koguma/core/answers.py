"""Answers of questions: a value, or the exception that was raised instead; and when two answers are equal.

A question that needs its own answer is on a dependency cycle. That error passes through questions as
`Circular`, which they cannot catch: their answers would depend on where the cycle was entered.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Final

_NOTES: Final = "__notes__"  # where they are kept (PEP 678); they do not count when errors are compared


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
    """The answer of a question that raised; a note of the error says where.

    It has no traceback. The frames of one hold on to the local variables of everybody who was running, such
    as answers that were replaced, in cycles that only the garbage collector finds, and it comes seldom.
    """

    __slots__ = ("error",)
    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def __init__(self, error: Exception) -> None:
        if not hasattr(error, _NOTES) and (place := _place(error.__traceback__)):
            error.add_note(place)
        each: BaseException | None = error
        while each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
        self.error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and _content(self.error) == _content(other.error)

    def throw(self, *, inside: bool) -> None:
        """Raise it, for another question or for a caller outside; its traceback does not grow by that."""
        if inside and isinstance(self.error, CycleError):
            raise Circular(self.error)
        raise self.error.with_traceback(None)


def _place(traceback: TracebackType | None) -> str:
    """The line that raised."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return f"raised at {code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}"


def same(answer: object, other: object) -> bool:
    """Whether two answers are equal."""
    try:
        return answer is other or bool(answer == other)
    except Exception:  # noqa: BLE001 - what cannot be compared counts as changed
        return False


def _content(error: Exception) -> tuple[object, ...]:
    attributes = {name: value for name, value in vars(error).items() if name != _NOTES}
    return type(error), error.args, attributes
