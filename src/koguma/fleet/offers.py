"""Offers: the configuration that each connected proxy is offered, and in which order proxies get theirs.

An offer is what was compiled for the proxy, with its keys and certificates, and in place of each resource
that it rejected the version that it acknowledged last. A resource that it rejected for a reason that passes
by itself is offered again now and then.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec
import structlog

from koguma.envoy import virtual_hosts
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import SECRET, Bundle, Failure, Snapshot, XdsResource, bundle
from koguma.fleet.certificates import Certificates
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.quarantine import Quarantine
from koguma.fleet.retries import Retries
from koguma.identity.sds import SdsSecret, TrustDomains, trusted_mesh
from koguma.model.resource import Key

BATCH: Final = 32  # proxies that get an offer before other tasks have a turn

_NO_SECRETS: Final = bundle(())
_log = structlog.get_logger("koguma.fleet")


class Offers:
    """Offers configurations to the proxies of `roster`."""

    def __init__(
        self,
        roster: Mapping[Key, ConnectedProxy],
        quarantine: Quarantine,
        certificates: Certificates,
        encoder: Encoder,
    ) -> None:
        self._roster = roster
        self.quarantine = quarantine
        self._certificates = certificates
        self._encoder = encoder
        self._retries = Retries(self._retry)
        self._logged: set[Failure] = set()

    async def push(self, revision: int, keys: Collection[Key]) -> None:
        """Offer these proxies what they are to have now; one that has that offer already gets none.

        What was compiled for them and could be built is what they are to have up to this revision, at least.
        """
        for number, key in enumerate(self._in_order(keys)):
            if number % BATCH == 0:  # the first ones are sent while the others still wait for their offer
                await asyncio.sleep(0)
            proxy = self._roster.get(key)
            if proxy is not None and proxy.snapshot is not None:
                self._offer(revision, proxy, proxy.snapshot)

    def forget(self, key: Key) -> None:
        """A proxy has disconnected."""
        self._retries.forget(key)

    def _in_order(self, keys: Iterable[Key]) -> Iterator[Key]:
        """These proxies, those together that share their outbounds: they are sent the same bytes."""
        by_shared: dict[int, list[Key]] = {}
        for key in sorted(keys):
            proxy = self._roster.get(key)
            if proxy is not None and proxy.snapshot is not None:
                by_shared.setdefault(id(proxy.snapshot.bundles[0]), []).append(key)
        return chain.from_iterable(by_shared.values())

    def _offer(self, revision: int, proxy: ConnectedProxy, compiled: Snapshot) -> None:
        secrets = self._secrets(proxy, compiled)
        if proxy.offered.bundles[-1:] != (secrets,):
            proxy.count_secrets_again()
        whole = _for_variant(proxy, Snapshot((*compiled.bundles, secrets)))
        had = self.quarantine.release_changed(proxy.key, whole)
        if had is not None:
            proxy.lacks_after(had)
        if proxy.build_failure is None:
            proxy.snapshot_revision = max(proxy.snapshot_revision, revision)
        proxy.offer(proxy.snapshot_revision, self.quarantine.without_rejected(proxy.key, whole))
        if self.quarantine.has_passing(proxy.key):
            self._retries.schedule(proxy.key)
        self._log_failures(compiled)

    def _retry(self, key: Key) -> bool:
        """Offer a proxy what it rejected for a reason that may have passed; whether there is such a thing."""
        proxy = self._roster.get(key)
        if proxy is None or proxy.snapshot is None or not self.quarantine.has_passing(key):
            return False
        if proxy.status.state in ("synced", "nack"):  # else an offer waits for its answer
            whole = _for_variant(
                proxy, Snapshot((*proxy.snapshot.bundles, self._secrets(proxy, proxy.snapshot)))
            )
            proxy.offer_again(self.quarantine.without_lasting(key, whole))
        return True

    def _secrets(self, proxy: ConnectedProxy, compiled: Snapshot) -> Bundle:
        """The keys and certificates of a proxy; the same bundle object where nothing changed."""
        secrets: Iterable[SdsSecret | TrustDomains]
        if proxy.key.mesh:
            others = self._certificates.trusted(proxy.key, _other_meshes(proxy.key.mesh, compiled))
            secrets = [*(self._certificates.of(proxy.key, proxy.spiffe_ids) or ()), *others]
        else:
            secrets = self._certificates.of_zone_proxy(proxy.key, proxy.identities)
        if not secrets:
            return _NO_SECRETS
        new = bundle(self._secret(secret, proxy.offered) for secret in secrets)
        return next((offered for offered in proxy.offered.bundles if offered == new), new)

    def _secret(self, secret: SdsSecret | TrustDomains, offered: Snapshot) -> XdsResource:
        known = offered.get((SECRET, secret.name))
        if known is not None and known.version == secret.version:
            return known
        # The version of a secret names its purpose, not its bytes: a proxy that has it needs no other key.
        resource = self._encoder.resource(SECRET, secret.name, secret.data())
        return msgspec.structs.replace(resource, version=secret.version)

    def _log_failures(self, snapshot: Snapshot) -> None:
        for failure in snapshot.failures:
            if failure not in self._logged:
                self._logged.add(failure)
                _log.error(
                    "a part of the configuration cannot be built; proxies go without, or keep the last one",
                    type=failure.type,
                    name=failure.name,
                    origin=failure.origin,
                    reason=failure.text,
                )


def _other_meshes(mesh: str, compiled: Snapshot) -> list[str]:
    """The meshes, other than its own, whose CAs a proxy needs."""
    needed = sorted({name for each in compiled.bundles for name in each.needed_secrets})
    return [other for name in needed if (other := trusted_mesh(name)) and other != mesh]


def _for_variant(proxy: ConnectedProxy, snapshot: Snapshot) -> Snapshot:
    """The snapshot as the variant of xDS that the proxy speaks can express it."""
    return snapshot if proxy.is_delta else virtual_hosts.inlined(snapshot)
