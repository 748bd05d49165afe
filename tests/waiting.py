"""Waiting for what happens beside a test."""

import http.client
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 20.0


def until(condition: Callable[[], Any], what: str = "", seconds: float = WAIT_SECONDS) -> Any:
    """Wait until a function gives something true, and give that. A refused connection counts as false."""
    end = time.monotonic() + seconds
    result: Any = None
    while time.monotonic() < end:
        try:
            result = condition()
        except (OSError, http.client.HTTPException) as error:
            result = error
        if result and not isinstance(result, Exception):
            return result
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what or condition}; last result: {result!r}")
