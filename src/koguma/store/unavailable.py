"""Waiting: how work that goes on by itself tells that the store keeps it waiting."""

from typing import Any

from structlog.typing import FilteringBoundLogger

from koguma.model.errors import KogumaError, StoreFull


def log_unavailable(log: FilteringBoundLogger, event: str, error: KogumaError, **fields: Any) -> None:
    """Warn; but not of a full store, which has told so itself: every proxy and mesh would repeat it."""
    tell = log.debug if isinstance(error, StoreFull) else log.warning
    tell(event, reason=error.detail, **fields)
