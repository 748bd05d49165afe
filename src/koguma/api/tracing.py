"""Tracing: a span for each request, sent to an OpenTelemetry collector over OTLP/HTTP.

Off unless the setting `tracesEndpoint` names a collector; the libraries are imported only then. A caller's
W3C `traceparent` is continued, and its decision whether the trace is recorded is kept. Spans wait in memory
and go out in batches from a thread of their own: a collector that is slow or away holds up no request, and
what does not fit is dropped. Neither headers nor queries are part of a span, since both may hold secrets.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from koguma.api.call import Call
from koguma.model.errors import KogumaError

if TYPE_CHECKING:  # a control plane without traces does not need these packages
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Result = TypeVar("Result")

_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"))
_OTHER: Final = "_OTHER"  # OpenTelemetry's value for an unknown method
_PATH_MAX: Final = 500
_ERRORS_FROM: Final = 500
_LAST_SECONDS: Final = 3.0


class RequestSpan:
    """The span of one request, while it is answered."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: "Tracer", span: "Span") -> None:
        self._tracer = tracer
        self._span = span

    def answered(self, status: int) -> None:
        """Record the status; 5xx is an error of the span, 4xx is not (OpenTelemetry's HTTP conventions)."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only where requests are traced

        self._span.set_attribute("http.response.status_code", status)
        if status >= _ERRORS_FROM:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(StatusCode.ERROR)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the work, as a child span."""
        with self._tracer.part(name, self._span):
            yield


_current: ContextVar[RequestSpan | None] = ContextVar("koguma_request_span", default=None)


async def timed(name: str, work: Awaitable[Result]) -> Result:
    """Wait for a part of a request's work, as a span of its own where the request has one."""
    span = _current.get()
    if span is None:
        return await work
    with span.part(name):
        return await work


class Tracer:
    """Makes spans, and sends them from a thread of its own until it is stopped."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - the same
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer("koguma.api")
        self._propagator = TraceContextTextMapPropagator()

    @contextlib.contextmanager
    def request(self, call: Call, label: str) -> Iterator[RequestSpan]:
        """The span of a request, named by method and endpoint; it ends with the block."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - the same

        request = call.request
        method = request.method if request.method in _METHODS else _OTHER
        span = self._tracer.start_span(
            f"{method} {label}",
            self._propagator.extract(request.headers),
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.path": request.path[:_PATH_MAX],
                "url.scheme": request.scheme,
                "koguma.request_id": call.id,
            },
        )
        request_span = RequestSpan(self, span)
        token = _current.set(request_span)
        try:
            yield request_span
        finally:
            _current.reset(token)
            span.set_attribute(
                "enduser.id", call.user.name
            )  # set at the end: authentication happens inside the span
            span.end()

    @contextlib.contextmanager
    def part(self, name: str, parent: "Span") -> Iterator[None]:
        """A child span."""
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - the same

        span = self._tracer.start_span(name, set_span_in_context(parent))
        try:
            yield
        finally:
            span.end()

    async def stop(self) -> None:
        """Flush queued spans, for a few seconds at most: an unreachable collector must not delay the stop."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _LAST_SECONDS)


def tracer(endpoint: str, ratio: float, about: Mapping[str, str]) -> Tracer:
    """What sends to a collector; `about` describes this control plane unless the environment does.

    `ratio` is the share of those requests whose callers have not decided already.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - the same
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415
    except ImportError as error:
        raise KogumaError(
            f"traces are switched on (tracesEndpoint) and {error.name} is not installed;"
            " run `pip install 'koguma[traces]'`, or leave the setting out"
        ) from None
    resource = Resource.create({**about, **OTELResourceDetector().detect().attributes})
    sampler = ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracer(provider)
