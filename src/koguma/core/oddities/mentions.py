"""Mentions: which objects refer to an object, so that somebody who deletes it hears what then leads nowhere.

Read before and after a deletion and compared: a name may mean another object once the first is gone, and a
deleted MeshService may be made again out of proxies.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import match, world
from koguma.core.incremental import Db
from koguma.core.items import clean_spec
from koguma.core.oddities import references
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
    """A reference: whose it is, where it stands, and what it means; nothing where it leads nowhere."""

    by: Key
    path: str
    means: tuple[Key, ...]


def of_kind(db: Db, mesh: str, kind: str) -> Iterator[Mention]:
    """All references in a mesh to objects of a kind."""
    if kind == _SECRET:
        yield from _of_secrets(db, mesh)
        return
    for policy_kind in match.policy_kinds(db):
        for policy in world.BY_KIND.keys(db, (policy_kind, mesh)):
            yield from _of_policy(db, policy, kind)
    if kind in world.DESTINATION_KINDS:
        for proxy in world.BY_KIND.keys(db, ("Dataplane", mesh)):
            yield from _of_proxy(db, proxy, kind)


def _of_policy(db: Db, policy: Key, kind: str) -> Iterator[Mention]:
    spec = clean_spec(db, policy)
    if kind == _COLLECTOR:
        for path, ref in _collectors(spec, "spec"):
            yield Mention(policy, path, world.labelled(db, policy.mesh, kind, pairs(ref.get("labels"))))
        return
    for one in references.references(spec):
        if one.kind == kind:
            made = (policy,) if references.will_be_made(db, policy, one) else ()
            yield Mention(policy, one.path, references.found(db, policy, one) or made)


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


def _of_proxy(db: Db, proxy: Key, kind: str) -> Iterator[Mention]:
    """Outbounds that name a service; those by tags mean whoever serves it."""
    resource = world.RESOURCES.get(db, proxy)
    networking = (resource.spec.get("networking") or {}) if resource else {}
    for index, outbound in enumerate(networking.get("outbound") or ()):
        ref = outbound.get("backendRef") or {}
        if ref.get("kind") == kind:
            path = child(item("networking.outbound", index), "backendRef")
            namespace = ref.get("namespace") or proxy.namespace
            found = world.referenced(
                db, proxy.mesh, kind, ref.get("name") or "", namespace, proxy.zone, pairs(ref.get("labels"))
            )
            yield Mention(proxy, path, found)


def _of_secrets(db: Db, mesh: str) -> Iterator[Mention]:
    """Certificates and keys of services outside of the mesh; a mesh's own secrets cannot be deleted."""
    by_name: dict[str, list[Key]] = {}
    for key in world.BY_KIND.keys(db, (_SECRET, mesh)):
        by_name.setdefault(key.name, []).append(key)
    for service in world.BY_KIND.keys(db, ("MeshExternalService", mesh)):
        resource = world.RESOURCES.get(db, service)
        for path, name in _secrets((resource.spec.get("tls") or {}) if resource else {}, "spec.tls"):
            yield Mention(service, path, tuple(by_name.get(name, ())))


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
