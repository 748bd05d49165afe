"""Grants: whether an object may refer to one of another namespace, by the ReferenceGrants of that namespace.

A grant stands in the namespace of what is referred to, and lists who may refer (`from`) and to what (`to`).
Any one grant is enough.
"""

from typing import NamedTuple

from koguma.core import world
from koguma.core.gateway_api import objects
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.model.resource import Key, Resource


class ReferenceFrom(NamedTuple):
    """Who refers: the group, kind and namespace of an object."""

    group: str
    kind: str
    namespace: str


class ReferenceTo(NamedTuple):
    """What is referred to; in a grant, an empty name is any object."""

    group: str
    kind: str
    namespace: str
    name: str = ""


def _namespace(key: Key, _resource: Resource) -> list[str]:
    return [key.namespace] if key.kind == objects.REFERENCE_GRANT else []


_BY_NAMESPACE = Index(world.RESOURCES, _namespace)


@question
def _granted(db: Db, namespace: str) -> frozenset[tuple[ReferenceFrom, ReferenceTo]]:
    """All pairs that the grants of a namespace allow."""
    pairs = set()
    for _, resource in _BY_NAMESPACE.items(db, namespace):
        spec = objects.fields(resource.spec)
        for _, source in objects.items(spec.get("from")):
            who = ReferenceFrom(*(objects.text(source.get(name)) for name in ReferenceFrom._fields))
            for _, to in objects.items(spec.get("to")):
                group, kind, name = (objects.text(to.get(field)) for field in ("group", "kind", "name"))
                pairs.add((who, ReferenceTo(group, kind, namespace, name)))
    return frozenset(pairs)


def is_permitted(db: Db, source: ReferenceFrom, to: ReferenceTo) -> bool:
    """Whether this reference is allowed; inside a namespace every one is."""
    if source.namespace == to.namespace:
        return True
    granted = _granted(db, to.namespace)
    return (source, to) in granted or (source, to._replace(name="")) in granted
