"""Backends of a Mesh: where its older settings send access logs and traces, and expose metrics.

The policies MeshAccessLog, MeshTrace and MeshMetric have taken over; objects that still carry these
settings stay legal. `conf` is typed by the backend's `type`, and read when it is checked.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from koguma.kinds import rules
from koguma.kinds.rules import UInt32
from koguma.model.schema import Json, Spec, doc, keyed_by
from koguma.model.violation import Violation, child, item


class MetricsAggregate(Spec):
    """An application beside the proxy whose metrics are passed on."""

    name: Annotated[str | None, doc("Name of this entry.")] = None
    address: Annotated[str | None, doc("Where the application listens.")] = None
    port: Annotated[UInt32 | None, doc("Port of the application's metrics.")] = None
    path: Annotated[str | None, doc("Path of the application's metrics.")] = None
    enabled: Annotated[bool | None, doc("Whether to pass them on; true by default.")] = None


class MetricsEnvoy(Spec):
    """Which of Envoy's own metrics are shown."""

    filter_regex: Annotated[str | None, doc("Only metrics whose name fits.")] = None
    used_only: Annotated[bool | None, doc("Only metrics that have changed since the start.")] = None


class MetricsTls(Spec):
    """How the metrics port is protected."""

    mode: Annotated[
        Literal["activeMTLSBackend", "providedTLS", "disabled"] | None,
        doc("The mesh's certificates (default), certificates of your own, or none."),
    ] = None


class PrometheusConf(Spec):
    """Where a proxy shows its metrics."""

    port: Annotated[UInt32 | None, doc("The port; 5670 by default.")] = None
    path: Annotated[str | None, doc("The path; /metrics by default.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags of the metrics' own inbound.")] = None
    skip_mtls: Annotated[bool | None, doc("Show the metrics without TLS; `tls` is the newer way.")] = (
        msgspec.field(name="skipMTLS", default=None)
    )
    aggregate: Annotated[tuple[MetricsAggregate, ...] | None, doc("Applications to pass on.")] = None
    envoy: Annotated[MetricsEnvoy | None, doc("Which of Envoy's own metrics are shown.")] = None
    tls: Annotated[MetricsTls | None, doc("How the port is protected.")] = None


class MetricsBackend(Spec):
    """Metrics for Prometheus."""

    name: Annotated[str | None, doc("Name of the backend.")] = None
    type: Annotated[str | None, doc("Always prometheus.")] = None
    conf: Annotated[PrometheusConf | None, doc("Where the metrics are shown.")] = None


class MeshMetrics(Spec):
    """Metrics of all proxies in the mesh."""

    enabled_backend: Annotated[str | None, doc("Name of the backend in use.")] = None
    backends: Annotated[tuple[MetricsBackend, ...] | None, doc("The backends."), keyed_by("name")] = None


class LoggingBackend(Spec):
    """A place for access logs."""

    name: Annotated[str | None, doc("Name of the backend.")] = None
    format: Annotated[str | None, doc("Format of a line, in Envoy's placeholders.")] = None
    type: Annotated[str | None, doc("tcp or file.")] = None
    conf: Annotated[Mapping[str, Json] | None, doc("`address` for tcp, `path` for file.")] = None


class MeshLogging(Spec):
    """Access logs of the mesh."""

    default_backend: Annotated[str | None, doc("Name of the backend in use by default.")] = None
    backends: Annotated[tuple[LoggingBackend, ...] | None, doc("The backends."), keyed_by("name")] = None


class TracingBackend(Spec):
    """A collector of traces."""

    name: Annotated[str | None, doc("Name of the backend.")] = None
    sampling: Annotated[float | None, doc("Share of requests that are traced, in percent.")] = None
    type: Annotated[str | None, doc("zipkin or datadog.")] = None
    conf: Annotated[Mapping[str, Json] | None, doc("The collector's settings.")] = None


class MeshTracing(Spec):
    """Traces of the mesh."""

    default_backend: Annotated[str | None, doc("Name of the backend in use by default.")] = None
    backends: Annotated[tuple[TracingBackend, ...] | None, doc("The backends."), keyed_by("name")] = None


