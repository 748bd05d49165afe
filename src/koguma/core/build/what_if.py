"""What if: the configuration that would follow if some objects were different.

A database with the inputs of another one for one mesh, and some objects replaced. The original is only read,
so that proxies are not affected. Every answer is compiled from scratch: it is for the API, not for the fleet.
"""

from collections.abc import Iterable

import msgspec

from koguma.core import loading, match, world
from koguma.core.build import encoding, network
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.model import labels
from koguma.model.kind import Kinds
from koguma.model.resource import Resource


def with_objects(db: Db, mesh: str, replaced: Iterable[Resource]) -> Db:
    """A database in which these objects are stored too, or instead."""
    stored = {each.key: each for each in world.stored(db) if _is_visible(each, mesh)}
    stored |= {resource.key: resource for resource in replaced}
    other = loading.load(
        Kinds([kind for _, kind in world.KINDS.items(db)]), world.control_plane(db), stored.values()
    )
    with other.change() as change:
        for name, encoder in encoding.ENCODER.items(db):
            change.set(encoding.ENCODER, name, encoder)
        for key, node in network.NODE_METADATA.items(db):
            change.set(network.NODE_METADATA, key, node)
    return other


def _is_visible(resource: Resource, mesh: str) -> bool:
    """Whether an object is of one mesh, or of the gateways of others, which that mesh may call."""
    return resource.mesh in ("", mesh) or resource.kind == GATEWAY or match.is_built_in(resource)


def with_shadows(db: Db, mesh: str) -> Db:
    """A database in which policies with the label `kuma.io/effect: shadow` act as others do."""
    shadows = [
        resource
        for resource in world.stored(db)
        if resource.mesh == mesh and resource.labels.get(labels.EFFECT) == "shadow"
    ]
    return with_objects(db, mesh, map(_without_shadow, shadows))


def _without_shadow(policy: Resource) -> Resource:
    own = {name: value for name, value in policy.labels.items() if name != labels.EFFECT}
    return msgspec.structs.replace(policy, labels=own)
