"""Certificates: the certificate of every connected proxy, the CAs that it trusts, and their renewal.

A proxy's secrets stay the same, byte for byte, until something about them changes: its identity, the CA, how
long certificates are valid, or its epoch (`proxy_certificates`). Which CA issues and which are trusted is
decided by a latch (`rotation`) from what proxies have acknowledged. The keys of proxies are kept in memory
only; a control plane that restarts makes new ones. Not thread-safe: everything runs on the event loop.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from koguma.fleet.mesh_cas import BUNDLES_MAX, MeshCas
from koguma.fleet.proxy_state import CertificateState
from koguma.identity.authority import CaProblem
from koguma.identity.rotation import CaHolders
from koguma.identity.sds import ALL_TRUST, SdsSecret, SdsSecrets, TrustDomains, trust_domains, trust_name
from koguma.model.kri import ALL_MESHES
from koguma.model.resource import Key
from koguma.store.state import State

CHANGED_MAX: Final = 128  # at a time, since making a certificate takes half a millisecond


class Certificates:
    """The certificates of the proxies that are connected here."""

    def __init__(
        self,
        state: Callable[[], State],
        clock: Callable[[], datetime],
        others: Callable[[str], CaHolders] = lambda _mesh: CaHolders(),
    ) -> None:
        self._state = state
        self._clock = clock
        self._others = others
        self._meshes: dict[str, MeshCas] = {}
        # In which a zone proxy has a certificate, or whose proxies a proxy of another mesh calls.
        self._meshes_of: dict[Key, tuple[str, ...]] = {}
        self._admitting: set[Key] = set()  # take calls of all meshes
        self._domains: dict[str, TrustDomains] = {}  # the CAs of all meshes, as given, by version

    def of(self, key: Key, uris: tuple[str, ...]) -> SdsSecrets | None:
        """What the proxy that these URIs name is to have now; None where its mesh has mTLS off.

        It counts as connected until it is forgotten.
        """
        now = self._clock()
        return self._updated(key.mesh, now).secrets(key, uris, now)

    def trusted(self, key: Key, meshes: Iterable[str]) -> list[SdsSecret | TrustDomains]:
        """The CAs of other meshes, whose proxies this proxy calls or is called by.

        It counts in their rotations, as their own proxies do: nobody shows it a certificate of a CA before it
        has that. `ALL_MESHES` stands for all that have mTLS, as one secret: their proxies may call this one.
        """
        now, named = self._clock(), set(meshes)
        called, admits_all = sorted(named - {ALL_MESHES}), ALL_MESHES in named
        admitted = self._with_mtls(now) if admits_all else ()
        others = tuple(sorted({*called, *admitted} - {key.mesh}))
        self._leave(key, others)
        given = {mesh: self._updated(mesh, now).secrets(key, None, now) for mesh in others}
        found: list[SdsSecret | TrustDomains] = [each for mesh in called for each in given[mesh] or ()]
        if admits_all:
            self._admitting.add(key)
            found += self._all_trust(admitted, now)
        return found

    def _all_trust(self, meshes: Iterable[str], now: datetime) -> Iterator[TrustDomains]:
        """The CAs of these meshes as one secret; none where no mesh has any."""
        trusts = ((mesh, self._updated(mesh, now).trust) for mesh in meshes)
        domains = trust_domains((mesh, trust) for mesh, trust in trusts if trust is not None)
        self._domains.pop(domains.version, None)
        self._domains[domains.version] = domains
        for old in list(self._domains)[:-BUNDLES_MAX]:
            self._domains.pop(old)
        if domains.bundles:
            yield domains

    def _with_mtls(self, now: datetime) -> tuple[str, ...]:
        """The meshes that have mTLS on."""
        names = sorted(mesh.name for mesh in self._state().listed("Mesh"))
        return tuple(name for name in names if self._updated(name, now).is_on)

    def of_zone_proxy(self, key: Key, identities: Iterable[tuple[str, tuple[str, ...]]]) -> list[SdsSecret]:
        """What a zone proxy is to have now: a certificate with its URIs in each mesh, and the CAs of that."""
        now, uris_by_mesh = self._clock(), dict(identities)
        self._leave(key, tuple(uris_by_mesh))
        found = (self._updated(mesh, now).secrets(key, uris, now) for mesh, uris in uris_by_mesh.items())
        return [secret for secrets in found if secrets for secret in secrets]

    def _leave(self, key: Key, stays_in: tuple[str, ...]) -> None:
        """Forget a proxy in the meshes, other than its own, of which it needs nothing any more."""
        for mesh in sorted(set(self._meshes_of.get(key, ())) - set(stays_in)):
            self._forget_in(key, mesh)
        self._admitting.discard(key)
        if stays_in:
            self._meshes_of[key] = stays_in
        else:
            self._meshes_of.pop(key, None)

    def acked(self, key: Key, secret_name: str, version: str) -> bool:
        """A proxy has acknowledged a secret; returns whether others have `changed` because of it."""
        versions = {secret_name: version}
        if secret_name == ALL_TRUST and version in self._domains:
            versions = {trust_name(mesh): of_mesh for mesh, of_mesh, _ in self._domains[version].bundles}
        rotated = [
            mesh.acked(key, name, of_secret) and self._rotated(mesh)
            for in_mesh in self._meshes_with(key)
            if (mesh := self._meshes.get(in_mesh)) is not None
            for name, of_secret in versions.items()
        ]
        return any(rotated)

    def forget(self, key: Key) -> bool:
        """A proxy has disconnected; returns whether others have `changed` because of it."""
        rotated = [self._forget_in(key, mesh) for mesh in self._meshes_with(key)]
        self._meshes_of.pop(key, None)
        self._admitting.discard(key)
        return any(rotated)

    def others_changed(self) -> bool:
        """Proxies of other control planes have changed; returns whether ours have `changed` because of it."""
        undecided = [mesh for mesh in self._meshes.values() if mesh.is_undecided]
        rotated = [self._rotated(mesh) for mesh in undecided]
        return any(rotated)

    def _meshes_with(self, key: Key) -> tuple[str, ...]:
        """The meshes of which a proxy has secrets."""
        others = self._meshes_of.get(key, ())
        return (key.mesh, *others) if key.mesh else others

    def _forget_in(self, key: Key, name: str) -> bool:
        mesh = self._meshes.get(name)
        if mesh is None or not mesh.remove(key):
            return False
        rotated = self._rotated(mesh)
        self._drop_if_gone(mesh)
        return rotated

    def states(self, key: Key) -> tuple[CertificateState, ...]:
        """The certificates of a proxy and what it trusts, its own mesh first."""
        meshes = (self._meshes.get(name) for name in self._meshes_with(key))
        found = (mesh.state(key) for mesh in meshes if mesh is not None)
        return tuple(state for state in found if state is not None)

    def changed(self) -> tuple[Key, ...]:
        """Proxies for which `of` has something new; each is returned once, until it is asked for.

        Not more than `CHANGED_MAX` at a time; where there are more, it is `due` again at once.
        """
        now = self._clock()
        found: list[Key] = []
        for name in list(self._meshes):
            mesh = self._updated(name, now)
            found += mesh.changed(now, CHANGED_MAX - len(found))
            self._drop_if_gone(mesh)
        return tuple(dict.fromkeys((*found, *self._admitting_others(now))))

    def _admitting_others(self, now: datetime) -> Iterator[Key]:
        """Proxies that take calls of all meshes, where one more has mTLS since they were asked for."""
        every = set(self._with_mtls(now)) if self._admitting else set[str]()
        return (key for key in sorted(self._admitting) if every - {key.mesh, *self._meshes_of.get(key, ())})

    def due(self) -> datetime | None:
        """When to ask what has changed even if nothing happens."""
        return min((at for mesh in self._meshes.values() for at in mesh.moments()), default=None)

    def certified(self) -> frozenset[Key]:
        """The proxies that have acknowledged a certificate which is still valid."""
        now = self._clock()
        return frozenset(key for mesh in self._meshes.values() for key in mesh.certified(now))

    def problems(self) -> tuple[CaProblem, ...]:
        """What is wrong with the CAs of all meshes that have mTLS on."""
        now = self._clock()
        found = (self._updated(mesh.name, now).problems(now) for mesh in self._state().listed("Mesh"))
        return tuple(problem for each in found for problem in each)

    def _updated(self, name: str, now: datetime) -> MeshCas:
        """The CAs of a mesh, as new as the store."""
        mesh = self._meshes.get(name)
        if mesh is None:
            mesh = self._meshes[name] = MeshCas(name, self._others)
        state = self._state()
        if mesh.revision != state.revision or (mesh.update_at is not None and mesh.update_at <= now):
            mesh.update(state, now)
        return mesh

    def _rotated(self, mesh: MeshCas) -> bool:
        before = mesh.generation
        mesh.update(self._state(), self._clock())
        return mesh.generation != before

    def _drop_if_gone(self, mesh: MeshCas) -> None:
        if mesh.is_gone:
            self._meshes.pop(mesh.name)
