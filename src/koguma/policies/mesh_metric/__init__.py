"""What is measured: metrics of proxies and applications, scraped by Prometheus or sent to a collector.

MeshMetric acts on whole proxies. `sidecar.profiles` choose which of Envoy's metrics are kept: first all
profiles together, then `exclude` takes away, last `include` brings back. `applications` are scraped by the
proxy, so that one place serves the metrics of both.

```yaml
type: MeshMetric
name: metrics-for-prometheus
mesh: default
spec:
  targetRef: {kind: Mesh}
  default:
    sidecar:
      profiles:
        appendProfiles: [{name: Basic}]
        include: [{type: Regex, match: "envoy_cluster_lb_.*"}]
    applications:
      - {name: backend, path: /metrics, port: 8888}
    backends:
      - type: Prometheus
        prometheus: {port: 5670, path: /metrics}
```
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_metric import overlay
from koguma.policies.parts import collectors, fields, regular_expression, spelling
from koguma.policies.parts.fields import CollectorRef


class Profile(Spec):
    """A named set of Envoy's metrics."""

    name: Annotated[Literal["All", "Basic", "None"], doc("All, those of the usual dashboards, or none.")]


class MetricSelector(Spec):
    """Metrics by their names."""

    type: Annotated[Literal["Prefix", "Regex", "Exact", "Contains"], doc("How names are compared.")]
    match: Annotated[str, doc("What they are compared with.")]


class Profiles(Spec):
    """Which of Envoy's metrics are kept."""

    append_profiles: Annotated[tuple[Profile, ...] | None, doc("Sets, all together.")] = None
    exclude: Annotated[tuple[MetricSelector, ...] | None, doc("Taken away from the sets.")] = None
    include: Annotated[tuple[MetricSelector, ...] | None, doc("Brought back after that.")] = None


class SidecarMetrics(Spec):
    """Metrics of the proxy itself."""

    include_unused: Annotated[bool | None, doc("Also those that never changed; false by default.")] = None
    profiles: Annotated[Profiles | None, doc("Which metrics are kept.")] = None


class ApplicationMetrics(Spec):
    """Metrics of an application beside the proxy."""

    port: Annotated[int, doc("The port that serves them.")]
    name: Annotated[str | None, doc("The application's name in the metrics.")] = None
    path: Annotated[str | None, doc("The path that serves them; /metrics by default.")] = None
    address: Annotated[str | None, doc("Where the application listens; the proxy's own by default.")] = None


class PrometheusTls(Spec):
    """How the scraped port is protected."""

    mode: Annotated[
        Literal["Disabled", "ProvidedTLS", "ActiveMTLSBackend"] | None,
        doc("Not, by a certificate beside the proxy, or by the mesh's mTLS; Disabled by default."),
    ] = None


class Prometheus(Spec):
    """A port of the proxy that Prometheus scrapes."""

    client_id: Annotated[str | None, doc("The Prometheus server that this is for.")] = None
    port: Annotated[int | None, doc("The port; 5670 by default.")] = None
    path: Annotated[str | None, doc("The path; /metrics by default.")] = None
    tls: Annotated[PrometheusTls | None, doc("How the port is protected.")] = None


class OtelMetrics(Spec):
    """An OpenTelemetry collector that metrics are sent to."""

    endpoint: Annotated[str | None, doc("Host and port of the collector.")] = None
    backend_ref: Annotated[CollectorRef | None, doc("Where the collector's address stands.")] = None
    refresh_interval: Annotated[Duration | None, doc("How often they are sent; 1m by default.")] = None


class MetricBackend(Spec):
    """Where metrics go."""

    type: Annotated[Literal["Prometheus", "OpenTelemetry"], doc("Which of the following counts.")]
    prometheus: Annotated[Prometheus | None, doc("Scraped by Prometheus.")] = None
    open_telemetry: Annotated[OtelMetrics | None, doc("Sent to an OpenTelemetry collector.")] = None


