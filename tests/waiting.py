"""Waiting for what happens beside a test."""

import http.client
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 60.0  # much longer than anything takes on a machine that does nothing else


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


def eventually(question: Callable[[], Any], expected: Any, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the answer is the expected one; the last answer is compared, and so shown."""
    end = time.monotonic() + seconds
    while (answer := question()) != expected and time.monotonic() < end:
        time.sleep(0.02)
    assert answer == expected
