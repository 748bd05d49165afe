"""Deciding: which entry of a policy decides about a caller, so that people find the line.

Envoy says which policy decided. A policy may have several entries; those that cannot be about the caller are
left out.
"""

from collections.abc import Iterator

from koguma.core import derivation, inbound, match, meta, spiffe, world
from koguma.core.inbound import Client
from koguma.core.incremental import Db
from koguma.core.provenance import Viewer
from koguma.model import kri
from koguma.model.resource import Key
from koguma.model.schema import Json


def origins(db: Db, policy: str, proxy: Key | None, listener: str, caller: Key | None) -> list[Json]:
    """The places in a policy that decide about a caller at an inbound: KRI, path and line.

    Empty where the name is of no policy; the policy as a whole where its entry cannot be told.
    """
    key = _key(db, policy)
    if key is None or world.RESOURCES.get(db, key) is None:
        return []
    viewer = Viewer(db)
    paths = tuple(dict.fromkeys(_paths(db, key, proxy, listener, caller))) or ("spec",)
    return [viewer.place(key, path) for path in paths]


def _key(db: Db, identifier: str) -> Key | None:
    if not kri.is_kri(identifier):
        return None
    parsed = kri.parse(identifier)
    for name, kind in world.KINDS.items(db):
        if kind.short == parsed.short:
            return Key(name, parsed.mesh, parsed.zone, parsed.namespace, parsed.name)
    return None


def _paths(db: Db, policy: Key, proxy: Key | None, listener: str, caller: Key | None) -> Iterator[str]:
    traits = match.traits(db, proxy) if proxy is not None and proxy.kind == "Dataplane" else None
    if traits is None or not kri.is_kri(listener):
        return
    uris = spiffe.identity(db, caller) if caller is not None else ()
    for _, entries in inbound.of(db, traits, kri.parse(listener).section):
        for rule in entries:
            if rule.entry.policy == policy and _may_be(rule.client, uris):
                yield rule.entry.path


def _may_be(client: Client, uris: tuple[str, ...]) -> bool:
    """Whether somebody with these identities can be one of the clients."""
    kind, value = client.spiffe_id
    if kind == "Exact" and value not in uris:
        return False
    if kind == "Prefix" and not any(uri.startswith(value) for uri in uris):
        return False
    services = {uri.rpartition("/")[2] for uri in uris if uri.startswith("spiffe://")}
    return all(
        spiffe.tag_id(tag, wanted) in uris or (tag == "kuma.io/service" and wanted in services)
        for tag, wanted in client.tags
    )


def shown(db: Db, key: Key) -> str:
    """The name by which people know a proxy."""
    source, _ = derivation.stored_place(db, key)
    return str(meta.meta(db, source)["name"])
