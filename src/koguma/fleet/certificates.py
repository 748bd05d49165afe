"""Certificates: gives every connected proxy its certificate and the CAs to trust, and renews them in time.

What a proxy is given stays the same, byte for byte, until something about it changes: who the proxy is, the
CA, how long certificates are valid, or its epoch (`leaves`). Which CA issues and which are trusted is decided
by a latch (`rotation`), which hears from the proxies what they have taken. The keys of proxies live here in
memory and nowhere else; a control plane that restarts makes new ones. All of this is for one thread.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import msgspec
import structlog

from koguma.identity import backends, leaves, rotation
from koguma.identity.authority import Authority, Problem
from koguma.identity.backends import Backends
from koguma.identity.certificates import UnusableCertificate
from koguma.identity.leaves import Leaf
from koguma.identity.rotation import Observed, Rotation
from koguma.identity.sds import Secret, Secrets, identity_name, trust_name
from koguma.model.resource import Key, Resource
from koguma.store.state import State

FILES_LOOK: Final = timedelta(seconds=30)  # nobody tells when a file with a CA changes
CHANGED_MAX: Final = 128  # told at a time, since a certificate takes half a millisecond to make
BUNDLES_MAX: Final = 32  # an answer about a bundle that is older than this is not understood
_NO_CAS: Final[frozenset[str]] = frozenset()  # Python makes a new one each time, of 200 bytes

_log = structlog.get_logger("koguma.certificates")


class Certificates:
    """The certificates of the proxies that are connected here."""

    def __init__(self, state: Callable[[], State], clock: Callable[[], datetime]) -> None:
        self._state = state
        self._clock = clock
        self._meshes: dict[str, _Mesh] = {}

    def of(self, key: Key, uris: tuple[str, ...]) -> Secrets | None:
        """What the proxy that these URIs name is to have now; None where its mesh has mTLS off.

        It counts as connected until it is forgotten.
        """
        now = self._clock()
        return self._looked(key.mesh, now).secrets(key, uris, now)

    def acked(self, key: Key, secret_name: str, version: str) -> bool:
        """Hear that a proxy has taken a secret; says whether others have `changed` now because of it."""
        mesh = self._meshes.get(key.mesh)
        return mesh is not None and mesh.heard(key, secret_name, version) and self._moved(mesh)

    def forget(self, key: Key) -> bool:
        """Hear that a proxy has left; says whether others have `changed` now because of it."""
        mesh = self._meshes.get(key.mesh)
        if mesh is None or not mesh.forgot(key):
            return False
        moved = self._moved(mesh)
        self._drop_if_gone(mesh)
        return moved

    def changed(self) -> tuple[Key, ...]:
        """Proxies for which `of` has something new; each is told once, until it is asked for.

        Not more than `CHANGED_MAX` at a time; where there are more, it is `due` again at once.
        """
        now = self._clock()
        found: list[Key] = []
        for name in list(self._meshes):
            mesh = self._looked(name, now)
            found += mesh.changed(now, CHANGED_MAX - len(found))
            self._drop_if_gone(mesh)
        return tuple(found)

    def due(self) -> datetime | None:
        """When to ask what has changed even if nothing happens."""
        return min((at for mesh in self._meshes.values() for at in mesh.moments()), default=None)

    def certified(self) -> frozenset[Key]:
        """The proxies that said that they have taken a certificate, and whose certificate still holds."""
        now = self._clock()
        return frozenset(key for mesh in self._meshes.values() for key in mesh.certified(now))

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the CAs of all meshes that have mTLS on."""
        now = self._clock()
        found = (self._looked(mesh.name, now).problems(now) for mesh in self._state().listed("Mesh"))
        return tuple(problem for each in found for problem in each)

    def _looked(self, name: str, now: datetime) -> "_Mesh":
        """A mesh, in step with what is stored."""
        mesh = self._meshes.get(name)
        if mesh is None:
            mesh = self._meshes[name] = _Mesh(name)
        state = self._state()
        if mesh.revision != state.revision or (mesh.look_at is not None and mesh.look_at <= now):
            mesh.look(state, now)
        return mesh

    def _moved(self, mesh: "_Mesh") -> bool:
        before = mesh.generation
        mesh.look(self._state(), self._clock())
        return mesh.generation != before

    def _drop_if_gone(self, mesh: "_Mesh") -> None:
        if mesh.is_gone:
            self._meshes.pop(mesh.name)


class _Proxy:
    """A connected proxy: what it was given, and what it said that it has taken."""

    __slots__ = ("generation", "is_told", "leaf", "leaves", "renewal", "secrets", "trusts", "uris")

    def __init__(self) -> None:
        self.uris: tuple[str, ...] = ()
        self.generation = -1  # that of the mesh when it was last given something
        self.secrets: Secrets | None = None
        self.renewal: datetime | None = None
        self.is_told = False  # that there is something new for it
        self.trusts = _NO_CAS
        self.leaf = ""  # the version that it said it has taken
        self.leaves: dict[str, tuple[str, datetime]] = {}  # those that it may show: CA and end, by version


