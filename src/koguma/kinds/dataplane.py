"""A proxy beside a service: where it is reached, what it serves, what it calls.

`networking.inbound` are the service's ports, `networking.outbound` the services that it calls without
transparent proxying; a proxy that only calls has no inbound. A proxy in front of a gateway of another make
has `networking.gateway` of type DELEGATED; one that is itself a gateway has type BUILTIN, and a MeshGateway
selects it. `networking.listeners` make it a zone ingress or egress.

`koguma dp run` writes the Dataplane of its proxy; write one by hand for a machine that is set up by other
means. Tags name the service in Kuma's older way, and `kuma.io/service` must then be among them; labels
do so in the newer way.

```yaml
type: Dataplane
name: backend-1
mesh: default
networking:
  address: 10.0.0.7
  inbound:
    - port: 8080
      servicePort: 18080
      tags: {kuma.io/service: backend, kuma.io/protocol: http}
  outbound:
    - port: 9090
      backendRef: {kind: MeshService, name: database, port: 5432}
```
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from koguma.kinds import dataplane_networking, mesh_backends, rules, service_probe, v1_conversions
from koguma.kinds.dataplane_networking import DataplaneNetworking
from koguma.kinds.mesh_backends import MetricsBackend
from koguma.kinds.rules import UInt32
from koguma.model import columns
from koguma.model.kind import ZONE_TO_GLOBAL, Kind, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, child, item


class DataplaneProbeEndpoint(Spec):
    """One path of the service that is reachable without TLS."""

    inbound_port: Annotated[UInt32 | None, doc("Port of the service.")] = None
    inbound_path: Annotated[str | None, doc("Path at the service.")] = None
    path: Annotated[str | None, doc("Path on the probes' port.")] = None


class DataplaneProbes(Spec):
    """Paths that health checks reach without TLS."""

    port: Annotated[UInt32 | None, doc("Port on which they are reached.")] = None
    endpoints: Annotated[tuple[DataplaneProbeEndpoint, ...] | None, doc("The paths.")] = None


class DataplaneEnvoy(Spec):
    """Settings of the Envoy process."""

    xds_transport_protocol_variant: Annotated[
        Literal["DEFAULT", "DELTA_GRPC", "GRPC"] | None,
        doc(
            "Whether configuration comes as differences or as a whole; the control plane's choice by default."
        ),
    ] = None


class DataplaneSpec(Spec):
    """One proxy."""

    networking: Annotated[
        DataplaneNetworking | None, doc("Where the proxy is, what it serves, what it calls.")
    ] = None
    metrics: Annotated[MetricsBackend | None, doc("Metrics of this proxy, over those of the mesh.")] = None
    probes: Annotated[DataplaneProbes | None, doc("Paths that health checks reach without TLS.")] = None
    envoy: Annotated[DataplaneEnvoy | None, doc("Settings of the Envoy process.")] = None


def validate(spec: DataplaneSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; except that a proxy without inbounds and gateway is legal."""
    networking = spec.networking
    if networking is None:
        yield Violation("networking", rules.DEFINED_MESSAGE, "required")
        return
    yield from dataplane_networking.admin_violations(networking)
    if networking.gateway is not None:
        yield from _gateway_violations(spec, networking)
        yield from dataplane_networking.gateway_violations(networking.gateway)
    yield from dataplane_networking.violations(networking)
    if networking.gateway is None or networking.gateway.type != "BUILTIN":
        yield from _probe_violations(spec.probes)
    if networking.gateway is None and spec.metrics is not None:
        yield from mesh_backends.metrics_backend_violations(spec.metrics, "metrics")


def _gateway_violations(spec: DataplaneSpec, networking: DataplaneNetworking) -> Iterator[Violation]:
    """What a gateway must not have."""
    builtin = networking.gateway is not None and networking.gateway.type == "BUILTIN"
    word = "builtin" if builtin else "delegated"
    for name, value, refused in (
        ("inbound", networking.inbound, True),
        ("listeners", networking.listeners, True),
        ("outbound", networking.outbound, builtin),
        ("probes", spec.probes, builtin),
    ):
        if value and refused:
            yield Violation(
                f"networking.{name}", f"{name} cannot be defined for {word} gateways", "forbidden"
            )


def _probe_violations(probes: DataplaneProbes | None) -> Iterator[Violation]:
    if probes is None:
        return
    yield from rules.port(probes.port, "probes.port")
    for index, endpoint in enumerate(probes.endpoints or ()):
        path = item("probes.endpoints", index)
        yield from rules.port(endpoint.inbound_port, child(path, "inboundPort"))
        for name, value in (("inboundPath", endpoint.inbound_path), ("path", endpoint.path)):
            if not rules.is_url_path(value or ""):
                yield Violation(child(path, name), "should be a valid URL Path", "path")


def _proxy_type(spec: Json) -> str:
    return "gateway" if (spec.get("networking") or {}).get("gateway") is not None else "sidecar"


KIND = Kind(
    name="Dataplane",
    plural="dataplanes",
    short="dp",
    doc=__doc__,
    spec=DataplaneSpec,
    columns=columns.DATAPLANE,
    proxy_type=_proxy_type,
    sync=ZONE_TO_GLOBAL,
    inline=True,
    v1=v1_conversions.DATAPLANE,
    validate=validate,
    filled=service_probe.filled,
)
