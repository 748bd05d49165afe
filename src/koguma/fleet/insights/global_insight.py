"""Global insight: the whole control plane in numbers, of what a user may see."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import msgspec

from koguma.fleet.insights.mesh_insight import PROXY_TYPES, STANDARD, MeshCounts, totals
from koguma.fleet.insights.proxy_health import HealthCounts
from koguma.fleet.insights.proxy_insight import timestamp
from koguma.fleet.insights.service_insight import EXTERNAL, INTERNAL
from koguma.model.schema import Json


class OnlineCount(msgspec.Struct, frozen=True):
    """How many there are of something, and how many of those are online."""

    online: int = 0
    total: int = 0


def global_insight(
    meshes: Collection[MeshCounts],
    policies: int,
    resources: Mapping[str, int],
    zones: Mapping[str, OnlineCount],
    created_at: datetime,
) -> dict[str, Json]:
    """The answer to `/global-insight`; all numbers are there, also zeros, as in Kuma."""
    return {
        "createdAt": timestamp(created_at),
        "dataplanes": {
            word: _sum(mesh.by_type[word] for mesh in meshes) for word in (STANDARD, *PROXY_TYPES.values())
        },
        "meshes": {"total": len(meshes)},
        "policies": {"total": policies},
        "resources": totals(resources),
        "services": _services(meshes),
        "zones": {word: msgspec.to_builtins(count) for word, count in zones.items()},
    }


def _sum(counts: Iterable[HealthCounts]) -> dict[str, Json]:
    total = HealthCounts()
    for each in counts:
        total.add_all(each)
    return total.full


def _services(meshes: Collection[MeshCounts]) -> dict[str, Json]:
    by_type = {type_: HealthCounts() for type_ in (INTERNAL, EXTERNAL, *PROXY_TYPES)}
    for mesh in meshes:
        for service in mesh.services.values():
            by_type[service.type].add(service.health)
    shown = {word: by_type[type_].full for type_, word in {INTERNAL: INTERNAL, **PROXY_TYPES}.items()}
    return {**shown, EXTERNAL: {"total": by_type[EXTERNAL].total}}
