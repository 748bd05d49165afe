"""Nearest: the known word that a mistyped one probably stands for, or none.

A suggestion that is far off sends people the wrong way, so only slips of the keyboard count: a few letters
wrong, missing or swapped, the rest of a word left out, or Kuma's `Mesh` in front forgotten.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

_PREFIX: Final = "mesh"
_SLIPS_MAX: Final = 3
_LETTERS_PER_SLIP: Final = 3
_ABBREVIATION_MIN: Final = 4
_LETTERS_MAX: Final = 64  # of a word that is compared letter by letter
_CANDIDATES_MAX: Final = 1000  # to which one is compared


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of the known words that is nearest, in any case; None where none is near."""
    words = {candidate.lower(): candidate for candidate in known}
    lowered = word.lower()
    for spelling in (lowered, f"{_PREFIX}{lowered}"):
        if spelling in words:
            return words[spelling]
    match = _slip(lowered, words)
    if match is None:
        stripped = {name.removeprefix(_PREFIX): name for name in words if name.startswith(_PREFIX)}
        rest = _slip(lowered, stripped)
        match = stripped[rest] if rest is not None else None
    return words[match] if match is not None else _completed(lowered, words)


def _slip(word: str, known: Iterable[str]) -> str | None:
    allowed = max(1, min(_SLIPS_MAX, len(word) // _LETTERS_PER_SLIP))
    if len(word) > _LETTERS_MAX:
        return None
    near = islice((name for name in known if abs(len(name) - len(word)) <= allowed), _CANDIDATES_MAX)
    best = min(((distance(word, name), name) for name in near), default=(allowed + 1, ""))
    return best[1] if best[0] <= min(allowed, len(best[1]) - 1) else None


def _completed(word: str, words: dict[str, str]) -> str | None:
    """The only word that begins like this."""
    completions = [name for name in words if name.startswith(word)] if len(word) >= _ABBREVIATION_MIN else []
    return words[completions[0]] if len(completions) == 1 else None


def distance(one: str, other: str) -> int:
    """How many letters are wrong, missing, too many, or swapped with their neighbour."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        current = [row]
        for column, beside in enumerate(other, 1):
            cost = min(above[column] + 1, current[column - 1] + 1, above[column - 1] + (letter != beside))
            is_swapped = row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == beside
            current.append(min(cost, before[column - 2] + 1) if is_swapped else cost)
        before, above = above, current
    return above[-1]
