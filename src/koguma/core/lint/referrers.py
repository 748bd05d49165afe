"""Referrers: which objects refer to an object, to warn whoever deletes it about dangling references.

The referrers are collected before a deletion, and whether their references dangle is asked after it: a name
may resolve to another object once the first is deleted, and a deleted MeshService may be generated again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import match, world
from koguma.core.gateway_api import extension_refs
from koguma.core.incremental import Db
from koguma.core.items import clean_spec
from koguma.core.lint import references
from koguma.core.lint.references import Reference
from koguma.core.world import pairs
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.target_ref import ROUTE_FILTER
from koguma.model.violation import child, item

_COLLECTOR: Final = "MeshOpenTelemetryBackend"
_GATEWAY: Final = "MeshGateway"
_SECRET: Final = "Secret"  # noqa: S105 - the name of a kind

# Kinds of objects that others refer to.
KINDS: Final = (
    *(*world.DESTINATION_KINDS, *match.ROUTE_KINDS, _GATEWAY, _COLLECTOR, _SECRET),
    ROUTE_FILTER,
)


class Referrer(NamedTuple):
    """An object that refers to another one, and the path of the reference in it."""

    by: Key
    path: str
    mesh: str  # in which it refers to it; routes of the Gateway API are in none themselves


class _WrittenReference(NamedTuple):
    """A reference as it is written: the kind and the name or labels of its target."""

    path: str
    ref: Json

    def may_refer_to(self, kind: str, names: Collection[str]) -> bool:
        """Whether it may refer to an object of a kind with one of these names; by labels it may be any."""
        name = self.ref.get("name")
        return self.ref.get("kind") == kind and (not name or name in names)


def of(db: Db, mesh: str, kind: str, keys: Collection[Key]) -> Iterator[tuple[Key, Referrer]]:
    """The referrers in a mesh of some objects of a kind, each with the object that it refers to."""
    names = {key.name for key in keys}
    for by in _referrers(db, mesh, kind):
        for reference in _references(db, by, kind):
            if reference.may_refer_to(kind, names):
                for key in _resolved(db, mesh, by, reference):
                    if key in keys:
                        yield key, Referrer(by, reference.path, mesh)


def is_dangling(db: Db, referrer: Referrer, kind: str) -> bool:
    """Whether a reference is still there and resolves to nothing, also after services are generated."""
    by = referrer.by
    if world.RESOURCES.get(db, by) is None:
        return False
    mesh = referrer.mesh
    same_path = [reference for reference in _references(db, by, kind) if reference.path == referrer.path]
    return any(
        not _resolved(db, mesh, by, reference) and not _will_be_generated(db, by, reference)
        for reference in same_path
    )


def _referrers(db: Db, mesh: str, kind: str) -> Iterator[Key]:
    """The objects of a mesh that may refer to those of a kind."""
    if kind == _SECRET:
        yield from world.BY_KIND.keys(db, ("MeshExternalService", mesh))
        yield from world.BY_KIND.keys(db, (_GATEWAY, mesh))
        return
    if kind == ROUTE_FILTER:
        for route_kind in extension_refs.REFERRERS:
            yield from world.BY_KIND_EVERYWHERE.keys(db, route_kind)
        return
    for policy_kind in match.policy_kinds(db):
        yield from world.BY_KIND.keys(db, (policy_kind, mesh))
    if kind in world.DESTINATION_KINDS:
        yield from world.BY_KIND.keys(db, ("Dataplane", mesh))


def _references(db: Db, by: Key, kind: str) -> Iterator[_WrittenReference]:
    if by.kind == "Dataplane":
        return _of_proxy(db, by)
    if kind == ROUTE_FILTER:
        resource = world.RESOURCES.get(db, by)
        found = extension_refs.references(resource.spec if resource else None)
        return (_WrittenReference(path, ref) for path, ref in found)
    if kind == _SECRET:
        return _of_gateway(db, by) if by.kind == _GATEWAY else _of_external_service(db, by)
    spec = clean_spec(db, by)
    if kind == _COLLECTOR:
        return (_WrittenReference(path, ref) for path, ref in _collectors(spec, "spec"))
    return (
        _WrittenReference(each.path, {**each.ref, "kind": each.kind}) for each in references.references(spec)
    )


def _resolved(db: Db, mesh: str, by: Key, reference: _WrittenReference) -> tuple[Key, ...]:
    """The objects that a reference resolves to."""
    ref, kind = reference.ref, str(reference.ref["kind"])
    if kind == ROUTE_FILTER:
        found = extension_refs.key(db, by, mesh, ref)
        return (found,) if found is not None else ()
    if kind == _SECRET:
        keys = world.BY_KIND.keys(db, (kind, by.mesh))
        return tuple(key for key in keys if key.name == ref["name"])
    if by.kind == "Dataplane":
        namespace, ref_labels = ref.get("namespace") or by.namespace, pairs(ref.get("labels"))
        return world.referenced(db, by.mesh, kind, ref.get("name") or "", namespace, by.zone, ref_labels)
    if kind == _COLLECTOR:
        return world.labelled(db, by.mesh, kind, pairs(ref.get("labels")))
    return references.resolved(db, by, Reference(reference.path, ref))


def _will_be_generated(db: Db, by: Key, reference: _WrittenReference) -> bool:
    return references.will_be_generated(db, by, Reference(reference.path, reference.ref))


def _collectors(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    """The references to collectors, at any depth of a policy's spec, with their paths."""
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


def _of_proxy(db: Db, proxy: Key) -> Iterator[_WrittenReference]:
    """Outbounds with a backendRef; those with tags refer to no object."""
    resource = world.RESOURCES.get(db, proxy)
    networking = (resource.spec.get("networking") or {}) if resource else {}
    for index, outbound in enumerate(networking.get("outbound") or ()):
        if outbound.get("backendRef"):
            yield _WrittenReference(f"networking.outbound[{index}].backendRef", outbound["backendRef"])


def _of_gateway(db: Db, gateway: Key) -> Iterator[_WrittenReference]:
    """The certificates of a MeshGateway's listeners that are in Secrets."""
    resource = world.RESOURCES.get(db, gateway)
    listeners = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    for number, listener in enumerate(listeners):
        for index, source in enumerate((listener.get("tls") or {}).get("certificates") or ()):
            if source.get("secret"):
                path = f"conf.listeners[{number}].tls.certificates[{index}].secret"
                yield _WrittenReference(path, {"kind": _SECRET, "name": source["secret"]})


def _of_external_service(db: Db, service: Key) -> Iterator[_WrittenReference]:
    """References of a MeshExternalService to Secrets; a mesh's own Secrets cannot be deleted."""
    resource = world.RESOURCES.get(db, service)
    for path, name in _secrets((resource.spec.get("tls") or {}) if resource else {}, "spec.tls"):
        yield _WrittenReference(path, {"kind": _SECRET, "name": name})


def _secrets(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """The names of Secrets in a part of a spec, in both forms of a data source."""
    if not isinstance(value, Mapping):
        return
    ref = value.get("secretRef")
    name = ref.get("name") if isinstance(ref, Mapping) else value.get("secret")
    if isinstance(name, str) and name:
        yield path, name
        return
    for field, part in value.items():
        yield from _secrets(part, child(path, field))
