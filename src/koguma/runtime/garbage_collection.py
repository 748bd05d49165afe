"""How often the cyclic garbage collector runs, and when free memory goes back to the system.

Almost everything that a control plane keeps lives until it is dropped for a reason, and reference counting
frees it then. A full collection finds next to nothing and takes seconds with thousands of proxies, in which
nothing else happens. So objects that have survived one are frozen, and collected again only now and then.

Thousands of proxies that connect at once need memory for a moment: messages being sent, requests being
read. The C library keeps what was freed for later, so it is told to return it to the system.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

_YOUNG: Final = 100_000  # objects allocated before the youngest generation is collected: tens of ms
_MIDDLE: Final = 10
_OLDEST: Final = 2
_ALL_EVERY: Final = 100  # one of so many full collections includes frozen objects
_GROWN_PAGES: Final = 256  # growth after which memory is returned: 1 MiB
_INTERVAL_SECONDS: Final = 4.0
_PAGES: Final = Path("/proc/self/statm")
_MMAP_THRESHOLD: Final = -3  # the name of an option of the C library
_LARGE_BYTES: Final = 128 * 1024


class _FullCollections:
    """Counts full collections; Python calls `on_collection` before and after each."""

    def __init__(self) -> None:
        self._n = 0

    def on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
            return
        self._n += 1
        if self._n % _ALL_EVERY == 0:
            gc.unfreeze()


def defer() -> None:
    """Collect nothing before `begin`, and then mostly what is new."""
    gc.disable()
    gc.set_threshold(_YOUNG, _MIDDLE, *gc.get_threshold()[_OLDEST:])
    gc.callbacks.append(_FullCollections().on_collection)


def begin() -> None:
    """The start is over: what it allocated lives to the end, and is not collected."""
    gc.freeze()
    gc.enable()


def release_large_blocks() -> None:
    """Let large blocks, such as messages for many proxies, go back to the system when they are freed.

    The C library would begin to keep them after the first few, between small blocks that stay.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, _LARGE_BYTES)


async def return_free_memory() -> None:
    """Return free memory to the system after there was more to do than usual, until cancelled."""
    trim = _trim()
    kept = _resident_pages()
    was_busy = False
    while trim is not None and kept:
        await asyncio.sleep(_INTERVAL_SECONDS)
        is_busy = _resident_pages() > kept + _GROWN_PAGES
        if was_busy and not is_busy:  # reference cycles were left over
            gc.collect(0)  # tens of milliseconds at most
        if is_busy or was_busy:  # what was in use at the last check may be free by now
            await asyncio.to_thread(trim, 0)  # some milliseconds, during which Python runs on
        kept, was_busy = _resident_pages() if is_busy else min(kept, _resident_pages()), is_busy


def _trim() -> Callable[[int], int] | None:
    """Glibc's malloc_trim; None where the C library has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _resident_pages() -> int:
    """Pages of memory in use; 0 where the system does not show them."""
    try:
        return int(_PAGES.read_text().split()[1])
    except OSError:
        return 0
