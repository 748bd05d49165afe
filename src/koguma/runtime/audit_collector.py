"""Audit collector: events as log records of OpenTelemetry, sent to a collector over OTLP/HTTP as JSON.

The record of an event has the event as its body, as a map, and the event's time. Of OpenTelemetry's variables
those for headers, certificates and the resource count. Events that a collector cannot take just now wait, and
are sent again; what it refuses for good is lost, and counted.
"""

import http.client
import json
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from koguma.model.errors import KogumaError
from koguma.model.redacted import masked_url
from koguma.runtime.audit_log import AuditProblem, AuditResult, Event

_SECONDS_MAX: Final = 10.0  # for one request
_PASSING: Final = (408, 429, 500, 502, 503, 504)  # of OTLP: send it again; 500 of proxies in between
_TEXT_MAX: Final = 200
_REASONS: Final = {400: "it does not understand the events", 401: "it wants credentials", 403: "it denies it"}
_INFO, _WARN = 9, 13  # OpenTelemetry's severity numbers
_MILLION: Final = 1_000_000


class AuditCollector:
    """Sends events to the collector at a URL; `about` describes this control plane."""

    def __init__(self, url: str, about: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._url = url
        self._resource = {**about, **_pairs(environment, "OTEL_RESOURCE_ATTRIBUTES")}
        self._headers = {
            "Content-Type": "application/json",
            **_pairs(environment, "OTEL_EXPORTER_OTLP_HEADERS"),
            **_pairs(environment, "OTEL_EXPORTER_OTLP_LOGS_HEADERS"),
        }
        self._environment = environment
        self._opener: urllib.request.OpenerDirector | None = None

    @property
    def name(self) -> str:
        """The URL, without a password."""
        return masked_url(self._url)

    def open(self) -> None:
        """Read the certificates."""
        if not self._url.startswith("https:"):
            handler: urllib.request.BaseHandler = urllib.request.HTTPHandler()
        else:
            handler = urllib.request.HTTPSHandler(context=self._tls())
        # Redirects are not followed: they would carry the headers elsewhere.
        self._opener = urllib.request.OpenerDirector()
        self._opener.add_handler(handler)

    def write(self, events: Sequence[Event]) -> AuditResult:
        """Send events in one request."""
        assert self._opener is not None
        body = json.dumps(self._message(events), ensure_ascii=False).encode(errors="replace")
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=_SECONDS_MAX) as response:
                status: int = response.status
                answer = response.read(_TEXT_MAX).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            return self._failed(f"{reason}" or type(error).__name__, is_passing=True)
        if status // 100 == 2:  # noqa: PLR2004 - success
            return AuditResult(len(events))
        reason = _REASONS.get(status, "it does not take the events")
        return self._failed(f"{reason}: status {status} {answer}".strip(), is_passing=status in _PASSING)

    def close(self) -> None:
        """Nothing is open between two requests."""

    def _failed(self, text: str, *, is_passing: bool) -> AuditResult:
        hint = f"look whether a collector takes OTLP/HTTP logs at {self.name}"
        if not is_passing:
            hint += "; its headers come from OTEL_EXPORTER_OTLP_HEADERS"
        return AuditResult(0, AuditProblem(text, hint, is_passing))

    def _tls(self) -> ssl.SSLContext:
        certificate = _first(self._environment, "CERTIFICATE")
        chain, key = _first(self._environment, "CLIENT_CERTIFICATE"), _first(self._environment, "CLIENT_KEY")
        try:
            context = ssl.create_default_context(cafile=certificate or None)
            if chain:
                context.load_cert_chain(chain, key or None)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(name for name in (certificate, chain, key) if name)
            raise KogumaError(
                f"the audit log cannot be sent: {names} cannot be read ({error.strerror or error})"
            ) from error
        return context

    def _message(self, events: Sequence[Event]) -> Mapping[str, Any]:
        scope = {"scope": {"name": "koguma.audit"}, "logRecords": [_record(event) for event in events]}
        resource = {"attributes": _attributes(self._resource)}
        return {"resourceLogs": [{"resource": resource, "scopeLogs": [scope]}]}


def _record(event: Event) -> Mapping[str, Any]:
    """A log record; in JSON its time is text, as all numbers of 64 bits."""
    moment = datetime.fromisoformat(event["time"])
    nanoseconds = str(round(moment.timestamp() * 1000) * _MILLION)
    is_allowed = event.get("allowed", True)
    return {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": _INFO if is_allowed else _WARN,
        "severityText": "INFO" if is_allowed else "WARN",
        "eventName": "koguma.audit",
        "body": _value(event),
    }


def _attributes(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> Mapping[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case Mapping():
            return {"kvlistValue": {"values": _attributes(value)}}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}


def _pairs(environment: Mapping[str, str], variable: str) -> Mapping[str, str]:
    """The pairs of a variable of OpenTelemetry's: NAME=VALUE,NAME=VALUE, with percent escapes."""
    pairs = (part.partition("=") for part in environment.get(variable, "").split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


def _first(environment: Mapping[str, str], what: str) -> str:
    """A variable about logs, else the one about everything that is sent."""
    names = (f"OTEL_EXPORTER_OTLP_LOGS_{what}", f"OTEL_EXPORTER_OTLP_{what}")
    return next((environment[name] for name in names if environment.get(name)), "")
