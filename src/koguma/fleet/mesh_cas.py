"""Mesh CAs: the CAs of one mesh, the proxies that need them, and what these have acknowledged.

Most proxies have a certificate of their mesh. Some need only the CAs of another one: they call into it, or
take its calls. A new CA issues nothing before these trust it too.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import structlog

from koguma.fleet.proxy_state import CertificateState
from koguma.identity import mtls_backends, proxy_certificates, rotation
from koguma.identity.authority import Authority, CaProblem
from koguma.identity.certificates import UnusableCertificate
from koguma.identity.mtls_backends import MtlsBackends
from koguma.identity.proxy_certificates import ProxyCertificate
from koguma.identity.rotation import CaHolders, Rotation, RotationInputs
from koguma.identity.sds import SdsSecret, SdsSecrets, identity_name, trust_name
from koguma.model.resource import Key, Resource
from koguma.store.state import State

FILES_INTERVAL: Final = timedelta(seconds=30)  # a file with a CA is read again, since it is not watched
BUNDLES_MAX: Final = 32  # an ACK of an older bundle than these cannot be attributed
_NO_CAS: Final[frozenset[str]] = frozenset()  # shared: an empty frozenset takes 200 bytes

_log = structlog.get_logger("koguma.certificates")


class IssuedLeaf(NamedTuple):
    """A certificate that a proxy was given."""

    ca: str
    expires_at: datetime
    issued_at: datetime


class _ProxySecrets:
    """A connected proxy: the secrets that it was given, and what it has acknowledged of them."""

    __slots__ = (
        "generation",
        "is_announced",
        "leaf",
        "leaves",
        "n_issued",
        "renewal",
        "secrets",
        "trusts",
        "uris",
    )

    def __init__(self) -> None:
        self.uris: tuple[str, ...] | None = ()  # None: it is of another mesh, and needs only the CAs
        self.generation = -1  # of the mesh, when its secrets were last made
        self.secrets: SdsSecrets | None = None
        self.renewal: datetime | None = None
        self.is_announced = False  # `changed` has returned it
        self.trusts = _NO_CAS
        self.leaf = ""  # the version that it has acknowledged
        self.leaves: dict[str, IssuedLeaf] = {}  # it may present, by version
        self.n_issued = 0


class MeshCas:
    """The CAs of a mesh and the proxies that need them; `generation` counts changes for all of those."""

    def __init__(self, name: str, others: Callable[[str], CaHolders] = lambda _mesh: CaHolders()) -> None:
        self.name = name
        self._others = others  # what proxies of other control planes have
        self.revision = -1  # of the store, when it was last looked at
        self.update_at: datetime | None = None
        self.generation = 0
        self._announced_generation = 0
        self._renewal: datetime | None = None  # no proxy needs one before
        self._backends: MtlsBackends | None = None  # None: there is no such mesh
        self._is_on = False
        self._next_issuer = ""  # the CA that is to issue
        self._decided = Rotation()
        self._authorities: dict[str, Authority] = {}  # all that are trusted, by id
        self._trust: SdsSecret | None = None
        self._bundles: dict[str, frozenset[str]] = {}  # what was in each, by version
        self._proxies: dict[Key, _ProxySecrets] = {}
        self._n_trusting: Counter[str] = Counter()
        self._n_presenting: Counter[str] = Counter()
        self._logged: frozenset[CaProblem] = frozenset()
        self._backend_names: dict[str, str] = {}  # of all CAs that were ever read, by id

    @property
    def is_on(self) -> bool:
        """Whether the mesh has mTLS."""
        return self._is_on

    @property
    def trust(self) -> SdsSecret | None:
        """The CAs of the mesh; None where it has mTLS off, or no usable CA."""
        return self._trust

    @property
    def is_gone(self) -> bool:
        """Whether nobody needs it any more."""
        return self._backends is None and not self._proxies

    # What is stored.

    def update(self, state: State, now: datetime) -> None:
        """Read what is stored now, and decide what follows."""
        self.revision = state.revision
        resource = state.get(Key("Mesh", "", "", "", self.name))
        self._read(resource, lambda name: state.named("Secret", self.name, name))
        self._switch(on=self._backends is not None and self._backends.enabled is not None)
        self.update_at = None
        if self._backends is not None and self._is_on:
            observed = self._observed(self._backends, now)
            self._decide(self._backends, rotation.next_rotation(self._decided, observed), now)
            self._log(frozenset(self._backends.problems(now)))
            moments = (rotation.due(self._decided, observed), self._backends.next_date(now))
            files = now + FILES_INTERVAL if self._backends.files else None
            self.update_at = min((at for at in (*moments, files) if at is not None), default=None)

    def _read(self, resource: Resource | None, secrets: mtls_backends.Secrets) -> None:
        if resource is None:
            self._backends = None
        elif self._backends is None or not self._backends.is_current(resource, secrets):
            was = self._backends
            try:
                self._backends = mtls_backends.read(resource, secrets)
            except (msgspec.ValidationError, AttributeError, TypeError):
                # Until somebody writes it again, proxies keep their certificates; `koguma check` names it.
                self._backends = was or MtlsBackends(resource)
            named = ((ca.authority, name) for name, ca in self._backends.cas.items())
            self._backend_names |= {authority.id: name for authority, name in named if authority is not None}
            if was is not None and was.lifetime != self._backends.lifetime:
                self.generation += 1

    def _observed(self, found: MtlsBackends, now: datetime) -> RotationInputs:
        self._next_issuer = found.issuer(now)
        others = self._others(self.name)
        return RotationInputs(
            now=now,
            configured=frozenset(found.configured(now)),
            next_issuer=self._next_issuer,
            changed_at=found.changed_at,
            n_proxies=len(self._proxies) + others.n_proxies,
            n_trusting=self._n_trusting + Counter(others.n_trusting),
            n_presenting=self._n_presenting + Counter(others.n_presenting),
            is_known=others.is_known,
        )

    def _decide(self, found: MtlsBackends, decided: Rotation, now: datetime) -> None:
        before, self._decided = self._decided, decided
        # A CA whose key is being replaced goes on with the one that it last.
        configured = found.configured(now)
        usable = {ca: each for ca, each in configured.items() if each.signer or ca not in self._authorities}
        known = self._authorities | usable
        self._authorities = {ca: known[ca] for ca in decided.trusted}
        if before.trusted.keys() != decided.trusted.keys():
            self._trust = self._bundle()
        elif before.issuer == decided.issuer:
            return
        self.generation += 1
        words = {"issuer": decided.issuer[:12], "trusted": [ca[:12] for ca in sorted(decided.trusted)]}
        _log.info("CAs of a mesh changed", mesh=self.name, **words)

    def _bundle(self) -> SdsSecret | None:
        ids = sorted(self._authorities)
        version = _hash("trust", *ids)
        self._bundles.pop(version, None)
        self._bundles[version] = frozenset(ids)
        for old in list(self._bundles)[:-BUNDLES_MAX]:
            self._bundles.pop(old)
        bundle = "".join(self._authorities[ca].bundle for ca in ids)
        return SdsSecret(trust_name(self.name), version, bundle) if bundle else None

    def _switch(self, *, on: bool) -> None:
        if self._is_on == on:
            return
        self._is_on = on
        self.generation += 1
        self._decided, self._authorities, self._trust, self._next_issuer = Rotation(), {}, None, ""
        self._bundles.clear()
        self._n_trusting.clear()
        self._n_presenting.clear()
        for proxy in self._proxies.values():
            proxy.secrets, proxy.trusts, proxy.leaf, proxy.leaves = None, _NO_CAS, "", {}

    def _log(self, problems: frozenset[CaProblem]) -> None:
        for problem in sorted(problems - self._logged):
            _log.warning("CA is odd", mesh=self.name, backend=problem.backend, problem=problem.text)
        self._logged = problems

    def problems(self, now: datetime) -> Iterator[CaProblem]:
        """What is wrong with the backends."""
        return iter(()) if self._backends is None else self._backends.problems(now)

    # What proxies get.

    def secrets(self, key: Key, uris: tuple[str, ...] | None, now: datetime) -> SdsSecrets | None:
        """The secrets of a proxy; without URIs, of one that is of another mesh."""
        proxy = self._proxies.get(key)
        if proxy is None:
            proxy = self._proxies[key] = _ProxySecrets()
        if proxy.uris != uris or self._is_stale(proxy, now):
            proxy.uris, proxy.generation, proxy.is_announced = uris, self.generation, False
            proxy.secrets = self._new_secrets(str(key), proxy, now)
            self._renewal = min((at for at in (self._renewal, proxy.renewal) if at is not None), default=None)
        return proxy.secrets

    def _is_stale(self, proxy: _ProxySecrets, now: datetime) -> bool:
        return proxy.generation != self.generation or (proxy.renewal is not None and proxy.renewal <= now)

    def _new_secrets(self, name: str, proxy: _ProxySecrets, now: datetime) -> SdsSecrets | None:
        proxy.renewal = None
        if self._backends is None or not self._is_on:
            return None
        if proxy.uris is None:
            return SdsSecrets(self._trust)
        last = proxy.secrets or SdsSecrets(None)
        issuer, life = self._authorities.get(self._decided.issuer), self._backends.lifetime
        if issuer is None:
            return SdsSecrets(self._trust, last.identity, last.leaf)
        epoch = proxy_certificates.epoch(name, life, now)
        proxy.renewal = epoch.ends
        version = _hash("identity", *proxy.uris, issuer.id, str(life), str(epoch.number))
        if last.identity is not None and last.identity.version == version:
            return SdsSecrets(self._trust, last.identity, last.leaf)
        try:
            leaf = proxy_certificates.issue(issuer, proxy.uris, life, now)
        except UnusableCertificate:  # among the problems; an older certificate is better than none
            return SdsSecrets(self._trust, last.identity, last.leaf)
        self._add_leaf(proxy, version, issuer.id, leaf, now)
        identity = SdsSecret(identity_name(self.name), version, leaf.certificate, leaf.key)
        return SdsSecrets(self._trust, identity, leaf)

    def _add_leaf(
        self, proxy: _ProxySecrets, version: str, ca: str, leaf: ProxyCertificate, now: datetime
    ) -> None:
        """Note that a proxy may present one more certificate, and none that have expired."""
        for old in [old for old, each in proxy.leaves.items() if each.expires_at <= now or old == version]:
            self._n_presenting[proxy.leaves.pop(old).ca] -= 1
        proxy.leaves[version] = IssuedLeaf(ca, leaf.not_after, now)
        proxy.n_issued += 1
        self._n_presenting[ca] += 1

    # What proxies acknowledge.

    def acked(self, key: Key, secret_name: str, version: str) -> bool:
        """A proxy has acknowledged a secret; returns whether that matters to the rotation."""
        proxy = self._proxies.get(key)
        if proxy is None:
            return False
        if secret_name == trust_name(self.name) and version in self._bundles:
            self._set_trusted(proxy, self._bundles[version])
        elif secret_name == identity_name(self.name) and version in proxy.leaves:
            proxy.leaf, given = version, list(proxy.leaves)
            self._drop_leaves(proxy, given[: given.index(version)])
        else:
            return False
        return self.is_undecided

    def remove(self, key: Key) -> bool:
        """A proxy has disconnected; returns whether that matters to the rotation."""
        proxy = self._proxies.pop(key, None)
        if proxy is None:
            return False
        self._set_trusted(proxy, _NO_CAS)
        self._drop_leaves(proxy, list(proxy.leaves))
        return self.is_undecided or self.is_gone

    @property
    def is_undecided(self) -> bool:
        """Whether a rotation is in progress, so that it matters what proxies acknowledge."""
        return not rotation.is_settled(self._decided, self._next_issuer)

    def _set_trusted(self, proxy: _ProxySecrets, cas: frozenset[str]) -> None:
        self._n_trusting.subtract(proxy.trusts)
        self._n_trusting.update(cas)
        proxy.trusts = cas

    def _drop_leaves(self, proxy: _ProxySecrets, versions: list[str]) -> None:
        for version in versions:
            self._n_presenting[proxy.leaves.pop(version).ca] -= 1

    def state(self, key: Key) -> CertificateState | None:
        """The certificate of a proxy and what it trusts; None where it has nothing of this mesh."""
        proxy = self._proxies.get(key)
        if proxy is None or not self._is_on:
            return None
        leaf, names = proxy.leaves.get(proxy.leaf), self._backend_names
        return CertificateState(
            mesh=self.name,
            expires_at=leaf.expires_at if leaf is not None else None,
            issued_at=leaf.issued_at if leaf is not None else None,
            n_issued=proxy.n_issued,
            backend=names.get(leaf.ca, "") if leaf is not None else "",
            backends=tuple(sorted(names.get(ca, "") for ca in proxy.trusts)),
            trusts=tuple(sorted(proxy.trusts)),
            presents=tuple(sorted({each.ca for each in proxy.leaves.values()})),
        )

    # What is asked about all of them.

    def changed(self, now: datetime, limit: int) -> list[Key]:
        """The proxies whose secrets have changed since they were last announced, up to a number."""
        if self._announced_generation == self.generation and (self._renewal is None or now < self._renewal):
            return []
        stale = (
            (key, p) for key, p in self._proxies.items() if not p.is_announced and self._is_stale(p, now)
        )
        announced = list(islice(stale, limit))
        for _, proxy in announced:
            proxy.is_announced = True
        if next(stale, None) is not None:
            self._renewal = now
        else:
            renewals = (
                p.renewal for p in self._proxies.values() if p.renewal is not None and not p.is_announced
            )
            self._announced_generation, self._renewal = self.generation, min(renewals, default=None)
        return [key for key, _ in announced]

    def moments(self) -> Iterator[datetime]:
        """When something changes by itself."""
        return (at for at in (self._renewal, self.update_at) if at is not None)

    def certified(self, now: datetime) -> Iterator[Key]:
        """The proxies that have acknowledged a certificate which is still valid."""
        if not any(self._n_presenting.values()):  # as in a mesh without mTLS
            return
        for key, proxy in self._proxies.items():
            if proxy.leaf in proxy.leaves and proxy.leaves[proxy.leaf].expires_at > now:
                yield key


def _hash(*parts: str) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()
