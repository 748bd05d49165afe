"""The wall clock. What decides something gets it as an argument, so that tests can move it."""

from datetime import UTC, datetime


def now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)
