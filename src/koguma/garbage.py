"""Garbage: how often Python looks for circles among objects that nobody needs.

Nearly all that a control plane has lives until it is dropped for a reason, and then goes at once. Looking
through all of it for circles finds next to nothing, and takes seconds with thousands of proxies, in which
nothing else happens. So what has been looked through once is not looked at again, except now and then.
"""

import gc
from collections.abc import Mapping
from typing import Any, Final

_YOUNG: Final = 5_000  # objects that are made before the youngest are looked through
_MIDDLE: Final = 10
_OLDEST: Final = 2
_ALL_EVERY: Final = 100  # of so many full rounds one looks at everything


class _Rounds:
    """Counts the full rounds; `told` is called before and after each."""

    def __init__(self) -> None:
        self._n = 0

    def told(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
            return
        self._n += 1
        if self._n % _ALL_EVERY == 0:
            gc.unfreeze()


def look_seldom() -> None:
    """From now on look only through what is new."""
    gc.set_threshold(_YOUNG, _MIDDLE, *gc.get_threshold()[_OLDEST:])
    gc.callbacks.append(_Rounds().told)
