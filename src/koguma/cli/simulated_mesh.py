"""Simulated mesh: the objects of files as a running control plane would have them, for the simulation.

Beside what `offline` adds, services get virtual addresses, and all proxies count as connected: each with
Koguma's agent and, where the mesh has mTLS, with a certificate.
"""

from datetime import UTC, datetime

from koguma.cli.failures import CommandFailure
from koguma.cli.offline import LoadedFiles
from koguma.core import loading, match, statuses, vips, world
from koguma.core.address_history import AddressHistory
from koguma.core.build import encoding
from koguma.core.simulation.calls import CallSimulator
from koguma.core.statuses import ConnectedProxies
from koguma.model.resource import Key


def simulators(loaded: LoadedFiles) -> "Simulators":
    """The simulators of the meshes in files; needs the Envoy of this machine for its message types."""
    from koguma.envoy import schema  # noqa: PLC0415 - protobuf, for these commands only
    from koguma.envoy.encode import Encoder  # noqa: PLC0415 - the same

    db, now = loaded.db, datetime.now(UTC)
    db.set(encoding.ENCODER, "envoy", Encoder(schema.load(schema.find_envoy())))
    history = AddressHistory(now)
    for mesh in loaded.meshes:
        proxies = frozenset(match.proxies(db, mesh))
        history = AddressHistory(now, vips.first_used(db, vips.DEFAULT, history.used))
        plan = statuses.plan(db, mesh, ConnectedProxies(proxies, proxies), vips.DEFAULT, history, now)
        history = AddressHistory(now, plan.used)
        loading.take(db, plan.changes)
    return Simulators(loaded)


class Simulators:
    """One simulator for each mesh of some files, made when it is first asked for."""

    def __init__(self, loaded: LoadedFiles) -> None:
        self._loaded = loaded
        self._by_mesh: dict[str, CallSimulator] = {}

    def of(self, mesh: str) -> CallSimulator:
        """The simulator of a mesh; a failure where the files have no such mesh."""
        if mesh not in self._by_mesh:
            db = self._loaded.db
            is_known = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh)) is not None
            if not is_known and mesh not in self._loaded.meshes:
                meshes = ", ".join(self._loaded.meshes) or "none"
                raise CommandFailure(f'the files have no mesh "{mesh}"; they have {meshes}')
            self._by_mesh[mesh] = CallSimulator(db, mesh)
        return self._by_mesh[mesh]
