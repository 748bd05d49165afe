"""The built-in kinds that are no policies: meshes, proxies, services, zones, identities, secrets, insights.

One file per kind, or per few that belong together. Each is a page of the manual first, then types, then
what is wrong with them, and last the record from which everything else is derived.
"""

from koguma.kinds import (
    dataplane,
    hostname_generator,
    insights,
    mesh,
    mesh_external_service,
    mesh_gateway,
    mesh_identity,
    mesh_multi_zone_service,
    mesh_open_telemetry_backend,
    mesh_service,
    mesh_trust,
    mesh_zone_address,
    secrets,
    workload,
    zone,
    zone_proxies,
)
from koguma.model.kind import Kind

KINDS: tuple[Kind, ...] = (
    mesh.KIND,
    dataplane.KIND,
    mesh_service.KIND,
    mesh_multi_zone_service.KIND,
    mesh_external_service.KIND,
    hostname_generator.KIND,
    mesh_gateway.KIND,
    mesh_identity.KIND,
    mesh_trust.KIND,
    mesh_open_telemetry_backend.KIND,
    workload.KIND,
    zone.KIND,
    zone_proxies.INGRESS,
    zone_proxies.EGRESS,
    mesh_zone_address.KIND,
    secrets.SECRET,
    secrets.GLOBAL_SECRET,
    secrets.CONFIG,
    insights.DATAPLANE,
    insights.ZONE_INGRESS,
    insights.ZONE_EGRESS,
    insights.MESH,
    insights.SERVICE,
    insights.ZONE,
)
