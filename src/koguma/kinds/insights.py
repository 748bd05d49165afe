"""Insights: what the control plane has seen of proxies, meshes, services and zones. Nobody writes these.

They change with every heartbeat, so they are not stored: they are computed when they are read, and cannot be
watched. Counters are numbers or, as protocol buffers print them, text.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from koguma.kinds.rules import Counter
from koguma.model import columns
from koguma.model.kind import GLOBAL_TO_ZONES, ZONE_TO_GLOBAL, ComputedFrom, Kind, Scope
from koguma.model.schema import Json, Spec, doc

SERVICE_TYPES: Final = (
    "internal",
    "external",
    "gateway_delegated",
    "gateway_builtin",
)  # the first is not shown

_PROXY_DOC: Final = """What the control plane has seen of {subject}.

Each subscription is one connection of the proxy: when it came and went, which version it is, and how many
configurations it was sent, took and refused. A proxy is online while one of them is open.
"""

_MESH_DOC: Final = (
    """A mesh in numbers: its proxies, by state, type and version, its policies and its services."""
)

_SERVICE_DOC: Final = (
    """A service in numbers: its proxies, by state, where it is, and who issued its certificates."""
)

_ZONE_DOC: Final = """What the Global control plane has seen of a zone.

Each subscription is one connection of the zone's control plane, with its version, its settings and how
many objects of each kind it was sent. A zone is online while one of them is open.
"""


class DiscoveryServiceStats(Spec):
    """Configurations of one type."""

    responses_sent: Annotated[Counter | None, doc("Sent to the proxy.")] = None
    responses_acknowledged: Annotated[Counter | None, doc("Taken by the proxy.")] = None
    responses_rejected: Annotated[Counter | None, doc("Refused by the proxy.")] = None


class DiscoverySubscriptionStatus(Spec):
    """Configurations over one connection."""

    last_update_time: Annotated[str | None, doc("When these numbers last changed.")] = None
    total: Annotated[DiscoveryServiceStats | None, doc("All types together.")] = None
    cds: Annotated[DiscoveryServiceStats | None, doc("Clusters.")] = None
    eds: Annotated[DiscoveryServiceStats | None, doc("Endpoints.")] = None
    lds: Annotated[DiscoveryServiceStats | None, doc("Listeners.")] = None
    rds: Annotated[DiscoveryServiceStats | None, doc("Routes.")] = None


class KumaDpVersion(Spec):
    """Version of the program that runs Envoy."""

    version: Annotated[str | None, doc("The version.")] = None
    git_tag: Annotated[str | None, doc("Its tag.")] = None
    git_commit: Annotated[str | None, doc("Its commit.")] = None
    build_date: Annotated[str | None, doc("When it was built.")] = None
    kuma_cp_compatible: Annotated[bool | None, doc("Whether it fits the control plane.")] = None


class EnvoyVersion(Spec):
    """Version of Envoy."""

    version: Annotated[str | None, doc("The version.")] = None
    build: Annotated[str | None, doc("The build.")] = None
    kuma_dp_compatible: Annotated[bool | None, doc("Whether it fits the program that runs it.")] = None


class DiscoveryVersion(Spec):
    """Versions of a proxy."""

    kuma_dp: Annotated[KumaDpVersion | None, doc("The program that runs Envoy.")] = None
    envoy: Annotated[EnvoyVersion | None, doc("Envoy.")] = None
    dependencies: Annotated[Mapping[str, str] | None, doc("Other programs beside it.")] = None


class DiscoverySubscription(Spec):
    """One connection of a proxy."""

    id: Annotated[str | None, doc("The connection.")] = None
    control_plane_instance_id: Annotated[str | None, doc("Control plane that it was made to.")] = None
    connect_time: Annotated[str | None, doc("When it was opened.")] = None
    disconnect_time: Annotated[str | None, doc("When it was closed.")] = None
    generation: Annotated[int | None, doc("Raised as a sign of life.")] = None
    status: Annotated[DiscoverySubscriptionStatus | None, doc("Configurations over it.")] = None
    version: Annotated[DiscoveryVersion | None, doc("Versions of the proxy.")] = None


class DataplaneInsightMtls(Spec):
    """The proxy's certificate."""

    certificate_expiration_time: Annotated[str | None, doc("When it expires.")] = None
    last_certificate_regeneration: Annotated[str | None, doc("When it was issued.")] = None
    certificate_regenerations: Annotated[int | None, doc("How many were issued.")] = None
    issued_backend: Annotated[str | None, doc("Who issued it.")] = None
    supported_backends: Annotated[tuple[str, ...] | None, doc("Whom the proxy believes.")] = None