class TcpLoggingConf(Spec):
    """A collector of access logs."""

    address: Annotated[str | None, doc("HOST:PORT of the collector.")] = None


class FileLoggingConf(Spec):
    """A file beside the proxy."""

    path: Annotated[str | None, doc("Path of the file.")] = None


class ZipkinConf(Spec):
    """A Zipkin collector."""

    url: Annotated[str | None, doc("URL of the collector, with a port.")] = None
    trace_id_128bit: Annotated[bool | None, doc("Whether trace ids have 128 bits.")] = msgspec.field(
        name="traceId128bit", default=None
    )
    api_version: Annotated[str | None, doc("httpJsonV1, httpJson or httpProto.")] = None
    shared_span_context: Annotated[bool | None, doc("Whether client and server share a span.")] = None


class DatadogConf(Spec):
    """A Datadog agent."""

    address: Annotated[str | None, doc("Address of the agent.")] = None
    port: Annotated[UInt32 | None, doc("Port of the agent.")] = None
    split_service: Annotated[bool | None, doc("Whether inbound and outbound are services apart.")] = None


_TLS_DEFAULT: Final = "activeMTLSBackend"
_ZIPKIN_VERSIONS: Final = ("httpJsonV1", "httpJson", "httpProto")
_SAMPLING_MAX: Final = 100.0

S = TypeVar("S", bound=Spec)


def logging_violations(logging: MeshLogging) -> Iterator[Violation]:
    """What is wrong with the access logs of a mesh."""
    backends = logging.backends or ()
    for index, backend in enumerate(backends):
        path = item("logging.backends", index)
        yield from _name_violations(backend.name, path)
        match backend.type:
            case "tcp":
                yield from _tcp_logging(backend.conf, path)
            case "file":
                yield from _file_logging(backend.conf, path)
            case _:
                yield _unknown_type(path, "tcp", "file")
        yield from _used_twice(backends, index, path)
    if logging.default_backend and logging.default_backend not in {backend.name for backend in backends}:
        message = "has to be set to one of the logging backend in mesh"
        yield Violation("logging.defaultBackend", message, "reference")


