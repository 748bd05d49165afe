"""Metrics of a control plane: its store, watches and background tasks."""

from collections.abc import Iterator

from koguma.runtime.audit_log import AuditLog
from koguma.runtime.background import Background
from koguma.store import Store

Gauge = tuple[str, str, str, float]  # name, help, type, value


def audit_gauges(audit: AuditLog) -> Iterator[Gauge]:
    """Figures of the audit log."""
    yield "koguma_audit_events", "Events that the audit log has.", "counter", audit.n_written
    yield "koguma_audit_dropped", "Events that the audit log has lost.", "counter", audit.n_dropped


def gauges(store: Store, background: Background, n_watches: int, proxies: Iterator[Gauge]) -> Iterator[Gauge]:
    """Figures for the metrics page, those of proxies among them."""
    yield "koguma_store_revision", "Newest revision that is known here.", "gauge", store.state.revision
    yield "koguma_store_writes", "Transactions that were written.", "counter", store.writes
    yield "koguma_store_batches", "Group commits.", "counter", store.batches
    yield "koguma_store_conflicts", "Appends where another was first.", "counter", store.conflicts
    yield "koguma_store_lost", "Appends whose outcome had to be looked up.", "counter", store.lost
    yield "koguma_store_unwritable", "Whether the database takes no writes.", "gauge", bool(store.unwritable)
    yield "koguma_store_full", "Whether there is no room to store more.", "gauge", bool(store.full)
    yield from proxies
    yield "koguma_api_watches", "Watches that are open.", "gauge", n_watches
    failed = background.n_failures
    yield "koguma_background_failures", "Times that work in the background failed.", "counter", failed
