"""Mentions: which objects refer to an object, so that somebody who deletes it hears what then leads nowhere.

Who refers to it is asked before a deletion, and whether that still leads somewhere after it: a name may mean
another object once the first is gone, and a deleted MeshService may be made again out of proxies.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import match, world
from koguma.core.incremental import Db
from koguma.core.items import clean_spec
from koguma.core.oddities import references
from koguma.core.oddities.references import Reference
from koguma.core.world import pairs
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_COLLECTOR: Final = "MeshOpenTelemetryBackend"
_GATEWAY: Final = "MeshGateway"
_SECRET: Final = "Secret"  # noqa: S105 - the name of a kind

# Kinds of objects that others refer to.
KINDS: Final = (*world.DESTINATION_KINDS, *match.ROUTE_KINDS, _GATEWAY, _COLLECTOR, _SECRET)


class Mention(NamedTuple):
    """A reference: whose it is, and where it stands."""

    by: Key
    path: str


class _Written(NamedTuple):
    """A reference as it is written: the kind and the name or labels of what it means."""

    path: str
    ref: Json

    def may_mean(self, kind: str, names: Collection[str]) -> bool:
        """Whether it may mean an object of a kind with one of these names; by labels it may mean any."""
        wanted = self.ref.get("name")
        return self.ref.get("kind") == kind and (not wanted or wanted in names)


def of(db: Db, mesh: str, kind: str, keys: Collection[Key]) -> Iterator[tuple[Key, Mention]]:
    """The references in a mesh to some objects of a kind, each with the object that it means."""
    names = {key.name for key in keys}
    for by in _referrers(db, mesh, kind):
        for written in _written(db, by, kind):
            if written.may_mean(kind, names):
                for key in _meant(db, by, written):
                    if key in keys:
                        yield key, Mention(by, written.path)


def leads_nowhere(db: Db, mention: Mention, kind: str) -> bool:
    """Whether a reference is there and means nothing, now or as soon as services are made."""
    by = mention.by
    if world.RESOURCES.get(db, by) is None:
        return False
    here = [each for each in _written(db, by, kind) if each.path == mention.path]
    return any(not _meant(db, by, each) and not _will_be_made(db, by, each) for each in here)


def _referrers(db: Db, mesh: str, kind: str) -> Iterator[Key]:
    """The objects of a mesh that may refer to those of a kind."""
    if kind == _SECRET:
        yield from world.BY_KIND.keys(db, ("MeshExternalService", mesh))
        return
    for policy_kind in match.policy_kinds(db):
        yield from world.BY_KIND.keys(db, (policy_kind, mesh))
    if kind in world.DESTINATION_KINDS:
        yield from world.BY_KIND.keys(db, ("Dataplane", mesh))


def _written(db: Db, by: Key, kind: str) -> Iterator[_Written]:
    if by.kind == "Dataplane":
        return _of_proxy(db, by)
    if kind == _SECRET:
        return _of_external_service(db, by)
    spec = clean_spec(db, by)
    if kind == _COLLECTOR:
        return (_Written(path, ref) for path, ref in _collectors(spec, "spec"))
    return (_Written(one.path, {**one.ref, "kind": one.kind}) for one in references.references(spec))


def _meant(db: Db, by: Key, written: _Written) -> tuple[Key, ...]:
    """The objects that a reference means."""
    ref, kind = written.ref, str(written.ref["kind"])
    if kind == _SECRET:
        keys = world.BY_KIND.keys(db, (kind, by.mesh))
        return tuple(key for key in keys if key.name == ref["name"])
    if by.kind == "Dataplane":
        namespace, wanted = ref.get("namespace") or by.namespace, pairs(ref.get("labels"))
        return world.referenced(db, by.mesh, kind, ref.get("name") or "", namespace, by.zone, wanted)
    if kind == _COLLECTOR:
        return world.labelled(db, by.mesh, kind, pairs(ref.get("labels")))
    return references.found(db, by, Reference(written.path, ref))


def _will_be_made(db: Db, by: Key, written: _Written) -> bool:
    return references.will_be_made(db, by, Reference(written.path, written.ref))


def _collectors(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    """The references to collectors, wherever a policy has them, with their places."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            at = child(path, name)
            if name == "backendRef" and isinstance(part, Mapping) and part.get("kind") == _COLLECTOR:
                yield at, part
            else:
                yield from _collectors(part, at)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, part in enumerate(value):
            yield from _collectors(part, item(path, index))


def _of_proxy(db: Db, proxy: Key) -> Iterator[_Written]:
    """Outbounds that name a service; those by tags mean whoever serves it."""
    resource = world.RESOURCES.get(db, proxy)
    networking = (resource.spec.get("networking") or {}) if resource else {}
    for index, outbound in enumerate(networking.get("outbound") or ()):
        if outbound.get("backendRef"):
            yield _Written(f"networking.outbound[{index}].backendRef", outbound["backendRef"])


def _of_external_service(db: Db, service: Key) -> Iterator[_Written]:
    """Certificates and keys of a service outside of the mesh; a mesh's own secrets cannot be deleted."""
    resource = world.RESOURCES.get(db, service)
    for path, name in _secrets((resource.spec.get("tls") or {}) if resource else {}, "spec.tls"):
        yield _Written(path, {"kind": _SECRET, "name": name})


def _secrets(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """The names of secrets in a part of a spec, in both spellings of a data source."""
    if not isinstance(value, Mapping):
        return
    ref = value.get("secretRef")
    name = ref.get("name") if isinstance(ref, Mapping) else value.get("secret")
    if isinstance(name, str) and name:
        yield path, name
        return
    for field, part in value.items():
        yield from _secrets(part, child(path, field))
