"""A collector of OpenTelemetry data, named once for all policies that send to it.

MeshAccessLog, MeshTrace and MeshMetric refer to it by its labels, so that a collector that moves is changed
in one place. `env` says whether the proxy's own `OTEL_EXPORTER_OTLP_*` variables count, and which wins where
both say something.

```yaml
type: MeshOpenTelemetryBackend
name: collector
mesh: default
spec:
  endpoint: {address: otel.observability.example.com, port: 4317}
  protocol: grpc
```
"""

from collections.abc import Iterator
from typing import Annotated, Final

from koguma.kinds import rules
from koguma.kinds.rules import UInt32
from koguma.model import columns
from koguma.model.condition import Condition
from koguma.model.kind import BOTH_WAYS, Kind, ValidationContext
from koguma.model.schema import Spec, doc, keyed_by
from koguma.model.violation import Violation, child

_PROTOCOLS: Final = ("grpc", "http")
_MODES: Final = ("Disabled", "Optional", "Required")
_PRECEDENCES: Final = ("ExplicitFirst", "EnvFirst")

OtelProtocol = Annotated[str, rules.enum_values(*_PROTOCOLS)]
OtelEnvMode = Annotated[str, rules.enum_values(*_MODES)]
OtelEnvPrecedence = Annotated[str, rules.enum_values(*_PRECEDENCES)]


class OtelEndpoint(Spec):
    """Where the collector is; what is left out may come from the environment."""

    address: Annotated[str | None, doc("IP or name of the collector.")] = None
    port: Annotated[UInt32 | None, doc("Its port.")] = None
    path: Annotated[str | None, doc("Beginning of the path, with protocol http.")] = None


class OtelEnv(Spec):
    """What the proxy's environment may say."""

    mode: Annotated[OtelEnvMode | None, doc("Whether it is read; Optional by default.")] = None
    precedence: Annotated[OtelEnvPrecedence | None, doc("Who wins; EnvFirst by default.")] = None
    allow_signal_overrides: Annotated[
        bool | None, doc("Whether traces, metrics and logs may differ; true by default.")
    ] = None


class MeshOpenTelemetryBackendSpec(Spec):
    """Where the collector is, and how it is spoken to."""

    endpoint: Annotated[OtelEndpoint | None, doc("Where the collector is.")] = None
    protocol: Annotated[OtelProtocol | None, doc("gRPC (default) or HTTP.")] = None
    env: Annotated[OtelEnv | None, doc("What the proxy's environment may say.")] = None


class MeshOpenTelemetryBackendStatus(Spec):
    """Who uses it."""

    conditions: Annotated[
        tuple[Condition, ...] | None, doc("Whether any policy refers to it."), keyed_by("type")
    ] = None


def validate(spec: MeshOpenTelemetryBackendSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    if spec.endpoint is not None:
        yield from _endpoint_violations(spec.endpoint, spec.protocol)
    yield from _choice(spec.protocol, _PROTOCOLS, "spec.protocol")
    if spec.env is not None:
        yield from _choice(spec.env.mode, _MODES, "spec.env.mode")
        yield from _choice(spec.env.precedence, _PRECEDENCES, "spec.env.precedence")


def _endpoint_violations(endpoint: OtelEndpoint, protocol: str | None) -> Iterator[Violation]:
    address = endpoint.address
    if address is not None and not rules.is_ip(address) and not rules.is_dns_name(address):
        message = "address has to be a valid IP or hostname" if address else rules.NOT_EMPTY_MESSAGE
        yield Violation("spec.endpoint.address", message, "address")
    if endpoint.port is not None:
        yield from rules.port(endpoint.port, "spec.endpoint.port", rules.SPEC_PORT_MESSAGE)
    if endpoint.path:
        yield from _path_violations(endpoint.path, protocol, child("spec.endpoint", "path"))


def _path_violations(text: str, protocol: str | None, path: str) -> Iterator[Violation]:
    if protocol in (None, "", "grpc"):
        yield Violation(path, "must not be set when protocol is grpc", "forbidden")
        return
    if not text.startswith("/"):
        yield Violation(path, "must start with /", "path")
    if "?" in text or "#" in text:
        yield Violation(path, "must not contain query or fragment", "path")


def _choice(value: str | None, known: tuple[str, ...], path: str) -> Iterator[Violation]:
    if value and value not in known:
        yield Violation(path, f"must be one of: {', '.join(known)}", "enum")


KIND = Kind(
    name="MeshOpenTelemetryBackend",
    plural="meshopentelemetrybackends",
    short="motb",
    doc=__doc__,
    spec=MeshOpenTelemetryBackendSpec,
    columns=columns.MESH_OPEN_TELEMETRY_BACKEND,
    status=MeshOpenTelemetryBackendStatus,
    sync=BOTH_WAYS,
    system_namespace_only=True,
    validate=validate,
    display=("Mesh OpenTelemetry Backend", "Mesh OpenTelemetry Backends"),
)
