"""Meshes for tests of what Envoys get: objects as YAML, proxies that are connected, resources to look into.

A document may say what nobody can write: `status` is kept, `x-zone` is the zone that it comes from (empty:
from Global), `x-name` is a name that was legal once, and `x-spec` is a spec with fields that only conversions
from other kinds write.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from koguma.core import admission, pipeline, world
from koguma.core.build import encoding, network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.envoy import external, schema, virtual_hosts
from koguma.envoy.encode import Encoder
from koguma.envoy.external import ExternalEndpoint
from koguma.envoy.snapshot import TYPES, Snapshot, XdsResource
from koguma.kinds import mesh_external_service
from koguma.main import all_kinds
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort, SecretRef
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.model.schema import Spec, doc


class KeyedConfig(Spec):
    """What a plugin of tests is told."""

    key: Annotated[SecretRef | None, doc("A Secret that Envoy gets.")] = None
    fails: Annotated[bool, doc("Whether it fails.")] = False


def _keyed(config: KeyedConfig, port: DestinationPort) -> DestinationParts:
    """A cluster of a plugin of tests, with a secret of its own."""
    assert not config.fails, "as it was told to"
    key = {"generic_secret": {"secret": {"inline_string": port.text(config.key)}}} if config.key else None
    endpoint = ExternalEndpoint(f"10.9.0.{port.number % 250}", 80)
    return DestinationParts(
        cluster=external.cluster(port.name, (endpoint,)),
        secrets={"key": key} if key else {},
        body_bytes_max=2_000_000 if key else 0,
    )


KEYED = DestinationPlugin(type="Keyed", doc="A plugin of tests.", config=KeyedConfig, build=_keyed)


def _with_keyed(kinds: Kinds) -> Kinds:
    """The kinds, where external services can lead to a plugin of another package, too."""
    extended = mesh_external_service.with_extensions((*kinds["MeshExternalService"].extensions, KEYED))
    return Kinds([extended if kind.name == extended.name else kind for kind in kinds])


KINDS: Kinds = _with_keyed(all_kinds())
HERE = ControlPlaneInfo(zone="east")
_STEP = re.compile(r'\["([^"]+)"\]|\[(\d+|\*)\]|([^.\[]+)')


@cache
def encoder() -> Encoder:
    return Encoder(schema.load(schema.find_envoy()))


class ConvertedResource(Resource, frozen=True):
    """A resource that nobody wrote, so that its kind need not be able to read it."""


def stored(document: Mapping[str, Any], kinds: Kinds = KINDS) -> Resource:
    """An object as a zone's control plane has it."""
    written = dict(document)
    zone, name = written.pop("x-zone", HERE.zone), written.pop("x-name", "")
    status, spec = written.pop("status", None), written.pop("x-spec", None)
    control_plane = ControlPlaneInfo(zone=zone) if zone else ControlPlaneInfo(mode=Mode.GLOBAL, zone="")
    made = admission.admitted(forms.read(written, kinds), None, control_plane).resource
    made = msgspec.structs.replace(made, status=status)
    if spec is not None:
        return ConvertedResource(**{**msgspec.structs.asdict(made), "spec": spec})
    return msgspec.structs.replace(made, name=name, core_name=name) if name else made


def objects(text: str) -> list[Resource]:
    return [stored(document.value) for document in documents.load(text)]


def database(
    resources: Iterable[Resource], nodes: Mapping[str, NodeMetadata] | None = None, kinds: Kinds = KINDS
) -> Db:
    """A mesh with proxies that said these things of themselves, by core name."""
    known = list(resources)
    db = pipeline.load(kinds, HERE, [each for each in known if not isinstance(each, ConvertedResource)])
    for resource in known:
        if isinstance(resource, ConvertedResource):
            take(db, resource)
    db.set(encoding.ENCODER, "envoy", encoder())
    for name, node in (nodes or {}).items():
        db.set(network.NODE_METADATA, proxy(db, name), node)
    return db


