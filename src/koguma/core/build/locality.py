"""Locality: endpoints in groups, the nearest first.

Without a policy the caller's own zone comes first and the others take over. A policy may order the endpoints
of the caller's zone by the tags that they share with it, and say which zones take over, in which order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from koguma.core.build.endpoints import Endpoint
from koguma.core.world import Pairs
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_OVERPROVISIONING: Final = 200
_HUNDRED: Final = 100

Group = tuple[int, str, str, int]  # priority, zone, part of the zone, weight


def assignment(name: str, endpoints: Iterable[Endpoint], zone: str, affinity: Pairs, said: Json) -> Data:
    """The ClusterLoadAssignment of a cluster; `said` is a policy's `localityAwareness`, if any."""
    groups: dict[Group, list[Endpoint]] = {}
    for endpoint in endpoints:
        group = _group(endpoint, zone, dict(affinity), said or {})
        if group is not None:
            groups.setdefault(group, []).append(endpoint)
    used = sorted({priority for priority, *_ in groups})  # Envoy wants them without gaps
    data: Data = {
        "cluster_name": name,
        "endpoints": [_locality(used.index(group[0]), group, groups[group]) for group in sorted(groups)],
    }
    if said and not said.get("disabled"):
        data["policy"] = {"overprovisioning_factor": _factor(said)}
    return data


def _locality(priority: int, group: Group, endpoints: Sequence[Endpoint]) -> Data:
    _, zone, part, weight = group
    locality = {"zone": zone, "sub_zone": part}
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
    if endpoint.tags:
        data["metadata"] = {"filter_metadata": {"envoy.lb": dict(endpoint.tags)}}
    return data


def _group(endpoint: Endpoint, zone: str, affinity: Mapping[str, str], said: Json) -> Group | None:
    if said.get("disabled"):
        return 0, endpoint.zone, "", 0
    if endpoint.zone == zone:
        part, weight = _nearness(endpoint, affinity, affinity_tags(said))
        return 0, zone, part, weight
    priority = _priority(endpoint.zone, zone, said)
    return None if priority is None else (priority, endpoint.zone, "", 0)


def affinity_tags(said: Json) -> list[Json]:
    """The tags by which endpoints of the caller's zone are ordered."""
    return ((said or {}).get("localZone") or {}).get("affinityTags") or []


def _nearness(endpoint: Endpoint, affinity: Mapping[str, str], wanted: Sequence[Json]) -> tuple[str, int]:
    """The part of the zone in which an endpoint counts, and that part's weight."""
    if not wanted:
        return "", 0
    own = dict(endpoint.tags)
    for index, tag in enumerate(wanted):
        key = tag.get("key") or ""
        if key in own and own[key] == affinity.get(key):
            # Without weights each tag counts for nine of ten of what is left.
            return f"{key}={own[key]}", tag.get("weight") or 9 * 10 ** (len(wanted) - index - 1)
    return "", 1


def _priority(theirs: str, ours: str, said: Json) -> int | None:
    steps = list(_steps(ours, said))
    if not steps:
        return 1
    for number, step in enumerate(steps, start=1):
        if step.get("type") == "None":
            return None
        if _takes_over(theirs, step):
            return number
    return None


def _steps(ours: str, said: Json) -> Iterator[Json]:
    for failover in (said.get("crossZone") or {}).get("failover") or ():
        only = (failover.get("from") or {}).get("zones")
        if not only or ours in only:
            yield failover.get("to") or {}


def _takes_over(theirs: str, step: Json) -> bool:
    named = step.get("zones") or ()
    match step.get("type"):
        case "Any":
            return True
        case "Only":
            return theirs in named
        case "AnyExcept":
            return theirs not in named
    return False


def _factor(said: Json) -> int:
    threshold = ((said.get("crossZone") or {}).get("failoverThreshold") or {}).get("percentage")
    if threshold is None:
        return _OVERPROVISIONING
    try:
        return round(_HUNDRED * _HUNDRED / float(threshold))
    except (ValueError, ZeroDivisionError, OverflowError):  # stored by another version; nobody may write it
        return _OVERPROVISIONING
