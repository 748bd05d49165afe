"""Where a request went: spans of each hop, sent to a tracing backend.

MeshTrace acts on whole proxies, for HTTP traffic in both directions. A service has to pass the trace
headers of a request on to the requests that it causes; the proxies do the rest. Envoy takes one backend;
an empty list switches tracing off where a wider policy has switched it on.

```yaml
type: MeshTrace
name: trace-to-zipkin
mesh: default
spec:
  targetRef: {kind: Mesh}
  default:
    backends:
      - type: Zipkin
        zipkin: {url: "http://zipkin.observability:9411/api/v2/spans", apiVersion: httpJson}
    sampling: {overall: 80, random: "60.5"}
    tags:
      - {name: team, literal: core}
      - {name: env, header: {name: x-env, default: prod}}
```
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import IntOrString, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_trace import overlay
from koguma.policies.parts import collectors, fields, spelling
from koguma.policies.parts.fields import CollectorRef


class Zipkin(Spec):
    """A Zipkin collector, or any that speaks its protocol."""

    url: Annotated[str, doc("The collector's address, with its path.")]
    trace_id_128bit: Annotated[bool | None, doc("Trace ids of 128 bits; false by default.")] = msgspec.field(
        name="traceId128bit", default=None
    )
    api_version: Annotated[
        Literal["httpJson", "httpProto"] | None, doc("How spans are written; httpJson by default.")
    ] = None
    shared_span_context: Annotated[bool | None, doc("Client and server share one span; true by default.")] = (
        None
    )


class Datadog(Spec):
    """A Datadog agent."""

    url: Annotated[str, doc("The agent's address: http, host and port only.")]
    split_service: Annotated[
        bool | None, doc("Name the service by direction and destination too; false by default.")
    ] = None


class OtelTrace(Spec):
    """An OpenTelemetry collector."""

    endpoint: Annotated[
        str | None, doc("Host and port for gRPC, or a URL for HTTP; port 4317 by default.")
    ] = None
    backend_ref: Annotated[CollectorRef | None, doc("Where the collector's address stands.")] = None


class TraceBackend(Spec):
    """Where spans go."""

    type: Annotated[Literal["Zipkin", "Datadog", "OpenTelemetry"], doc("Which of the following counts.")]
    zipkin: Annotated[Zipkin | None, doc("A Zipkin collector.")] = None
    datadog: Annotated[Datadog | None, doc("A Datadog agent.")] = None
    open_telemetry: Annotated[OtelTrace | None, doc("An OpenTelemetry collector.")] = None


class Sampling(Spec):
    """Which share of requests is traced, in percent; numbers, or text with decimals."""

    overall: Annotated[IntOrString | None, doc("Of all requests, the upper limit; 100 by default.")] = None
    client: Annotated[IntOrString | None, doc("Of requests whose client asks for it; 100 by default.")] = None
    random: Annotated[IntOrString | None, doc("Of all other requests; 100 by default.")] = None


class HeaderTag(Spec):
    """A tag whose value is a request header's."""

    name: Annotated[str, doc("The header.")]
    default: Annotated[str | None, doc("The value without that header; no tag by default.")] = None


class TraceTag(Spec):
    """A tag on every span: one of the two values."""

    name: Annotated[str, doc("The tag's name.")]
    literal: Annotated[str | None, doc("A fixed value.")] = None
    header: Annotated[HeaderTag | None, doc("A request header's value.")] = None


class TraceConf(Spec):
    """Where spans go, how many, and with which tags."""

    backends: Annotated[tuple[TraceBackend, ...] | None, doc("One backend; an empty list is none.")] = None
    sampling: Annotated[Sampling | None, doc("Which share of requests is traced.")] = None
    tags: Annotated[tuple[TraceTag, ...] | None, doc("Tags on every span.")] = None


