"""Telemetry: what a control plane sends of itself to collectors, and its audit log."""

import os
from collections.abc import Mapping

from koguma.api import tracing
from koguma.api.tracing import Tracer
from koguma.application.context import InstanceInfo
from koguma.runtime.audit_collector import AuditCollector
from koguma.runtime.audit_file import AuditFile
from koguma.runtime.audit_log import AuditLog
from koguma.runtime.settings import Settings


def tracer(settings: Settings, about: InstanceInfo) -> Tracer | None:
    """What sends a span for each request, where the settings name a collector."""
    if not settings.traces_url:
        return None
    return tracing.tracer(settings.traces_url, settings.traces_ratio, _resource(settings, about))


def audit_log(settings: Settings, about: InstanceInfo) -> AuditLog | None:
    """The audit log, begun, where the settings say where it goes."""
    if settings.audit_url:
        log = AuditLog(AuditCollector(settings.audit_url, _resource(settings, about), os.environ))
    elif settings.audit_log:
        log = AuditLog(AuditFile(settings.audit_log))
    else:
        return None
    log.start()
    return log


def _resource(settings: Settings, about: InstanceInfo) -> Mapping[str, str]:
    """Who sends, in OpenTelemetry's words."""
    return {
        "service.name": "koguma",
        "service.version": about.version,
        "service.instance.id": about.instance_id,
        "host.name": about.hostname,
        "koguma.mode": settings.mode,
        "koguma.zone": settings.control_plane.zone,
    }