class DataplaneInsightSpec(Spec):
    """What was seen of a proxy."""

    subscriptions: Annotated[tuple[DiscoverySubscription, ...] | None, doc("Its connections.")] = None
    mtls: Annotated[DataplaneInsightMtls | None, doc("Its certificate.")] = msgspec.field(
        name="mTLS", default=None
    )
    metadata: Annotated[Mapping[str, Json] | None, doc("What it said of itself.")] = None


class ZoneIngressInsightSpec(Spec):
    """What was seen of a zone ingress."""

    subscriptions: Annotated[tuple[DiscoverySubscription, ...] | None, doc("Its connections.")] = None
    metadata: Annotated[Mapping[str, Json] | None, doc("What it said of itself.")] = None


class ZoneEgressInsightSpec(Spec):
    """What was seen of a zone egress."""

    subscriptions: Annotated[tuple[DiscoverySubscription, ...] | None, doc("Its connections.")] = None
    metadata: Annotated[Mapping[str, Json] | None, doc("What it said of itself.")] = None


class InsightDataplanes(Spec):
    """Proxies by state."""

    total: Annotated[int | None, doc("All.")] = None
    online: Annotated[int | None, doc("Connected, and all inbounds healthy.")] = None
    offline: Annotated[int | None, doc("Not connected, or no inbound healthy.")] = None
    partially_degraded: Annotated[int | None, doc("Connected, and some inbounds healthy.")] = None


class MeshInsightDataplanesByType(Spec):
    """Proxies by type."""

    standard: Annotated[InsightDataplanes | None, doc("Beside a service.")] = None
    gateway: Annotated[InsightDataplanes | None, doc("Gateways of both types.")] = None
    gateway_builtin: Annotated[InsightDataplanes | None, doc("Gateways themselves.")] = None
    gateway_delegated: Annotated[InsightDataplanes | None, doc("In front of gateways of another make.")] = (
        None
    )


class InsightTotal(Spec):
    """How many there are."""

    total: Annotated[int | None, doc("All.")] = None


class MeshInsightVersions(Spec):
    """Proxies by version."""

    kuma_dp: Annotated[Mapping[str, InsightDataplanes] | None, doc("Of the program that runs Envoy.")] = None
    envoy: Annotated[Mapping[str, InsightDataplanes] | None, doc("Of Envoy.")] = None


class MeshInsightMtls(Spec):
    """Proxies by CA."""

    issued_backends: Annotated[
        Mapping[str, InsightDataplanes] | None, doc("By the one that issued the certificate.")
    ] = None
    supported_backends: Annotated[
        Mapping[str, InsightDataplanes] | None, doc("By those that the proxies believe.")
    ] = None


class MeshInsightServices(Spec):
    """Services."""

    total: Annotated[int | None, doc("All.")] = None
    internal: Annotated[int | None, doc("In the mesh.")] = None
    external: Annotated[int | None, doc("Outside of it.")] = None


class MeshInsightSpec(Spec):
    """A mesh in numbers."""

    dataplanes: Annotated[InsightDataplanes | None, doc("Its proxies.")] = None
    dataplanes_by_type: Annotated[MeshInsightDataplanesByType | None, doc("Its proxies by type.")] = None
    policies: Annotated[Mapping[str, InsightTotal] | None, doc("Its policies by kind.")] = None
    resources: Annotated[Mapping[str, InsightTotal] | None, doc("Its objects by kind.")] = None
    dp_versions: Annotated[MeshInsightVersions | None, doc("Its proxies by version.")] = None
    mtls: Annotated[MeshInsightMtls | None, doc("Its proxies by CA.")] = msgspec.field(
        name="mTLS", default=None
    )
    services: Annotated[MeshInsightServices | None, doc("Its services.")] = None


class ServiceInsightService(Spec):
    """A service in numbers."""

    status: Annotated[
        Literal["offline", "partially_degraded", "online", "not_available"] | None, doc("Its state.")
    ] = None
    dataplanes: Annotated[InsightDataplanes | None, doc("Its proxies.")] = None
    issued_backends: Annotated[Mapping[str, int] | None, doc("Its proxies by CA.")] = None
    service_type: Annotated[
        Literal["internal", "external", "gateway_delegated", "gateway_builtin"] | None, doc("What it is.")
    ] = None
    address_port: Annotated[str | None, doc("Where it is called.")] = None
    zones: Annotated[tuple[str, ...] | None, doc("The zones that have it.")] = None


class ServiceInsightSpec(ServiceInsightService):
    """One service, or all services of a mesh by name, which is how Kuma keeps them."""

    services: Annotated[Mapping[str, ServiceInsightService] | None, doc("All services of the mesh.")] = None