class MeshTraceSpec(Spec):
    """Which proxies, and how they trace."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    default: Annotated[TraceConf, doc("How they trace.")] = TraceConf()


def validate(spec: MeshTraceSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=False, gateway_tags=False)
    path = "spec.default"
    yield from _backends(spec.default.backends, child(path, "backends"))
    yield from _sampling(spec.default.sampling or Sampling(), child(path, "sampling"))
    for index, tag in enumerate(spec.default.tags or ()):
        yield from _tag(tag, item(child(path, "tags"), index))


def _backends(backends: tuple[TraceBackend, ...] | None, path: str) -> Iterator[Violation]:
    if backends is None:
        yield Violation(path, fields.MUST_BE_DEFINED, "required")
    elif len(backends) > 1:
        yield Violation(path, "must have zero or one backend defined", "length")
    elif backends:
        yield from _backend(backends[0], item(path, 0))


def _backend(backend: TraceBackend, path: str) -> Iterator[Violation]:
    match backend:
        case TraceBackend(type="Zipkin", zipkin=Zipkin() as zipkin):
            yield from _zipkin(zipkin.url, child(path, "zipkin.url"))
        case TraceBackend(type="Datadog", datadog=Datadog() as datadog):
            yield from _datadog(datadog.url, child(path, "datadog.url"))
        case TraceBackend(type="OpenTelemetry", open_telemetry=OtelTrace() as otel):
            at = child(path, "openTelemetry")
            yield from fields.collector(otel.endpoint, otel.backend_ref, at)
            yield from _otel(otel.endpoint, child(at, "endpoint"))
        case _:
            section = f"{backend.type[0].lower()}{backend.type[1:]}"
            yield Violation(child(path, section), fields.MUST_BE_DEFINED, "required")


_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")


def _url(text: str) -> SplitResult | None:
    """The parts of a URL that has a scheme and a host; None where `text` is none."""
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:  # an unbalanced bracket
        return None
    return parts if parts.scheme and host and not _BLANK.search(text) else None


def _has_bad_port(parts: SplitResult) -> bool:
    try:
        return parts.port == 0
    except ValueError:  # no number, or beyond 65535
        return True


def _zipkin(url: str, path: str) -> Iterator[Violation]:
    parts = _url(url)
    if not url:
        yield Violation(path, fields.MUST_NOT_BE_EMPTY, "required")
    elif parts is None or _has_bad_port(parts) or parts.scheme not in ("http", "https"):
        yield Violation(path, "must be a valid url", "url")


def _datadog(url: str, path: str) -> Iterator[Violation]:
    parts = _url(url)
    if parts is None:
        yield Violation(path, "must be a valid url", "url")
        return
    if parts.scheme != "http":
        yield Violation(path, "scheme must be http", "url")
    if _has_bad_port(parts):
        yield Violation(path, fields.BAD_PORT, "range")
    elif parts.port is None:
        yield Violation(path, f"port {fields.MUST_BE_DEFINED}", "required")
    for name, value in (
        ("user", parts.username),
        ("path", parts.path),
        ("query", parts.query),
        ("fragment", parts.fragment),
    ):
        if value:
            yield Violation(path, f"{name} {fields.MUST_NOT_BE_DEFINED}", "forbidden")


def _otel(endpoint: str | None, path: str) -> Iterator[Violation]:
    if not endpoint or fields.is_collector_address(endpoint):
        return
    parts = _url(endpoint)
    if parts is None or "://" not in endpoint:
        yield Violation(path, "must be a valid URL", "url")
        return
    if parts.scheme not in ("http", "https"):
        yield Violation(path, "URL scheme must be http or https", "url")
    if _has_bad_port(parts):
        yield Violation(path, "port must be valid (1-65535)", "range")


def _sampling(sampling: Sampling, path: str) -> Iterator[Violation]:
    for name, value in (
        ("overall", sampling.overall),
        ("client", sampling.client),
        ("random", sampling.random),
    ):
        share = fields.number(value) if value is not None else 0
        if share is None:
            yield Violation(child(path, name), "string is not a number", "number")
        elif not 0 <= share <= 100:  # noqa: PLR2004 - percent
            yield Violation(child(path, name), "must be between 0 and 100", "range")


def _tag(tag: TraceTag, path: str) -> Iterator[Violation]:
    if not tag.name:
        yield Violation(child(path, "name"), fields.MUST_NOT_BE_EMPTY, "required")
    if (tag.literal is None) == (tag.header is None):
        yield Violation(path, "tag must have only one type defined: header, literal", "exclusive")
    if tag.header is not None and not tag.header.name:
        yield Violation(child(path, "header.name"), fields.MUST_NOT_BE_EMPTY, "required")


def warn(spec: MeshTraceSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)


KIND = Kind(
    name="MeshTrace",
    plural="meshtraces",
    short="mtr",
    doc=__doc__,
    spec=MeshTraceSpec,
    columns=columns.WITH_BACKENDS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.TRACING,
        hooks=PolicyHooks(
            outbound=overlay.outbound,
            inbound=overlay.inbound,
            at_gateways=True,
            looks_up=(collectors.KIND,),
            per_service=overlay.per_service,
        ),
    ),
    clean=spelling.refs,
    validate=validate,
    warn=warn,
)
