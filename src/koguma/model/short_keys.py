"""Short keys: caches whose keys come from clients keep only short keys, so that nobody can fill the memory.

A cache of a thousand entries is small only if each entry is: headers and paths may have 16 KB. What clients
normally send is short; for longer keys the result is computed each time.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, Final, ParamSpec, TypeVar

CHARACTERS_MAX: Final = 512

P = ParamSpec("P")
T = TypeVar("T")


def is_short(*texts: str) -> bool:
    """Whether texts, together, may be the key of something that is kept."""
    return sum(map(len, texts)) <= CHARACTERS_MAX


def kept_if_short(
    maxsize: int,
) -> Callable[[Callable[Concatenate[str, P], T]], Callable[Concatenate[str, P], T]]:
    """As `lru_cache`, for a function of a text and more; the result for a long text is not cached."""

    def decorate(function: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
        kept = lru_cache(maxsize=maxsize)(function)

        def answer(text: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if len(text) > CHARACTERS_MAX:
                return function(text, *args, **kwargs)
            return kept(text, *args, **kwargs)  # type: ignore[arg-type]

        answer.__doc__ = function.__doc__
        return answer

    return decorate
