"""Replay: one resource of a proxy compiled again, as it would be without a part of what was written.

A database of its own holds what the resource may depend on: first only the proxy, what it calls by this
resource, and the policies that select it. If the resource is not the same there, all of the mesh; for a zone
proxy, all meshes.

The listener of a zone proxy has a chain for each port that it serves, in all meshes. None depends on what is
written about another port, so each is replayed by itself, in a small database of its own.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.core import loading, match, world
from koguma.core.build import encoding, network, snapshot
from koguma.core.envoy_origins import paths, selection
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.envoy.snapshot import ENDPOINTS, LISTENER, SECRET, Id, XdsResource
from koguma.model.kind import Kinds, ValidationContext
from koguma.model.redacted import SHOWN
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation

_CHAINS: Final = "filter_chains"
_CHAIN: Final = re.compile(rf"{_CHAINS}\[([^\]]*)\]")


class ResourcePart(NamedTuple):
    """What of a resource is replayed: all of it; or one filter chain, or all but these."""

    is_whole: bool = True
    chain: str = ""

    def of(self, data: Json) -> Json:
        """What of the data of the resource is in this part; None where there is no such part."""
        if self.is_whole:
            return data
        if not self.chain:
            return {name: value for name, value in data.items() if name != _CHAINS}
        chains = [each for each in data[_CHAINS] if each["name"] == self.chain]
        return {_CHAINS: chains} if chains else None


_WHOLE: Final = ResourcePart()


def by_part(proxy: Key, id_: Id, fields: Iterable[str]) -> Mapping[ResourcePart, frozenset[str]]:
    """The fields of a resource by the parts that are replayed by themselves."""
    type_, name = id_
    if proxy.kind == "Dataplane" or type_ != LISTENER or not name.startswith("kri_"):
        return {_WHOLE: frozenset(fields)}
    found: dict[ResourcePart, set[str]] = {}
    for field in fields:
        chain = _CHAIN.match(field)
        found.setdefault(ResourcePart(is_whole=False, chain=chain[1] if chain else ""), set()).add(field)
    return {part: frozenset(each) for part, each in found.items()}


def shown(db: Db, proxy: Key, id_: Id) -> Json:
    """The data of a resource that a proxy has: in Envoy's spelling, secrets masked."""
    actual = _resource(db, proxy, id_)
    assert actual is not None, id_
    return _data(db, actual)


class Replay:
    """Compiles a resource of a proxy with changed objects. The database that it is about is only read."""

    def __init__(self, db: Db, proxy: Key, id_: Id, data: Json, part: ResourcePart) -> None:
        """`data` is that of the resource (`shown`)."""
        self._proxy, self._id, self._part = proxy, id_, part
        actual = _resource(db, proxy, id_)
        assert actual is not None, id_
        self._actual, self._shown = actual, part.of(data)
        self._name = id_[1] if part.is_whole else part.chain or data[_CHAINS][0]["name"]
        self._meshes = _meshes(db, proxy, self._name)
        self.db = _copy(db, proxy, self._needed(db))
        if not self._is_same():
            self.db = _copy(db, proxy, _of_meshes(db, proxy))
        self._unchanged = _resource(self.db, proxy, id_)
        self._known = frozenset(self._named())

    def _is_same(self) -> bool:
        """Whether the copy gives the same resource, as far as it is about that."""
        found = _resource(self.db, self._proxy, self._id)
        if found is None or self._part.is_whole:
            return found == self._actual
        return bool(self._part.of(_data(self.db, found)) == self._shown)

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
        if resource is not None and resource == self._unchanged:
            return self._shown
        found = None if resource is None else self._part.of(_data(self.db, resource))
        if found is not None:
            return found
        if not self._part.is_whole and not self._part.chain:
            return None  # it is there with any other chain, too
        return self._renamed() if must_exist else {}

    def _renamed(self) -> Json:
        """What has come instead of the resource: names have ports and sections in them."""
        new = [name for name in self._named() if name not in self._known]
        if len(new) != 1:
            return None
        part = self._part if self._part.is_whole else self._part._replace(chain=new[0])
        resource = _resource(self.db, self._proxy, (self._id[0], new[0]) if part.is_whole else self._id)
        assert resource is not None, new
        text = json.dumps(part.of(_data(self.db, resource)))
        return json.loads(text.replace(new[0], self._name))

    def _named(self) -> Iterator[str]:
        """The names of the resources of the type, or of the chains of the listener."""
        if self._part.is_whole:
            found = snapshot.of(self.db, self._proxy) or ()
            return (each.name for each in found if each.type == self._id[0])
        resource = _resource(self.db, self._proxy, self._id)
        chains = _data(self.db, resource)[_CHAINS] if resource is not None else ()
        return (each["name"] for each in chains)

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

    def _needed(self, db: Db) -> Iterator[Resource]:
        """What the resource most likely depends on."""
        kinds = match.policy_kinds(db)
        selecting = {key for kind in kinds for key in selection.policies(db, self._proxy, kind)}
        for resource in _of_meshes(db, self._proxy):
            if not self.is_of_mesh(resource.name if resource.kind == "Mesh" else resource.mesh):
                continue
            if resource.kind in kinds:
                is_needed = resource.key in selecting
            elif resource.kind in world.DESTINATION_KINDS or resource.kind == "Dataplane":
                is_needed = self.is_about(db, resource)
            else:
                is_needed = True
            if is_needed:
                yield resource

    def is_of_mesh(self, mesh: str) -> bool:
        """Whether what is written in a mesh may be about the resource, as far as its name says."""
        return not mesh or not self._meshes or mesh in self._meshes

    def is_about(self, db: Db, resource: Resource) -> bool:
        """Whether an object, no policy, may decide what the resource says."""
        if resource.key == self._proxy or resource.kind == "Mesh":
            return True
        if resource.kind == "Dataplane":
            return _is_endpoint(resource, self._actual)
        return _is_named(db, resource.key, self._name)


def _data(db: Db, resource: XdsResource) -> Json:
    if resource.type == SECRET:
        return {"secret": SHOWN}
    return encoding.encoder(db).shown(resource, json_names=False)


def _resource(db: Db, proxy: Key, id_: Id) -> XdsResource | None:
    found = snapshot.of(db, proxy)
    return found.get(id_) if found is not None else None


def _meshes(db: Db, proxy: Key, name: str) -> Collection[str]:
    """Of the meshes of a zone proxy, those that a name is about; nothing where all of them may matter."""
    return {each.mesh for each in world.stored(db) if not proxy.mesh and _is_named(db, each.key, name)}


def _is_endpoint(dataplane: Resource, actual: XdsResource) -> bool:
    """Whether a Dataplane is among the endpoints of a resource, or looks so."""
    net = dataplane.spec.get("networking") or {}
    inbounds = (each.get("address") for each in net.get("inbound") or ())
    addresses = (net.get("advertisedAddress"), net.get("address"), *inbounds)
    return actual.type == ENDPOINTS and any(each and str(each).encode() in actual.body for each in addresses)


def _is_named(db: Db, key: Key, name: str) -> bool:
    """Whether a name in Envoy is about a destination."""
    return key.kind in world.DESTINATION_KINDS and encoding.kri(db, key, "") in name


def _of_meshes(db: Db, proxy: Key) -> Iterator[Resource]:
    """The stored objects of a proxy's mesh, of none, and the gateways of others, which it may call.

    A zone proxy has those of all meshes.
    """
    for resource in world.stored(db):
        of_others = resource.kind == GATEWAY or match.is_built_in(resource)
        if of_others or not proxy.mesh or resource.mesh in ("", proxy.mesh):
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
