"""Added resources: whole clusters and listeners that policies add, such as the cluster of a log collector."""

from collections.abc import Iterator, Mapping

from koguma.core.build import encoding, skeletons
from koguma.core.build.overlay_merge import Parts
from koguma.core.incremental import Db
from koguma.envoy import snapshot
from koguma.envoy.snapshot import Failure, Id, XdsResource
from koguma.model.schema import Json


def clusters(db: Db, parts: Parts, origin: str = "") -> Iterator[XdsResource | Failure]:
    """The clusters that policies add; equal names have equal content (`model.overlay`)."""
    for name, data in (parts.get("clusters") or {}).items():
        cluster = {**data, "name": name}
        yield encoding.encoded(db, snapshot.CLUSTER, name, cluster, secrets(cluster), origin)


def listeners(db: Db, parts: Parts, origin: str = "") -> Iterator[XdsResource | Failure]:
    """The listeners that policies add."""
    for name, data in (parts.get("listeners") or {}).items():
        listener = {**skeletons.EXCLUSIVE, **data, "name": name}
        needs = (*needed(parts), *secrets(listener))
        yield encoding.encoded(db, snapshot.LISTENER, name, listener, needs, origin)


def needed(parts: Parts) -> tuple[Id, ...]:
    """What a listener with these parts needs before it: the clusters that policies added with them."""
    return tuple((snapshot.CLUSTER, name) for name in sorted(parts.get("clusters") or ()))


def secrets(data: Json) -> tuple[Id, ...]:
    """The secrets that plain data refers to."""
    return tuple(dict.fromkeys(_secrets(data)))


def _secrets(data: Json) -> Iterator[Id]:
    if isinstance(data, Mapping):
        if "sds_config" in data:
            yield snapshot.SECRET, data["name"]
        for value in data.values():
            yield from _secrets(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _secrets(value)
