"""Locality: endpoints in groups, the nearest first.

Without a policy the caller's own zone comes first and the others take over. A policy may order the endpoints
of the caller's zone by the tags that they share with it, and say which zones take over, in which order.
"""

from collections.abc import Iterable, Mapping, Sequence

from koguma.core.build.addresses import Endpoint
from koguma.core.world import Pairs
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model.overlay import AffinityTag, Failover, Locality

EndpointGroup = tuple[int, str, str, int]  # priority, zone, sub-zone, weight


def assignment(
    name: str, endpoints: Iterable[Endpoint], zone: str, affinity: Pairs, preference: Locality | None
) -> Data:
    """The ClusterLoadAssignment of a cluster, as clients of one zone with these tags see it."""
    used = preference or Locality()
    groups: dict[EndpointGroup, list[Endpoint]] = {}
    for endpoint in endpoints:
        group = _group(endpoint, zone, dict(affinity), used)
        if group is not None:
            groups.setdefault(group, []).append(endpoint)
    priorities = sorted({priority for priority, *_ in groups})  # Envoy requires them without gaps
    data: Data = {
        "cluster_name": name,
        "endpoints": [
            _locality(priorities.index(group[0]), group, groups[group]) for group in sorted(groups)
        ],
    }
    if preference is not None and not preference.is_disabled:
        data["policy"] = {"overprovisioning_factor": preference.overprovisioning_factor}
    return data


def _locality(priority: int, group: EndpointGroup, endpoints: Sequence[Endpoint]) -> Data:
    _, zone, sub_zone, weight = group
    locality = {"zone": zone, "sub_zone": sub_zone}
    data: Data = {"lb_endpoints": [_endpoint(each) for each in sorted(endpoints)]}
    if named := {key: value for key, value in locality.items() if value}:
        data["locality"] = named
    if priority:
        data["priority"] = priority
    if weight:
        data["load_balancing_weight"] = weight
    return data


def _endpoint(endpoint: Endpoint) -> Data:
    data: Data = {"endpoint": {"address": proto_json.address(endpoint.address, endpoint.port)}}
    if endpoint.host:
        data["endpoint"]["hostname"] = endpoint.host
    if endpoint.tags:
        data["metadata"] = {"filter_metadata": {"envoy.lb": dict(endpoint.tags)}}
    return data


def _group(
    endpoint: Endpoint, zone: str, affinity: Mapping[str, str], preference: Locality
) -> EndpointGroup | None:
    if preference.is_disabled:
        return 0, endpoint.zone, "", 0
    if endpoint.zone == zone:
        sub_zone, weight = _sub_zone(endpoint, affinity, preference.affinity_tags)
        return 0, zone, sub_zone, weight
    priority = _priority(endpoint.zone, zone, preference)
    return None if priority is None else (priority, endpoint.zone, "", 0)


def _sub_zone(
    endpoint: Endpoint, affinity: Mapping[str, str], tags: Sequence[AffinityTag]
) -> tuple[str, int]:
    """The sub-zone of an endpoint, by the first tag that it shares with the caller, and its weight."""
    if not tags:
        return "", 0
    own = dict(endpoint.tags)
    for index, tag in enumerate(tags):
        if tag.key in own and own[tag.key] == affinity.get(tag.key):
            # Without weights each tag takes nine tenths of what the tags before it leave (Kuma's default).
            return f"{tag.key}={own[tag.key]}", tag.weight or 9 * 10 ** (len(tags) - index - 1)
    return "", 1


def _priority(endpoint_zone: str, own_zone: str, preference: Locality) -> int | None:
    steps = [step for step in preference.failovers if not step.from_zones or own_zone in step.from_zones]
    if not steps:
        return 1
    for number, step in enumerate(steps, start=1):
        if step.to == "None":
            return None
        if _takes_over(endpoint_zone, step):
            return number
    return None


def _takes_over(zone: str, step: Failover) -> bool:
    match step.to:
        case "Any":
            return True
        case "Only":
            return zone in step.zones
        case "AnyExcept":
            return zone not in step.zones
    return False
