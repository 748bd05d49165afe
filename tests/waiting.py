"""Waiting for what happens beside a test."""

import http.client
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 20.0


def until(happened: Callable[[], Any], what: str = "", seconds: float = WAIT_SECONDS) -> Any:
    """Wait until a function gives something true; what it gives. A refused connection is nothing."""
    end = time.monotonic() + seconds
    seen: Any = None
    while time.monotonic() < end:
        try:
            seen = happened()
        except (OSError, http.client.HTTPException) as error:
            seen = error
        if seen and not isinstance(seen, Exception):
            return seen
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what or happened}; last seen: {seen!r}")