class KumaCpVersion(Spec):
    """Version of a control plane."""

    version: Annotated[str | None, doc("The version.")] = None
    git_tag: Annotated[str | None, doc("Its tag.")] = None
    git_commit: Annotated[str | None, doc("Its commit.")] = None
    build_date: Annotated[str | None, doc("When it was built.")] = None
    kuma_cp_global_compatible: Annotated[bool | None, doc("Whether it fits the Global one.")] = None


class ZoneInsightVersion(Spec):
    """Versions of a zone."""

    kuma_cp: Annotated[KumaCpVersion | None, doc("Its control plane.")] = None


class ZoneInsightStatus(Spec):
    """Objects over one connection."""

    last_update_time: Annotated[str | None, doc("When these numbers last changed.")] = None
    total: Annotated[DiscoveryServiceStats | None, doc("All kinds together.")] = None
    stat: Annotated[Mapping[str, DiscoveryServiceStats] | None, doc("By kind.")] = None


class ZoneInsightSubscription(Spec):
    """One connection of a zone."""

    id: Annotated[str | None, doc("The connection.")] = None
    global_instance_id: Annotated[str | None, doc("Global control plane that it was made to.")] = None
    zone_instance_id: Annotated[str | None, doc("Control plane of the zone that made it.")] = None
    connect_time: Annotated[str | None, doc("When it was opened.")] = None
    disconnect_time: Annotated[str | None, doc("When it was closed.")] = None
    generation: Annotated[int | None, doc("Raised as a sign of life.")] = None
    status: Annotated[ZoneInsightStatus | None, doc("Objects over it.")] = None
    version: Annotated[ZoneInsightVersion | None, doc("Versions of the zone.")] = None
    config: Annotated[str | None, doc("Settings of the zone's control plane.")] = None
    auth_token_provided: Annotated[bool | None, doc("Whether the zone showed a token.")] = None


class ZoneInsightHealthCheck(Spec):
    """A sign of life."""

    time: Annotated[str | None, doc("When it came.")] = None


class ZoneInsightSpec(Spec):
    """What was seen of a zone."""

    subscriptions: Annotated[tuple[ZoneInsightSubscription, ...] | None, doc("Its connections.")] = None
    envoy_admin_streams: Annotated[
        Mapping[str, Json] | None, doc("Which Global control plane can ask the zone's proxies.")
    ] = None
    health_check: Annotated[ZoneInsightHealthCheck | None, doc("The last sign of life.")] = None
    kds_streams: Annotated[
        Mapping[str, Json] | None, doc("Which Global control plane holds each stream.")
    ] = None


DATAPLANE = Kind(
    name="DataplaneInsight",
    plural="dataplane-insights",
    doc=_PROXY_DOC.format(subject="a proxy"),
    spec=DataplaneInsightSpec,
    columns=columns.PROXY_INSIGHT,
    sync=ZONE_TO_GLOBAL,
    inline=True,
    read_only=True,
    computed=ComputedFrom("Dataplane"),
)

ZONE_INGRESS = Kind(
    name="ZoneIngressInsight",
    plural="zone-ingress-insights",
    doc=_PROXY_DOC.format(subject="a zone ingress"),
    spec=ZoneIngressInsightSpec,
    columns=columns.PROXY_INSIGHT,
    scope=Scope.GLOBAL,
    sync=ZONE_TO_GLOBAL,
    inline=True,
    read_only=True,
    computed=ComputedFrom("ZoneIngress"),
)

ZONE_EGRESS = Kind(
    name="ZoneEgressInsight",
    plural="zoneegressinsights",
    doc=_PROXY_DOC.format(subject="a zone egress"),
    spec=ZoneEgressInsightSpec,
    columns=columns.PROXY_INSIGHT,
    scope=Scope.GLOBAL,
    sync=ZONE_TO_GLOBAL,
    inline=True,
    read_only=True,
    computed=ComputedFrom("ZoneEgress"),
)

MESH = Kind(
    name="MeshInsight",
    plural="mesh-insights",
    doc=_MESH_DOC,
    spec=MeshInsightSpec,
    columns=columns.MESH_INSIGHT,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    read_only=True,
    computed=ComputedFrom("Dataplane", is_summary=True),
)

SERVICE = Kind(
    name="ServiceInsight",
    plural="service-insights",
    doc=_SERVICE_DOC,
    spec=ServiceInsightSpec,
    columns=columns.SERVICE_INSIGHT,
    sync=GLOBAL_TO_ZONES,
    namespaced=False,
    inline=True,
    read_only=True,
    computed=ComputedFrom("Dataplane", is_summary=True),
)

ZONE = Kind(
    name="ZoneInsight",
    plural="zone-insights",
    doc=_ZONE_DOC,
    spec=ZoneInsightSpec,
    columns=columns.CONNECTED,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    read_only=True,
    computed=ComputedFrom("Zone"),
)