def take(db: Db, resource: Resource) -> None:
    """Let a mesh have one more object."""
    if isinstance(resource, ConvertedResource):
        db.set(world.RESOURCES, resource.key, resource)
    else:
        pipeline.take(db, [resource])


def proxies(db: Db) -> tuple[Key, ...]:
    return tuple(
        key
        for kind in ("Dataplane", "ZoneEgress", "ZoneIngress")
        for key in world.BY_KIND_EVERYWHERE.keys(db, kind)
    )


def dataplanes(db: Db) -> tuple[Key, ...]:
    return world.BY_KIND_EVERYWHERE.keys(db, "Dataplane")


def proxy(db: Db, name: str) -> Key:
    (key,) = [key for key in proxies(db) if key.name == name]
    return key


@lru_cache(maxsize=2)
def watcher(db: Db) -> SnapshotWatcher:
    """Who is connected to a database; the same for all who ask in one test."""
    return SnapshotWatcher(db)


def of(db: Db, name: str) -> Snapshot:
    """What a proxy gets."""
    found = snapshot.of(db, proxy(db, name))
    assert found is not None
    return found


def decoded(resource: XdsResource) -> dict[str, Any]:
    """A resource as plain data, made of plain dicts only, with its metadata in order."""
    return json.loads(json.dumps(encoder().decoded(resource)), object_pairs_hook=_ordered)


def _ordered(found: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(found)
    if "filter_metadata" in data:
        data["filter_metadata"] = {
            name: dict(sorted(own.items())) for name, own in sorted(data["filter_metadata"].items())
        }
    return data


def plain(of: Snapshot) -> dict[str, dict[str, Any]]:
    """All that a proxy gets, by type and name."""
    of = virtual_hosts.inlined(of)  # routes are easier to read with their hosts
    return {type_: {name: decoded(p) for name, p in sorted(of.of_type(type_).items())} for type_ in TYPES}


def bodies(of: Snapshot | None) -> Any:
    """All that a proxy gets, to the last byte, and what could not be made."""
    if of is None:
        return None
    return {resource.id: (resource.version, resource.body, resource.needs) for resource in of}, of.failures


def at(value: Any, path: str) -> Any:
    """What stands at a path, or None; `[*]` stands for all elements of a list."""
    steps = [key or index or name for key, index, name in _STEP.findall(path)]
    return _at(value, steps)


def _at(value: Any, steps: list[str]) -> Any:
    for number, step in enumerate(steps):
        if step == "*":
            return [_at(each, steps[number + 1 :]) for each in value or ()]
        if isinstance(value, list):
            value = value[int(step)] if int(step) < len(value) else None
        else:
            value = (value or {}).get(step)
    return value


class Case(msgspec.Struct, frozen=True):
    """A file: objects, what proxies said of themselves, and what is expected, by proxy."""

    path: Path
    objects: str
    nodes: dict[str, str]
    expected: dict[str, str]

    def database(self, instead: Mapping[str, str] | None = None) -> Db:
        """The mesh, with some words replaced by others: what depends on where a test runs."""

        def put(text: str) -> str:
            for word, other in (instead or {}).items():
                text = text.replace(word, other)
            return text

        nodes = {name: _node(put(text)) for name, text in self.nodes.items()}
        return database(objects(put(self.objects)), nodes)


def _node(text: str) -> NodeMetadata:
    (document,) = documents.load(text)
    return msgspec.convert(document.value, NodeMetadata)


def case(path: Path) -> Case:
    above, *below = path.read_text().split("\n---- ")
    nodes, expected = {}, {}
    for part in below:
        head, _, text = part.partition("\n")
        kind, _, name = head.rpartition(" ")
        (nodes if kind == "node" else expected)[name] = text
    return Case(path, above, nodes, expected)


CASES = tuple(case(path) for path in sorted((Path(__file__).parent / "cases" / "build").glob("*.yaml")))
