"""Compiler: what the connected proxies get, worked out on the engine's thread.

Everything in `SnapshotCompiler` runs beside the event loop. So it reads nothing that the loop writes: what it
needs of a proxy comes in a `CompileRequest` and is kept here, what it found goes out as values.
"""

import contextlib
from collections.abc import Iterable, Mapping

import msgspec

from koguma.core import spiffe
from koguma.core.build import egress, encoding, network, zone_egress
from koguma.core.build import snapshot as compiled
from koguma.core.build.snapshot import SharedSpec
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Id, Snapshot
from koguma.model.resource import Key


class ProxyInputs(msgspec.Struct, frozen=True):
    """What the compile needs to know of a connected proxy beside what is stored."""

    node: network.NodeMetadata
    identity_tags: frozenset[str] | None  # tags that may stand in its certificate; None: all that it has


class CompileRequest(msgspec.Struct, frozen=True):
    """What one push round asks for."""

    joining: Mapping[Key, ProxyInputs]
    leaving: frozenset[Key]
    with_changes: bool  # whether changes of the mesh are looked at too


class CompiledProxy(msgspec.Struct, frozen=True):
    """What a proxy gets: its configuration without secrets, and the SPIFFE ids of its certificate."""

    snapshot: Snapshot | None  # None where its Dataplane or Mesh is gone or cannot be read
    spiffe_ids: tuple[str, ...]
    identities: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of a zone proxy, by mesh


class CompileError(msgspec.Struct, frozen=True):
    """Compiling for one proxy raised, which is a mistake of ours."""

    error: Exception


CompileResult = dict[Key, CompiledProxy | CompileError]


class SnapshotCompiler:
    """Compiles for the proxies that joined, and again for those that a change touches."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._inputs: dict[Key, ProxyInputs] = {}
        self._watcher: SnapshotWatcher | None = None

    def compile(self, db: Db, request: CompileRequest) -> CompileResult:
        """What changed for whom, and what those get who join."""
        watcher, is_new = self._watcher_of(db)
        self._inputs.update(request.joining)
        for key in request.leaving:
            self._inputs.pop(key, None)
            watcher.remove(key)
            db.remove(network.NODE_METADATA, key)
        joining = list(self._inputs if is_new else request.joining)
        for key in joining:
            db.set(network.NODE_METADATA, key, self._inputs[key].node)
        changed = watcher.changed() if request.with_changes else ()
        for key in joining:
            watcher.add(key)
        return {key: self._compiled(db, watcher, key) for key in dict.fromkeys((*changed, *joining))}

    def _compiled(self, db: Db, watcher: SnapshotWatcher, key: Key) -> CompiledProxy | CompileError:
        try:
            if not key.mesh:  # an ingress ends no TLS, so it has no identities
                identities = egress.identities(db, key) if key.kind == zone_egress.KIND else ()
                return CompiledProxy(watcher.of(key), (), tuple(identities))
            return CompiledProxy(watcher.of(key), self._spiffe_ids(db, key))
        except Exception as error:  # noqa: BLE001 - a mistake of ours about one proxy must not leave the others stale
            return CompileError(error)

    def _spiffe_ids(self, db: Db, key: Key) -> tuple[str, ...]:
        """The names in a proxy's certificate: what an operator's Dataplane says, or else its token."""
        inputs = self._inputs.get(key)
        tags = inputs.identity_tags if inputs is not None else frozenset[str]()
        spiffe_ids = spiffe.identity(db, key)
        return spiffe_ids if tags is None else spiffe.vouched(spiffe_ids, tags)

    def prepare(self, db: Db, proxies: Iterable[Key], specs: set[SharedSpec]) -> None:
        """Compile what known proxies will share, before they connect; `specs` are those already done."""
        self._watcher_of(db)
        for key in proxies:
            with contextlib.suppress(Exception):  # the proxy that needs it asks again and gets the error
                spec = compiled.likely_spec(db, key)
                if spec is not None and spec not in specs:
                    specs.add(spec)
                    compiled.shared(db, spec)

    def suspects(self, db: Db, proxies: Iterable[Key]) -> dict[Key, Mapping[Id, Iterable[str]]]:
        """The policies that changed each resource of some proxies, as those that may have caused a NACK."""
        return {key: compiled.touching(db, key) for key in proxies}

    def _watcher_of(self, db: Db) -> tuple[SnapshotWatcher, bool]:
        """The watcher of a database, and whether it is new: then it watches nobody yet."""
        if self._watcher is not None and self._watcher.db is db:
            return self._watcher, False
        db.set(encoding.ENCODER, "envoy", self._encoder)
        self._watcher = SnapshotWatcher(db)
        return self._watcher, True
