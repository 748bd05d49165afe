"""Zone proxies: where a zone's traffic comes in from other zones, and where it goes out."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from koguma.kinds import rules
from koguma.kinds.rules import UInt32
from koguma.model import columns, tags
from koguma.model.kind import ACROSS_ZONES, ZONE_TO_GLOBAL, Kind, Scope, ValidationContext
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation, child, item

INGRESS_DOC: Final = """A proxy through which other zones reach the services of this one.

`networking.address` and `port` are where the proxy listens. Other zones call `advertisedAddress` and
`advertisedPort`, where a load balancer or a router with a public address stands in between. `zone` and
`availableServices` are filled in by the control plane.

```yaml
type: ZoneIngress
name: ingress-1
networking:
  address: 10.0.0.2
  port: 10001
  advertisedAddress: ingress.east.example.com
  advertisedPort: 443
```
"""

EGRESS_DOC: Final = """A proxy through which the services of a zone call other zones and external services.

With `Mesh.routing.zoneEgress` such calls leave the zone here and nowhere else, so that a firewall needs to
know one address only. `zone` is filled in by the control plane.

```yaml
type: ZoneEgress
name: egress-1
networking:
  address: 10.0.0.3
  port: 10002
```
"""


class ZoneProxyAdmin(Spec):
    """Envoy's admin port."""

    port: Annotated[UInt32 | None, doc("The port on 127.0.0.1; 9901 by default.")] = None


class ZoneIngressNetworking(Spec):
    """Where the proxy is."""

    address: Annotated[str | None, doc("Address on which the proxy listens.")] = None
    port: Annotated[UInt32 | None, doc("Port on which the proxy listens.")] = None
    advertised_address: Annotated[str | None, doc("Address that other zones call.")] = None
    advertised_port: Annotated[UInt32 | None, doc("Port that other zones call.")] = None
    admin: Annotated[ZoneProxyAdmin | None, doc("Envoy's admin port.")] = None


class ZoneIngressService(Spec):
    """A service that can be reached here."""

    tags: Annotated[Mapping[str, str] | None, doc("Tags of the service.")] = None
    instances: Annotated[UInt32 | None, doc("How many instances it has.")] = None
    mesh: Annotated[str | None, doc("Its mesh.")] = None
    external_service: Annotated[bool | None, doc("Whether it is outside of the mesh.")] = None


class ZoneIngressSpec(Spec):
    """A proxy for traffic from other zones."""

    zone: Annotated[str | None, doc("Its zone; the control plane fills it in.")] = None
    networking: Annotated[ZoneIngressNetworking | None, doc("Where the proxy is.")] = None
    available_services: Annotated[
        tuple[ZoneIngressService, ...] | None, doc("What it serves; the control plane fills it in.")
    ] = None


class ZoneEgressNetworking(Spec):
    """Where the proxy is."""

    address: Annotated[str | None, doc("Address on which the proxy listens.")] = None
    port: Annotated[UInt32 | None, doc("Port on which the proxy listens.")] = None
    admin: Annotated[ZoneProxyAdmin | None, doc("Envoy's admin port.")] = None


class ZoneEgressSpec(Spec):
    """A proxy for traffic that leaves the zone."""

    zone: Annotated[str | None, doc("Its zone; the control plane fills it in.")] = None
    networking: Annotated[ZoneEgressNetworking | None, doc("Where the proxy is.")] = None


def validate_ingress(spec: ZoneIngressSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    networking = spec.networking or ZoneIngressNetworking()
    yield from _admin_violations(networking)
    if networking.advertised_port and not networking.advertised_address:
        message = "has to be defined with advertisedPort"
        yield Violation("networking.advertisedAddress", message, "required")
    if networking.advertised_address and not networking.advertised_port:
        message = "has to be defined with advertisedAddress"
        yield Violation("networking.advertisedPort", message, "required")
    yield from _optional_address(networking.address, "networking.address")
    yield from _optional_address(networking.advertised_address, "networking.advertisedAddress")
    yield from rules.port(networking.port, "networking.port")
    if networking.advertised_port:
        yield from rules.port(networking.advertised_port, "networking.advertisedPort")
    for index, service in enumerate(spec.available_services or ()):
        path = child(item("availableService", index), "tags")
        yield from tags.violations(service.tags or {}, path, needs_service=True)


def validate_egress(spec: ZoneEgressSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    networking = spec.networking or ZoneEgressNetworking()
    yield from _admin_violations(networking)
    yield from _optional_address(networking.address, "networking.address")
    yield from rules.port(networking.port, "networking.port")


def _admin_violations(networking: ZoneIngressNetworking | ZoneEgressNetworking) -> Iterator[Violation]:
    admin = networking.admin.port if networking.admin else None
    if (
        admin
        and admin == networking.port
        and rules.addresses_overlap(networking.address or "", rules.LOOPBACK)
    ):
        yield Violation("networking.admin.port", "must differ from port", "unique")


def _optional_address(value: str | None, path: str) -> Iterator[Violation]:
    """An address that may be missing; Kuma's path has the word twice, and its clients know it so."""
    if value:
        yield from rules.address(value, path)


INGRESS = Kind(
    name="ZoneIngress",
    plural="zoneingresses",
    short="zi",
    aliases=("zone-ingresses",),
    doc=INGRESS_DOC,
    spec=ZoneIngressSpec,
    proxy_type=lambda _spec: "zoneingress",
    columns=columns.ZONE_PROXY,
    scope=Scope.GLOBAL,
    sync=ACROSS_ZONES,
    inline=True,
    validate=validate_ingress,
    display=("Zone Ingress", "Zone Ingresses"),
)

EGRESS = Kind(
    name="ZoneEgress",
    plural="zoneegresses",
    short="ze",
    doc=EGRESS_DOC,
    spec=ZoneEgressSpec,
    proxy_type=lambda _spec: "zoneegress",
    columns=columns.ZONE_PROXY,
    scope=Scope.GLOBAL,
    sync=ZONE_TO_GLOBAL,
    inline=True,
    validate=validate_egress,
    display=("Zone Egress", "Zone Egresses"),
)