class _Mesh:
    """The CAs of a mesh and the proxies that need them. `generation` counts what concerns all of these."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.revision = -1  # of the store, when it was last looked at
        self.look_at: datetime | None = None
        self.generation = 0
        self._told_generation = 0
        self._renewal: datetime | None = None  # no proxy needs one before
        self._backends: Backends | None = None  # None: there is no such mesh
        self._is_on = False
        self._wanted = ""  # the CA that is to issue
        self._decided = Rotation()
        self._authorities: dict[str, Authority] = {}  # all that are trusted, by id
        self._trust: Secret | None = None
        self._bundles: dict[str, frozenset[str]] = {}  # what was in each, by version
        self._proxies: dict[Key, _Proxy] = {}
        self._n_trusting: Counter[str] = Counter()
        self._n_showing: Counter[str] = Counter()
        self._logged: frozenset[Problem] = frozenset()

    @property
    def is_gone(self) -> bool:
        """Whether nobody needs it any more."""
        return self._backends is None and not self._proxies

    # What is stored.

    def look(self, state: State, now: datetime) -> None:
        """Take what is stored now, and decide what follows."""
        self.revision = state.revision
        resource = state.get(Key("Mesh", "", "", "", self.name))
        self._read(resource, lambda name: state.named("Secret", self.name, name))
        self._switch(on=self._backends is not None and self._backends.enabled is not None)
        self.look_at = None
        if self._backends is not None and self._is_on:
            seen = self._seen(self._backends, now)
            self._decide(self._backends, rotation.step(self._decided, seen), now)
            self._log(frozenset(self._backends.problems(now)))
            moments = (rotation.due(self._decided, seen), self._backends.next_date(now))
            files = now + FILES_LOOK if self._backends.files else None
            self.look_at = min((at for at in (*moments, files) if at is not None), default=None)

    def _read(self, resource: Resource | None, secrets: backends.Secrets) -> None:
        if resource is None:
            self._backends = None
        elif self._backends is None or not self._backends.is_current(resource, secrets):
            was = self._backends
            try:
                self._backends = backends.read(resource, secrets)
            except (msgspec.ValidationError, AttributeError, TypeError):
                # Until somebody writes it again, proxies keep their certificates; `koguma check` names it.
                self._backends = was or Backends(resource)
            if was is not None and was.lifetime != self._backends.lifetime:
                self.generation += 1

    def _seen(self, found: Backends, now: datetime) -> Observed:
        self._wanted = found.issuer(now)
        return Observed(
            now=now,
            listed=frozenset(found.listed(now)),
            wanted=self._wanted,
            written=found.written,
            n_proxies=len(self._proxies),
            n_trusting=self._n_trusting,
            n_showing=self._n_showing,
        )

    def _decide(self, found: Backends, decided: Rotation, now: datetime) -> None:
        before, self._decided = self._decided, decided
        # A CA whose key is being replaced goes on with the one that it had.
        listed = found.listed(now)
        usable = {ca: each for ca, each in listed.items() if each.signer or ca not in self._authorities}
        known = self._authorities | usable
        self._authorities = {ca: known[ca] for ca in decided.trusted}
        if before.trusted.keys() != decided.trusted.keys():
            self._trust = self._bundle()
        elif before.issuer == decided.issuer:
            return
        self.generation += 1
        words = {"issuer": decided.issuer[:12], "trusted": [ca[:12] for ca in sorted(decided.trusted)]}
        _log.info("CAs of a mesh changed", mesh=self.name, **words)

    def _bundle(self) -> Secret | None:
        ids = sorted(self._authorities)
        version = _hash("trust", *ids)
        self._bundles.pop(version, None)
        self._bundles[version] = frozenset(ids)
        for old in list(self._bundles)[:-BUNDLES_MAX]:
            self._bundles.pop(old)
        bundle = "".join(self._authorities[ca].bundle for ca in ids)
        return Secret(trust_name(self.name), version, bundle) if bundle else None

    def _switch(self, *, on: bool) -> None:
        if self._is_on == on:
            return
        self._is_on = on
        self.generation += 1
        self._decided, self._authorities, self._trust, self._wanted = Rotation(), {}, None, ""
        self._bundles.clear()
        self._n_trusting.clear()
        self._n_showing.clear()
        for proxy in self._proxies.values():
            proxy.secrets, proxy.trusts, proxy.leaf, proxy.leaves = None, _NO_CAS, "", {}

    def _log(self, problems: frozenset[Problem]) -> None:
        for problem in sorted(problems - self._logged):
            _log.warning("CA is odd", mesh=self.name, backend=problem.backend, problem=problem.text)
        self._logged = problems

    def problems(self, now: datetime) -> Iterator[Problem]:
        """What is wrong with the backends."""
        return iter(()) if self._backends is None else self._backends.problems(now)

    # What proxies get.

    def secrets(self, key: Key, uris: tuple[str, ...], now: datetime) -> Secrets | None:
        """What a proxy is to have."""
        proxy = self._proxies.get(key)
        if proxy is None:
            proxy = self._proxies[key] = _Proxy()
        if proxy.uris != uris or self._is_stale(proxy, now):
            proxy.uris, proxy.generation, proxy.is_told = uris, self.generation, False
            proxy.secrets = self._made(str(key), proxy, now)
            self._renewal = min((at for at in (self._renewal, proxy.renewal) if at is not None), default=None)
        return proxy.secrets

    def _is_stale(self, proxy: _Proxy, now: datetime) -> bool:
        return proxy.generation != self.generation or (proxy.renewal is not None and proxy.renewal <= now)

    def _made(self, name: str, proxy: _Proxy, now: datetime) -> Secrets | None:
        proxy.renewal = None
        if self._backends is None or not self._is_on:
            return None
        had = proxy.secrets or Secrets(None)
        issuer, life = self._authorities.get(self._decided.issuer), self._backends.lifetime
        if issuer is None:
            return Secrets(self._trust, had.identity, had.leaf)
        epoch = leaves.epoch(name, life, now)
        proxy.renewal = epoch.ends
        version = _hash("identity", *proxy.uris, issuer.id, str(life), str(epoch.number))
        if had.identity is not None and had.identity.version == version:
            return Secrets(self._trust, had.identity, had.leaf)
        try:
            leaf = leaves.issue(issuer, proxy.uris, life, now)
        except UnusableCertificate:  # it is among the problems; what the proxy has is better than nothing
            return Secrets(self._trust, had.identity, had.leaf)
        self._shows(proxy, version, issuer.id, leaf, now)
        identity = Secret(identity_name(self.name), version, leaf.certificate, leaf.key)
        return Secrets(self._trust, identity, leaf)

    def _shows(self, proxy: _Proxy, version: str, ca: str, leaf: Leaf, now: datetime) -> None:
        """Note that a proxy may show one more certificate, and none that are over."""
        for old in [old for old, (_, end) in proxy.leaves.items() if end <= now or old == version]:
            self._n_showing[proxy.leaves.pop(old)[0]] -= 1
        proxy.leaves[version] = ca, leaf.not_after
        self._n_showing[ca] += 1

    # What proxies say.

    def heard(self, key: Key, secret_name: str, version: str) -> bool:
        """Note what a proxy has taken; says whether that matters to a decision."""
        proxy = self._proxies.get(key)
        if proxy is None:
            return False
        if secret_name == trust_name(self.name) and version in self._bundles:
            self._trusts(proxy, self._bundles[version])
        elif secret_name == identity_name(self.name) and version in proxy.leaves:
            proxy.leaf, given = version, list(proxy.leaves)
            self._shows_no_longer(proxy, given[: given.index(version)])
        else:
            return False
        return self._is_undecided

    def forgot(self, key: Key) -> bool:
        """Note that a proxy is gone; says whether that matters to a decision."""
        proxy = self._proxies.pop(key, None)
        if proxy is None:
            return False
        self._trusts(proxy, _NO_CAS)
        self._shows_no_longer(proxy, list(proxy.leaves))
        return self._is_undecided or self.is_gone

    @property
    def _is_undecided(self) -> bool:
        return not rotation.is_settled(self._decided, self._wanted)

    def _trusts(self, proxy: _Proxy, cas: frozenset[str]) -> None:
        self._n_trusting.subtract(proxy.trusts)
        self._n_trusting.update(cas)
        proxy.trusts = cas

    def _shows_no_longer(self, proxy: _Proxy, versions: list[str]) -> None:
        for version in versions:
            self._n_showing[proxy.leaves.pop(version)[0]] -= 1

    # What is asked about all of them.

    def changed(self, now: datetime, limit: int) -> list[Key]:
        """The proxies that are to get something else and do not know yet, up to a number."""
        if self._told_generation == self.generation and (self._renewal is None or now < self._renewal):
            return []
        untold = ((key, p) for key, p in self._proxies.items() if not p.is_told and self._is_stale(p, now))
        found = list(islice(untold, limit))
        for _, proxy in found:
            proxy.is_told = True
        if next(untold, None) is not None:
            self._renewal = now
        else:
            renewals = (p.renewal for p in self._proxies.values() if p.renewal is not None and not p.is_told)
            self._told_generation, self._renewal = self.generation, min(renewals, default=None)
        return [key for key, _ in found]

    def moments(self) -> Iterator[datetime]:
        """When something changes by itself."""
        return (at for at in (self._renewal, self.look_at) if at is not None)

    def certified(self, now: datetime) -> Iterator[Key]:
        """The proxies that have taken a certificate which still holds."""
        if not any(self._n_showing.values()):  # as in a mesh without mTLS
            return
        for key, proxy in self._proxies.items():
            if proxy.leaf in proxy.leaves and proxy.leaves[proxy.leaf][1] > now:
                yield key


def _hash(*parts: str) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()
