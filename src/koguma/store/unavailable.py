"""How background work logs that it waits for the store."""

from typing import Any

from structlog.typing import FilteringBoundLogger

from koguma.model.errors import KogumaError, StoreFull, StoreLost


def log_unavailable(log: FilteringBoundLogger, event: str, error: KogumaError, **fields: Any) -> None:
    """Warn; but not of a lost or full store, which logs that itself: every proxy and mesh would repeat it."""
    write = log.debug if isinstance(error, StoreFull | StoreLost) else log.warning
    write(event, reason=error.detail, **fields)
