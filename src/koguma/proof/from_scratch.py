"""Compile from scratch: whether it gives what the engine compiled incrementally.

`claim` records the inputs of an engine and, for each proxy, a digest of its snapshot; `differences` compiles
the inputs from scratch and returns the proxies whose digest differs. The two run in different processes: as a
program, this module reads a claim from its standard input and writes the differences to its standard output.
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
    """The inputs of a compile, and what it gave."""

    control_plane: ControlPlaneInfo
    envoy: str  # the binary whose schema was used
    resources: tuple[Resource, ...]
    nodes: tuple[tuple[Key, NodeMetadata], ...]
    digests: tuple[tuple[Key, str], ...]


class Difference(msgspec.Struct, frozen=True):
    """A proxy for which a compile from scratch gives something else."""

    proxy: Key
    claimed: str
    computed: str


def claim(db: Db, control_plane: ControlPlaneInfo, envoy: str, proxies: Iterable[Key]) -> Claim:
    """What an engine claims about some proxies."""
    digests = Digests()
    return Claim(
        control_plane,
        envoy,
        tuple(world.stored(db)),
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
            resources = sorted((*each.id, each.version, each.needs) for each in bundle.resources.values())
            failures = sorted(map(str, bundle.failures))
            digest = hashlib.blake2b(msgspec.json.encode((resources, failures)), digest_size=16).hexdigest()
            known = self._known[id(bundle)] = (
                bundle,
                digest,
            )  # the bundle is kept, so that its id is not reused
        return known[1]


def differences(claim: Claim, kinds: Kinds, encoder: Encoder) -> Iterator[Difference]:
    """The proxies for which a compile from scratch gives something else."""
    db = pipeline.load(kinds, claim.control_plane, claim.resources)
    with db.change() as change:
        change.set(encoding.ENCODER, "envoy", encoder)
        for key, node in claim.nodes:
            change.set(network.NODE_METADATA, key, node)
    digests = Digests()
    for key, claimed in claim.digests:
        computed = digests.of(compiled.of(db, key))
        if computed != claimed:
            yield Difference(key, claimed, computed)


def main() -> int:
    """Read a claim, and write the differences as JSON."""
    os.nice(10)  # serving proxies is more urgent
    claim = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Claim)
    policies = plugins.load(KINDS, plugins.installed(), lambda _warning: None)
    kinds = plugins.for_engine(policies, lambda _name, _failure: None)
    encoder = Encoder(schema.load(Path(claim.envoy)))
    sys.stdout.buffer.write(msgspec.json.encode(list(differences(claim, kinds, encoder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
