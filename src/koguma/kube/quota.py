"""Quota: which stored objects the keys of a ResourceQuota count, and what exceeds one.

A key names an endpoint, and an endpoint leads to a storage set: so all aliases of a set are one count, and
none of them leads past the limit of another.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from koguma.kube import namespaced_names
from koguma.kube.kinds import parts
from koguma.kube.kinds.quota import COUNT, COUNTED_ALIASES, RESOURCE_QUOTA, quantity
from koguma.kube.registry import Registry, StorageSet
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.nearest import nearest
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

COUNTED: Final = "Counted"  # the type of the condition
_UNKNOWN: Final = "UnknownResource"


class ObjectCount(NamedTuple):
    """Objects of one storage set in one namespace."""

    stored_as: str
    namespace: str


class HardLimit(NamedTuple):
    """One key of a quota that counts something."""

    quota: str
    key: str
    counted: ObjectCount
    hard: int


def limits(quota: Resource, registry: Registry) -> Iterator[HardLimit]:
    """The limits of a quota, by key; keys that count nothing are left out."""
    for key, text in sorted(_hard(quota).items()):
        counted, number = set_of(key, registry), quantity(text)
        if counted is not None and number is not None:
            yield HardLimit(quota.name, key, ObjectCount(counted.stored_as, quota.namespace), int(number))


def set_of(key: str, registry: Registry) -> StorageSet | None:
    """The set that a key counts; None where it counts nothing."""
    if key in COUNTED_ALIASES:
        key = f"{COUNT}{key}"
    if not key.startswith(COUNT):
        return None
    plural, _, group = key.removeprefix(COUNT).partition(".")
    return _counted_sets(registry).get((plural, group))


@lru_cache(maxsize=4)  # a catalog's registry does not change
@lru_cache(maxsize=4)
def _counted_sets(registry: Registry) -> Mapping[tuple[str, str], StorageSet]:
    """What keys can count, by plural and group; made once per registry, since every write asks."""
    local = {
        (endpoint.plural, endpoint.group): endpoint.set
        for endpoint in registry
        if endpoint.set.kind is not None and endpoint.namespaced
    }
    return {**registry.remote_names, **local}


def namespace_of(key: Key, kind: Kind, control_plane: ControlPlaneInfo) -> str:
    """The namespace in which an object is counted: where the Kubernetes form shows it."""
    if namespaced_names.is_native(kind):
        return key.namespace
    at = Resource(
        kind=key.kind,
        mesh=key.mesh,
        zone=key.zone,
        namespace=key.namespace,
        name=key.name,
        core_name=key.name,
    )
    return namespaced_names.namespaced_name(at, kind, control_plane).namespace


def exceeded(
    limits: Iterable[HardLimit], requested: Mapping[ObjectCount, int], used: Mapping[ObjectCount, int]
) -> str:
    """Kubernetes' sentence for the first quota that a write exceeds; empty where none is."""
    passed = [
        limit
        for limit in limits
        if requested.get(limit.counted, 0) > 0
        and used.get(limit.counted, 0) + requested[limit.counted] > limit.hard
    ]
    if not passed:
        return ""
    first = [limit for limit in passed if limit.quota == passed[0].quota]
    return (
        f"exceeded quota: {first[0].quota},"
        f" requested: {_listed((limit.key, requested[limit.counted]) for limit in first)},"
        f" used: {_listed((limit.key, used.get(limit.counted, 0)) for limit in first)},"
        f" limited: {_listed((limit.key, limit.hard) for limit in first)}"
    )


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{key}={count}" for key, count in counts)


def warnings(spec: Json, registry: Registry) -> list[str]:
    """Keys that count nothing, with what is meant perhaps."""
    hard = parts.as_map(parts.as_map(spec).get("hard"))
    names = [
        f"{COUNT}{plural}.{group}" if group else f"{COUNT}{plural}"
        for plural, group in _counted_sets(registry)
    ]
    texts = []
    for key in sorted(hard):
        if set_of(key, registry) is None:
            meant = nearest(key, names)
            hint = f'; did you mean "{meant}"?' if meant else ""
            texts.append(
                f'spec.hard["{key}"]: nothing of that name is counted here, so that it limits nothing{hint}'
            )
    return texts


def status(quota: Resource, used: Counter[ObjectCount], registry: Registry, time: str) -> Json:
    """The status of a quota; the condition keeps the time at which it last changed."""
    counts = {limit.key: str(used[limit.counted]) for limit in limits(quota, registry)}
    unknown = warnings(quota.spec, registry)
    condition: dict[str, Json] = {
        "type": COUNTED,
        "status": "False" if unknown else "True",
        "reason": _UNKNOWN if unknown else "AllCounted",
        "message": "; ".join(unknown) if unknown else "every key counts objects of this control plane",
    }
    conditions = parts.as_map(quota.status).get("conditions")
    before = parts.as_map(next(iter(conditions), None) if isinstance(conditions, list) else None)
    changed = before.get("status") != condition["status"] or "lastTransitionTime" not in before
    condition["lastTransitionTime"] = time if changed else before["lastTransitionTime"]
    return {"hard": dict(sorted(_hard(quota).items())), "used": counts, "conditions": [condition]}


def _hard(quota: Resource) -> Mapping[str, str]:
    """The limits of a stored quota; one that nobody checked, from a backup, may have another shape."""
    hard = parts.as_map(parts.as_map(quota.spec).get("hard"))
    return {key: text for key, text in hard.items() if isinstance(text, str)}


def is_quota(resource: Resource) -> bool:
    """Whether an object is a ResourceQuota."""
    return resource.kind == RESOURCE_QUOTA.stored_as
