"""Candidates: the policies that may select a proxy, found by one word of their targetRef.

A mesh can have thousands of policies of which a proxy sees few. So policies are indexed by a *word* that a
proxy must have to be selected: a label, a tag, its name, or its gateway's name. Whoever asks about a proxy
looks up the words that it has, and asks the selectors of those policies only (`match`).

The index reads a targetRef as it is written, since it is an index of stored objects. Where that requires no
word (it is to the mesh), or says less than the selector may mean (there is no targetRef, it is one to a
route, or has a field that only the kind's `clean` knows), the policy may select any proxy (`of_any_proxy`).
These are found shard by shard; policies whose first entry names one destination are in one shard.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.core import world
from koguma.core.incremental import Db
from koguma.core.inputs import Index
from koguma.core.world import Pairs
from koguma.model import labels, tags
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json


class ProxyWord(NamedTuple):
    """What a proxy must have: a label or tag with a value, or a name. `what` says which of these."""

    what: str  # label, tag, name, gateway; or that below
    name: str = ""
    value: str = ""


_ANY_OF: Final = "any proxy"  # with the kind of the policy as its name, and a shard, or none for all

_FIELDS: Final = {"kind", "name", "namespace", "labels", "tags", "sectionName", "proxyTypes", "mesh"}
_NO_POLICIES: Final = {"Dataplane", "Mesh", "Secret", *world.DESTINATION_KINDS}
_OWN_DOMAINS: Final = ("kuma.io", "k8s.kuma.io")


class WrittenTarget(msgspec.Struct, frozen=True):
    """What a targetRef requires of a proxy, as far as it can be read without its kind."""

    is_known: bool = True
    name: str = ""  # of a Dataplane
    gateway: str = ""
    labels: Pairs = ()
    tags: Pairs = ()


_UNKNOWN: Final = WrittenTarget(is_known=False)


def written(spec: Json) -> WrittenTarget:
    """What the top-level targetRef of a spec requires of a proxy. Any JSON may stand there."""
    ref = spec.get("targetRef") if isinstance(spec, Mapping) else None
    if not isinstance(ref, Mapping) or not ref.keys() <= _FIELDS:
        return _UNKNOWN
    kind, name = ref.get("kind"), ref.get("name") or ""
    own_labels, own_tags = _pairs(ref.get("labels")), _pairs(ref.get("tags"))
    if own_labels is None or own_tags is None or not isinstance(name, str):
        return _UNKNOWN
    match kind:
        case "Mesh":
            return WrittenTarget()
        case "MeshSubset":
            return WrittenTarget(tags=own_tags)
        case "MeshService" | "MeshServiceSubset" if not own_labels:
            return WrittenTarget(tags=world.pairs({tags.SERVICE: name, **dict(own_tags)}))
        case "Dataplane" | "MeshService":
            return WrittenTarget(name=name, labels=own_labels)
        case "MeshGateway":
            return WrittenTarget(gateway=name, tags=own_tags)
        case _:
            return _UNKNOWN


def _pairs(mapping: Json) -> Pairs | None:
    """A map of texts as pairs; None where it is no such map."""
    if not mapping:
        return ()
    if not isinstance(mapping, Mapping) or not all(
        isinstance(text, str) for pair in mapping.items() for text in pair
    ):
        return None
    return world.pairs(mapping)


def word(of: WrittenTarget) -> ProxyWord | None:
    """The word under which a policy is found: the one that fewest proxies have, as far as one can guess.

    None where any proxy may be selected.
    """
    if of.gateway:
        return ProxyWord("gateway", of.gateway)
    if of.name:
        return ProxyWord("name", of.name)
    words = [
        *(_label(name, value) for name, value in of.labels),
        *(ProxyWord("tag", name, value) for name, value in of.tags if value != tags.ANY),
    ]
    return min(words, key=_breadth, default=None)


def _label(name: str, value: str) -> ProxyWord:
    return ProxyWord("name", value) if name == labels.DISPLAY_NAME else ProxyWord("label", name, value)


def _breadth(each: ProxyWord) -> tuple[int, ProxyWord]:
    """Names and services say most; zones, namespaces and the like are shared by many proxies."""
    if each.what == "name" or each.name == tags.SERVICE:
        return 0, each
    return 2 if each.name.partition("/")[0] in _OWN_DOMAINS else 1, each


def _by_word(key: Key, resource: Resource) -> Iterator[tuple[str, ProxyWord]]:
    if key.kind in _NO_POLICIES:
        return
    found = word(written(resource.spec))
    if found is not None:
        yield key.mesh, found
        return
    yield key.mesh, ProxyWord(_ANY_OF, key.kind)
    yield key.mesh, _in_shard(key.kind, world.shard_of(_first_name(resource.spec) or key.name))


def _in_shard(kind: str, shard: int) -> ProxyWord:
    return ProxyWord(_ANY_OF, kind, str(shard))


def _first_name(spec: Json) -> str:
    """The name in the first entry of `to`; empty where there is none. Any JSON may stand there."""
    entries = spec.get("to") if isinstance(spec, Mapping) else None
    first = entries[0] if isinstance(entries, (list, tuple)) and entries else None
    ref = first.get("targetRef") if isinstance(first, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return name if isinstance(name, str) else ""


BY_WORD: Final = Index(world.RESOURCES, _by_word)  # by mesh and word; also objects that are no policies


def shards_of_any_proxy(db: Db, mesh: str, kind: str) -> tuple[int, ...]:
    """The shards in which there are policies of a kind that may select any proxy."""
    if not BY_WORD.has(db, (mesh, ProxyWord(_ANY_OF, kind))):
        return ()
    return tuple(shard for shard in world.SHARDS if BY_WORD.has(db, (mesh, _in_shard(kind, shard))))


def of_any_proxy(db: Db, mesh: str, kind: str, shard: int) -> tuple[Key, ...]:
    """The policies of a kind in a shard that may select any proxy, or read anything of it."""
    return BY_WORD.keys(db, (mesh, _in_shard(kind, shard)))


def _mentions(key: Key, resource: Resource) -> Iterator[tuple[str, str, str]]:
    """Keys of labels and tags, and names of proxies; also an entry for having any name at all."""
    if key.kind in _NO_POLICIES:
        return
    read = written(resource.spec)
    names = [read.name] if read.name else []
    for name, value in read.labels:
        if name == labels.DISPLAY_NAME:
            names.append(value)
        else:
            yield key.mesh, "label", name
    yield from ((key.mesh, "tag", name) for name, _ in read.tags)
    for name in names:
        yield key.mesh, "name", name
        yield key.mesh, "name", ""


MENTIONS: Final = Index(world.RESOURCES, _mentions)  # what targetRefs of a mesh read of proxies