def _tcp_logging(conf: Mapping[str, Json] | None, path: str) -> Iterator[Violation]:
    tcp, broken = _read(TcpLoggingConf, conf, path)
    yield from broken
    if tcp is None:
        return
    address = tcp.address
    host, _, number = (address or "").rpartition(":")
    if not address:
        yield Violation(child(path, "config.address"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    elif not host or not number or (":" in host and not (host[0] == "[" and host[-1] == "]")):
        yield Violation(child(path, "config.address"), "has to be in format of HOST:PORT", "address")


def _file_logging(conf: Mapping[str, Json] | None, path: str) -> Iterator[Violation]:
    file, broken = _read(FileLoggingConf, conf, path)
    yield from broken
    if file is not None and not file.path:
        yield Violation(child(path, "config.path"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")


def tracing_violations(tracing: MeshTracing) -> Iterator[Violation]:
    """What is wrong with the traces of a mesh."""
    backends = tracing.backends or ()
    for index, backend in enumerate(backends):
        path = item("tracing.backends", index)
        yield from _name_violations(backend.name, path)
        if not 0 <= (backend.sampling or 0) <= _SAMPLING_MAX:
            yield Violation(child(path, "sampling"), "has to be in [0.0 - 100.0] range", "range")
        match backend.type:
            case "zipkin":
                yield from _zipkin(backend.conf, path)
            case "datadog":
                yield from _datadog(backend.conf, path)
            case _:
                yield _unknown_type(path, "zipkin", "datadog")
        yield from _used_twice(backends, index, path)
    if tracing.default_backend and tracing.default_backend not in {backend.name for backend in backends}:
        message = "has to be set to one of the tracing backend in mesh"
        yield Violation("tracing.defaultBackend", message, "reference")


def _zipkin(conf: Mapping[str, Json] | None, path: str) -> Iterator[Violation]:
    zipkin, broken = _read(ZipkinConf, conf, path)
    yield from broken
    if zipkin is None:
        return
    if zipkin.api_version and zipkin.api_version not in _ZIPKIN_VERSIONS:
        message = f"has invalid value. Allowed values: {', '.join(_ZIPKIN_VERSIONS)}"
        yield Violation(child(path, "config.apiVersion"), message, "enum")
    if not zipkin.url:
        yield Violation(child(path, "config.url"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    elif message := _url_message(zipkin.url):
        yield Violation(child(path, "config.url"), message, "url")


def _url_message(text: str) -> str:
    try:
        url = urlsplit(text)
        number = url.port
    except ValueError:
        return "invalid URL"
    if not url.scheme or not url.netloc:
        return "invalid URL"
    return "" if number else "port has to be explicitly specified"


def _datadog(conf: Mapping[str, Json] | None, path: str) -> Iterator[Violation]:
    datadog, broken = _read(DatadogConf, conf, path)
    yield from broken
    if datadog is None:
        return
    if not datadog.address:
        yield Violation(child(path, "config.address"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    yield from rules.port(datadog.port, child(path, "config.port"))


def metrics_violations(metrics: MeshMetrics) -> Iterator[Violation]:
    """What is wrong with the metrics of a mesh."""
    backends = metrics.backends or ()
    for index, backend in enumerate(backends):
        path = item("metrics.backends", index)
        yield from _used_twice(backends, index, path)
        yield from metrics_backend_violations(backend, path)
    if metrics.enabled_backend and metrics.enabled_backend not in {backend.name for backend in backends}:
        message = "has to be set to one of the backends in the mesh"
        yield Violation("metrics.enabledBackend", message, "reference")


def metrics_backend_violations(backend: MetricsBackend, path: str) -> Iterator[Violation]:
    """What is wrong with one metrics backend, of a mesh or of a proxy."""
    if backend.type != "prometheus":
        yield _unknown_type(path, "prometheus")
    elif backend.conf is not None:
        yield from _prometheus(backend.conf, child(path, "conf"))


def _prometheus(conf: PrometheusConf, path: str) -> Iterator[Violation]:
    # Kuma fills in the one from the other when it stores a Mesh, so an export has both and they agree.
    mode = (conf.tls.mode or _TLS_DEFAULT) if conf.tls is not None else None
    if conf.skip_mtls is not None and mode is not None and conf.skip_mtls != (mode == "disabled"):
        message = "skipMTLS and tls configuration cannot be defined together"
        yield Violation(path, message, "exclusive")
    names: set[str] = set()
    for index, application in enumerate(conf.aggregate or ()):
        name = application.name or ""
        if name in names:
            message = f"duplicate entry: {name}, values have to be unique"
            yield Violation(f"{item(child(path, 'aggregate'), index)}.name", message, "unique")
        names.add(name)


Backends = tuple[LoggingBackend, ...] | tuple[TracingBackend, ...] | tuple[MetricsBackend, ...]


def _read(type_: type[S], conf: Mapping[str, Json] | None, path: str) -> tuple[S | None, list[Violation]]:
    # The field is `conf`, but Kuma's messages say `config`, and its clients know them so.
    at = child(path, "config")
    return rules.read_conf(type_, conf, child(path, "conf"), "could not parse config", at=at)


def _name_violations(name: str | None, path: str) -> Iterator[Violation]:
    if not name:
        yield Violation(child(path, "name"), rules.CANNOT_BE_EMPTY_MESSAGE, "required")


def _used_twice(backends: Backends, index: int, path: str) -> Iterator[Violation]:
    name = backends[index].name
    if name in {backend.name for backend in backends[:index]}:
        message = f'"{name or ""}" name is already used for another backend'
        yield Violation(child(path, "name"), message, "unique")


def _unknown_type(path: str, *types: str) -> Violation:
    quoted = ", ".join(f'"{each}"' for each in types)
    message = f"unknown backend type. Available backends: {quoted}"
    return Violation(child(path, "type"), message, "enum")