class MetricConf(Spec):
    """What is measured, and where metrics go."""

    sidecar: Annotated[SidecarMetrics | None, doc("The proxy itself.")] = None
    applications: Annotated[tuple[ApplicationMetrics, ...] | None, doc("Applications beside it.")] = None
    backends: Annotated[tuple[MetricBackend, ...] | None, doc("Where metrics go.")] = None


class MeshMetricSpec(Spec):
    """Which proxies, and what is measured there."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    default: Annotated[MetricConf, doc("What is measured.")] = MetricConf()


_WHOLE_PROXY = "must not be set with kind MeshGateway; metrics are those of a whole proxy"


def validate(spec: MeshMetricSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, at the paths where the fields really stand."""
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=False)
    if target_ref.is_gateway(top) and top.section_name:
        yield Violation("spec.targetRef.sectionName", _WHOLE_PROXY, "forbidden")
    conf = spec.default
    if conf.sidecar is not None and conf.sidecar.profiles is not None:
        at = "spec.default.sidecar.profiles"
        yield from _selectors(conf.sidecar.profiles.exclude, child(at, "exclude"))
        yield from _selectors(conf.sidecar.profiles.include, child(at, "include"))
    yield from _applications(conf.applications or (), "spec.default.applications")
    for index, backend in enumerate(conf.backends or ()):
        yield from _backend(backend, item("spec.default.backends", index))


def _applications(applications: tuple[ApplicationMetrics, ...], path: str) -> Iterator[Violation]:
    names: set[str] = set()
    for index, application in enumerate(applications):
        at = item(path, index)
        yield from fields.port(application.port, child(at, "port"))
        if application.name and application.name in names:
            message = f"duplicate entry: {application.name}, values have to be unique"
            yield Violation(child(at, "name"), message, "unique")
        names.add(application.name or "")


def _selectors(selectors: tuple[MetricSelector, ...] | None, path: str) -> Iterator[Violation]:
    for index, selector in enumerate(selectors or ()):
        at = child(item(path, index), "match")
        if selector.type == "Regex" and any(regular_expression.violations(selector.match, at)):
            yield Violation(at, "invalid regex", "regex")


def _backend(backend: MetricBackend, path: str) -> Iterator[Violation]:
    match backend:
        case MetricBackend(type="Prometheus", prometheus=Prometheus() as prometheus):
            yield from fields.port(prometheus.port, child(path, "prometheus.port"))
        case MetricBackend(type="OpenTelemetry", open_telemetry=OtelMetrics() as otel):
            yield from _otel(otel, child(path, "openTelemetry"))
        case _:
            section = f"{backend.type[0].lower()}{backend.type[1:]}"
            yield Violation(child(path, section), fields.MUST_BE_DEFINED, "required")


def _otel(otel: OtelMetrics, path: str) -> Iterator[Violation]:
    yield from fields.collector(otel.endpoint, otel.backend_ref, path)
    if otel.endpoint and otel.endpoint.startswith(("http://", "https://")):
        yield Violation(child(path, "endpoint"), "must not use schema", "url")
    elif otel.endpoint and not fields.is_collector_address(otel.endpoint):
        yield Violation(child(path, "endpoint"), "must be a valid url", "url")
    yield from fields.positive_duration(otel.refresh_interval, child(path, "refreshInterval"))


def warn(spec: MeshMetricSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)


KIND = Kind(
    name="MeshMetric",
    plural="meshmetrics",
    short="mm",
    doc=__doc__,
    spec=MeshMetricSpec,
    columns=columns.WITH_BACKENDS,
    sync=POLICY,
    policy=Policy(phase=Phase.METRICS, hooks=PolicyHooks(whole=overlay.whole, looks_up=(collectors.KIND,))),
    clean=spelling.refs,
    validate=validate,
    warn=warn,
)
