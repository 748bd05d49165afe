"""Garbage: how often Python looks for circles of objects that nobody needs, and what becomes of free memory.

Nearly all that a control plane has lives until it is dropped for a reason, and then goes at once. Looking
through all of it for circles finds next to nothing, and takes seconds with thousands of proxies, in which
nothing else happens. So what has been looked through once is not looked at again, except now and then.

Thousands of proxies that come at once need memory for a moment: messages on their way, requests being read.
The C library keeps what is free again for the next time, which may never come; so it is told to give it back.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

_YOUNG: Final = 100_000  # objects that are made before the youngest are looked through: tens of milliseconds
_MIDDLE: Final = 10
_OLDEST: Final = 2
_ALL_EVERY: Final = 100  # of so many full rounds one looks at everything
_GROWN_PAGES: Final = 256  # of growth after which it is worth a look: 1 MiB
_LOOK_SECONDS: Final = 4.0
_PAGES: Final = Path("/proc/self/statm")
_MMAP_THRESHOLD: Final = -3  # the name of an option of the C library
_LARGE_BYTES: Final = 128 * 1024


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
    """Do not look before `begin`, and then only through what is new."""
    gc.disable()
    gc.set_threshold(_YOUNG, _MIDDLE, *gc.get_threshold()[_OLDEST:])
    gc.callbacks.append(_Rounds().told)


def begin() -> None:
    """All is set up: what lives from the start lives to the end, and is not looked at."""
    gc.freeze()
    gc.enable()


def keep_no_large() -> None:
    """Let large blocks, as messages are for which many proxies wait, go back to the system one by one.

    The C library would begin to keep them after the first few, among small ones that stay.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, _LARGE_BYTES)


async def give_back() -> None:
    """Return free memory to the system after there was more to do than usual, until cancelled."""
    trim = _trim()
    kept = _resident_pages()
    was_busy = False
    while trim is not None and kept:
        await asyncio.sleep(_LOOK_SECONDS)
        is_busy = _resident_pages() > kept + _GROWN_PAGES
        if was_busy and not is_busy:  # circles were left on the way
            gc.collect(0)  # tens of milliseconds at most, as otherwise soon
        if is_busy or was_busy:  # what was in use at the last look may be free by now
            await asyncio.to_thread(trim, 0)  # some milliseconds, in which Python goes on
        kept, was_busy = _resident_pages() if is_busy else min(kept, _resident_pages()), is_busy


def _trim() -> Callable[[int], int] | None:
    """What the C library of Linux distributions has for this; others have nothing."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _resident_pages() -> int:
    """Pages of memory in use; 0 where the system does not tell."""
    try:
        return int(_PAGES.read_text().split()[1])
    except OSError:
        return 0
