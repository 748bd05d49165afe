"""Replay: one resource of a proxy compiled again, as it would be without a part of what was written.

A database of its own holds what the resource may depend on: first only the proxy, what it calls by this
resource, and the policies that select it. If the resource is not the same there, all of the mesh.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koguma.core import loading, match, world
from koguma.core.build import encoding, network, snapshot
from koguma.core.envoy_origins import paths
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.envoy.snapshot import ENDPOINTS, SECRET, Id, XdsResource
from koguma.model.kind import Kinds, ValidationContext
from koguma.model.redacted import SHOWN
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation


class Replay:
    """Compiles one resource of a proxy with changed objects. The database that it is about is only read."""

    def __init__(self, db: Db, proxy: Key, id_: Id) -> None:
        self._proxy, self._id = proxy, id_
        actual = _resource(db, proxy, id_)
        assert actual is not None, id_
        self._actual = actual
        self.db = _copy(db, proxy, _needed(db, proxy, actual))
        if _resource(self.db, proxy, id_) != actual:
            self.db = _copy(db, proxy, _of_mesh(db, proxy.mesh))
        encoder = encoding.ENCODER.get(db, "envoy")
        assert encoder is not None
        self._encoder = encoder
        self._ids = frozenset(each.id for each in snapshot.of(self.db, proxy) or ())
        self._shown = self._data(actual)
        self.leaves = paths.flattened(self._shown)

    def without(
        self, instead: Iterable[Resource], gone: Iterable[Key] = (), *, must_exist: bool = False
    ) -> Mapping[str, bool] | None:
        """The leaves that are other ones with these objects instead, each with whether it still has a value.

        None where they cannot be tried: where nobody could write them, and with `must_exist` where there
        would be no such resource, nor one with another name in its place.
        """
        written, deleted = tuple(instead), tuple(gone)
        if any(self._is_refused(resource) for resource in written):
            return None
        keys = (*(resource.key for resource in written), *deleted)
        before = [each for key in keys if (each := world.RESOURCES.get(self.db, key)) is not None]
        loading.take(self.db, written, deleted)
        is_read = not any(world.UNREADABLE.get(self.db, key) for key in keys)
        try:
            found = self._found(must_exist=must_exist) if is_read else None
        finally:
            loading.take(self.db, before)
        return None if found is None else dict(paths.differing(self._shown, found))

    def _found(self, *, must_exist: bool) -> Json:
        """The resource as it is now, without anything where there is none; None where there must be one."""
        resource = _resource(self.db, self._proxy, self._id)
        if resource is not None:
            return self._data(resource)
        renamed = self._renamed() if must_exist else None
        if renamed is None:
            return None if must_exist else {}
        return json.loads(json.dumps(self._data(renamed)).replace(renamed.name, self._id[1]))

    def _renamed(self) -> XdsResource | None:
        """What has come instead of the resource: names have ports and sections in them."""
        found = snapshot.of(self.db, self._proxy)
        new = [each for each in found or () if each.type == self._id[0] and each.id not in self._ids]
        return new[0] if len(new) == 1 else None

    def _is_refused(self, resource: Resource) -> bool:
        """Whether nobody could write this for what is there: more is wrong with it than with that."""
        there = world.RESOURCES.get(self.db, resource.key)
        known = self._violations(there) if there is not None else frozenset()
        return not self._violations(resource) <= known

    def _violations(self, resource: Resource) -> frozenset[Violation]:
        kind = world.KINDS.get(self.db, resource.kind)
        if kind is None:
            return frozenset()
        context = ValidationContext(
            control_plane=world.control_plane(self.db),
            name=resource.name,
            mesh=resource.mesh,
            namespace=resource.namespace,
            labels=resource.labels,
        )
        return frozenset(kind.violations(resource.spec, context))

    def is_about(self, resource: Resource) -> bool:
        """Whether an object, no policy, may decide what the resource says."""
        if resource.kind == "Dataplane":
            return resource.key == self._proxy or _is_endpoint(resource, self._actual)
        return resource.kind == "Mesh" or _is_named(self.db, resource.key, self._id)

    def _data(self, resource: XdsResource) -> Json:
        if resource.type == SECRET:
            return {"secret": SHOWN}
        return self._encoder.shown(resource, json_names=False)


def _resource(db: Db, proxy: Key, id_: Id) -> XdsResource | None:
    found = snapshot.of(db, proxy)
    return found.get(id_) if found is not None else None


def _needed(db: Db, proxy: Key, actual: XdsResource) -> Iterator[Resource]:
    """What a resource most likely depends on."""
    traits, kinds = match.traits(db, proxy), match.policy_kinds(db)
    selecting = {key for kind in kinds for key in _selecting(db, kind, traits)}
    for resource in _of_mesh(db, proxy.mesh):
        if resource.kind in kinds and resource.key not in selecting:
            continue
        if resource.kind == "Dataplane" and resource.key != proxy:
            if _is_endpoint(resource, actual):
                yield resource
        elif resource.kind not in world.DESTINATION_KINDS or _is_named(db, resource.key, actual.id):
            yield resource


def _selecting(db: Db, kind: str, traits: match.Traits | None) -> Iterator[Key]:
    return (each.policy for each in match.matched(db, kind, traits)) if traits is not None else iter(())


def _is_endpoint(dataplane: Resource, actual: XdsResource) -> bool:
    """Whether a Dataplane is among the endpoints of a resource, or looks so."""
    net = dataplane.spec.get("networking") or {}
    addresses = (net.get("advertisedAddress"), net.get("address"))
    return actual.type == ENDPOINTS and any(each and str(each).encode() in actual.body for each in addresses)


def _is_named(db: Db, key: Key, id_: Id) -> bool:
    """Whether a resource is about a destination."""
    return key.kind in world.DESTINATION_KINDS and encoding.kri(db, key, "").rstrip("_") in id_[1]


def _of_mesh(db: Db, mesh: str) -> Iterator[Resource]:
    """The stored objects of a mesh, of none, and the gateways of others, which it may call."""
    for resource in world.stored(db):
        if resource.mesh in ("", mesh) or resource.kind == GATEWAY or match.is_built_in(resource):
            yield resource


def _copy(db: Db, proxy: Key, resources: Iterable[Resource]) -> Db:
    kinds = Kinds([kind for _, kind in world.KINDS.items(db)])
    other = loading.load(kinds, world.control_plane(db), resources)
    with other.change() as change:
        for name, encoder in encoding.ENCODER.items(db):
            change.set(encoding.ENCODER, name, encoder)
        node = network.NODE_METADATA.get(db, proxy)
        if node is not None:
            change.set(network.NODE_METADATA, proxy, node)
    return other


def with_spec(resource: Resource, spec: Json) -> Resource:
    """An object with another spec."""
    return msgspec.structs.replace(resource, spec=spec)
