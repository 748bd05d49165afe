"""Proof: whether what was compiled step by step is what a compile from scratch gives.

`claim` writes down the inputs of an engine and, for each proxy, a digest of what came out; `disproved`
compiles the inputs anew and gives the proxies whose digest is another one. The two run in different
processes: as a program, this module reads a claim from its standard input and writes what is wrong with it.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from koguma import plugins
from koguma.core import pipeline, world
from koguma.core.build import encoding, network
from koguma.core.build import snapshot as compiled
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Bundle, Snapshot
from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource


class Claim(msgspec.Struct, frozen=True):
    """Inputs, and what came out."""

    control_plane: ControlPlaneInfo
    envoy: str  # the binary whose schema was used
    resources: tuple[Resource, ...]
    nodes: tuple[tuple[Key, NodeMetadata], ...]
    digests: tuple[tuple[Key, str], ...]


class Difference(msgspec.Struct, frozen=True):
    """A proxy for which something else comes out."""

    proxy: Key
    claimed: str
    found: str


def claim(db: Db, control_plane: ControlPlaneInfo, envoy: str, proxies: Iterable[Key]) -> Claim:
    """What an engine claims about some proxies."""
    digests = Digests()
    return Claim(
        control_plane,
        envoy,
        tuple(resource for _, resource in world.RESOURCES.items(db)),
        tuple(network.NODE_METADATA.items(db)),
        tuple((key, digests.of(compiled.of(db, key))) for key in sorted(proxies)),
    )


class Digests:
    """Digests of snapshots; a bundle that several share is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Bundle, str]] = {}

    def of(self, snapshot: Snapshot | None) -> str:
        """A text that is equal exactly for equal snapshots."""
        if snapshot is None:
            return ""
        return hashlib.blake2b(
            "".join(map(self._bundle, snapshot.bundles)).encode(), digest_size=16
        ).hexdigest()

    def _bundle(self, bundle: Bundle) -> str:
        known = self._known.get(id(bundle))
        if known is None:
            pieces = sorted((*piece.id, piece.version, piece.needs) for piece in bundle.resources.values())
            failures = sorted(map(str, bundle.failures))
            digest = hashlib.blake2b(msgspec.json.encode((pieces, failures)), digest_size=16).hexdigest()
            known = self._known[id(bundle)] = (bundle, digest)  # kept, so that no other takes its place
        return known[1]


def disproved(made: Claim, kinds: Kinds, encoder: Encoder) -> Iterator[Difference]:
    """The proxies for which a compile from scratch gives something else."""
    db = pipeline.load(kinds, made.control_plane, made.resources)
    with db.change() as change:
        change.set(encoding.ENCODER, "envoy", encoder)
        for key, node in made.nodes:
            change.set(network.NODE_METADATA, key, node)
    digests = Digests()
    for key, claimed in made.digests:
        found = digests.of(compiled.of(db, key))
        if found != claimed:
            yield Difference(key, claimed, found)


def main() -> int:
    """Read a claim, and write what is wrong with it as JSON."""
    os.nice(10)  # whoever serves proxies goes first
    made = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Claim)
    found = plugins.load(KINDS, plugins.installed(), lambda _warning: None)
    kinds = plugins.for_engine(found, lambda _name, _failure: None)
    encoder = Encoder(schema.load(Path(made.envoy)))
    sys.stdout.buffer.write(msgspec.json.encode(list(disproved(made, kinds, encoder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
