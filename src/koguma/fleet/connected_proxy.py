"""Connected proxy: one proxy with an xDS stream to this control plane.

At most one offer is pending for it, and the newest wins.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final, Protocol

from koguma.envoy.snapshot import LISTENER, SECRET, Failure, Id, Snapshot, XdsResource
from koguma.fleet.node_metadata import node_metadata_of, run_of
from koguma.fleet.proxy_state import MissingPart, versions_of
from koguma.identity.claims import DataplaneClaims, ZoneClaims
from koguma.model.resource import Key, Resource
from koguma.store.store import new_uid
from koguma.xds.contract import ConnectRequest, Offer, ProxyStatus, Rejection

_OFFERS_KEPT: Final = 4
_NO_VERSIONS: Final[Mapping[str, str]] = {}


class FleetEvents(Protocol):
    """What a connected proxy reports to the fleet."""

    clock: Callable[[], datetime]

    @property
    def revision(self) -> int:
        """Of the store: every proxy that is not behind has what was written up to here."""

    def changed(self, proxy: "ConnectedProxy") -> None:
        """What its state shows has changed. Called often, so it has to be cheap."""

    def secrets_acked(self, proxy: "ConnectedProxy", versions: Mapping[str, str]) -> None:
        """It has acknowledged certificates: versions by secret name."""

    def rejected(self, proxy: "ConnectedProxy") -> None:
        """It has sent a NACK."""

    def acked(self, proxy: "ConnectedProxy") -> None:
        """It has acknowledged the newest offer completely."""

    def ready(self, proxy: "ConnectedProxy") -> None:
        """It has acknowledged all that it needs to be called, for the first time."""

    async def disconnect(self, proxy: "ConnectedProxy") -> None:
        """Its stream has ended."""


class Admission(Protocol):
    """The right by which a proxy is connected."""

    @property
    def claims(self) -> DataplaneClaims | ZoneClaims:
        """The claims of its token."""

    def check(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""


class ConnectedProxy:
    """One connected proxy; of its first request only what is needed later is kept."""

    __slots__ = (
        "_acked_inbounds",
        "_build_failure",
        "_events",
        "_has_old_secrets",
        "_is_offer_new",
        "_lacks_after",
        "_missed_build",
        "_offer",
        "_offers",
        "_on_offer",
        "_settled_revision",
        "acked_snapshot",
        "admission",
        "behind_since",
        "connected_at",
        "identities",
        "identity_tags",
        "is_delta",
        "key",
        "missing_parts",
        "node",
        "proxy",
        "registered",
        "responses_at",
        "run",
        "secrets_acked",
        "snapshot",
        "snapshot_revision",
        "spiffe_ids",
        "status",
        "subscription",
        "versions",
    )

    def __init__(
        self,
        events: FleetEvents,
        request: ConnectRequest,
        proxy: Resource,
        admission: Admission,
        *,
        registered: bool,
        identity_tags: frozenset[str] | None = None,
    ) -> None:
        self.key: Key = proxy.key
        self.admission = admission
        self.identity_tags = identity_tags  # those that its certificate may name; None: all that it has
        self.proxy = proxy
        self.registered = registered
        self.versions = versions_of(request.metadata, request.version)
        self.is_delta = request.is_delta
        self.node = node_metadata_of(request.metadata)
        self.run = run_of(request, proxy.labels)
        self.subscription = new_uid()
        self.connected_at = events.clock()
        self.snapshot: Snapshot | None = None  # as compiled, without secrets
        self.snapshot_revision = 0  # up to which that is what it is to have
        self.spiffe_ids: tuple[str, ...] = ()
        self.identities: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of a zone proxy, by mesh
        self._build_failure: Failure | None = None
        self.status = ProxyStatus("connecting", 0, 0)
        self.responses_at: datetime | None = None  # when it last answered, or was sent, something
        self.behind_since: datetime | None = self.connected_at
        self.secrets_acked = _NO_VERSIONS  # by name
        self.acked_snapshot = Snapshot()  # the last one that it acknowledged completely
        self._events = events
        self._offer: Offer | None = None
        self._offers: tuple[Offer, ...] = ()
        self._is_offer_new = False  # the stream has not been given the offer yet
        self._on_offer: Callable[[Offer], None] | None = None
        self._acked_inbounds = False
        self._settled_revision = 0  # what it had all of when it was offered something newer
        self._lacks_after: int | None = None  # it rejected something of later ones, which is on its way again
        self.missing_parts: tuple[MissingPart, ...] = ()  # of its newest offer
        self._missed_build = False  # since it last acknowledged everything
        self._has_old_secrets = False  # which count again once its inbounds use them

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        """Call `on_offer` with a pending offer, then with each newer one."""
        self._on_offer = on_offer
        self._notify()

    def _notify(self) -> None:
        if self._is_offer_new and self._on_offer is not None and self._offer is not None:
            self._is_offer_new = False
            self._on_offer(self._offer)

    def offer(self, revision: int, snapshot: Snapshot) -> None:
        """Offer a configuration, unless it is what was offered last."""
        if self._offer is None or not is_same(self._offer.snapshot, snapshot):
            self._set_offer(Offer(revision, snapshot))

    def offer_again(self, snapshot: Snapshot) -> None:
        """Offer a configuration, also the versions of it that were rejected before."""
        assert self._offer is not None
        self._set_offer(Offer(self._offer.revision, snapshot, retry_rejected=True))

    def count_secrets_again(self) -> None:
        """Report the acknowledged secrets once more after the next offer was acknowledged.

        Those that it still has from before mTLS was switched off and on are neither sent nor acknowledged
        again.
        """
        self._has_old_secrets = bool(self.secrets_acked)

    @property
    def is_retrying(self) -> bool:
        """Whether the last offer contained what it had rejected before."""
        return self._offer is not None and self._offer.retry_rejected

    def _set_offer(self, offer: Offer) -> None:
        if self.behind_since is None and not self._missed_build:
            self._settled_revision = self._events.revision
        self.missing_parts = tuple(self._missing_parts(offer))
        self._offer = offer
        self._offers = (*self._offers[1 - _OFFERS_KEPT :], self._offer)
        self.behind_since = self.behind_since or self._events.clock()
        self._is_offer_new = True
        self._events.changed(self)
        self._notify()

    def _missing_parts(self, offer: Offer) -> Iterator[MissingPart]:
        """Those of a new offer; one that the offer before had, too, is missing since then."""
        known = {each.failure: each for each in self.missing_parts}
        for failure in offer.snapshot.failures:
            if failure.is_of_policy:
                yield known.get(failure) or MissingPart(failure, self.offered_revision, offer.revision)

    @property
    def build_failure(self) -> Failure | None:
        """Why there is no newer configuration at all."""
        return self._build_failure

    @build_failure.setter
    def build_failure(self, failure: Failure | None) -> None:
        if failure != self._build_failure:
            self._missed_build = True
            self._build_failure = failure
            self._events.changed(self)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What could not be built of its newest configuration; that is all of it where building raised."""
        return (*self.offered.failures, *((self._build_failure,) if self._build_failure else ()))

    @property
    def kept(self) -> frozenset[Id]:
        """Resources that could not be built, of which the proxy has an earlier version."""
        acked = self.status.acked_versions
        return frozenset(each.id for each in self.failures if each.name in (acked.get(each.type) or {}))

    @property
    def offered(self) -> Snapshot:
        """The configuration that was offered last."""
        return self._offer.snapshot if self._offer else Snapshot()

    @property
    def offered_revision(self) -> int:
        """The revision that it was compiled from; later ones that are known here do not touch the proxy."""
        return self._offer.revision if self._offer else 0

    @property
    def revision(self) -> int:
        """Of the store: it has what was written up to here, but for what it rejected."""
        if self.behind_since is None and self._build_failure is None:
            return self._events.revision
        acked = max(self._settled_revision, self.status.acked)
        return acked if self._lacks_after is None else min(acked, self._lacks_after)

    @property
    def has_newest(self) -> bool:
        """Whether it has acknowledged all of the newest offer."""
        status = self.status
        return (
            self._offer is not None
            and status.state == "synced"
            and status.acked_snapshot is self._offer.snapshot
        )

    def lacks_after(self, revision: int) -> None:
        """What it rejected of later revisions is no longer held back: it lacks that until its next ACK."""
        self._lacks_after = revision if self._lacks_after is None else min(revision, self._lacks_after)

    def last_acked(self, id_: Id) -> XdsResource | None:
        """What it has of a resource, also from an offer that it has not acknowledged completely."""
        type_, name = id_
        version = (self.status.acked_versions.get(type_) or {}).get(name)
        for offer in reversed(self._offers):
            resource = offer.snapshot.get(id_)
            if resource is not None and resource.version == version:
                return resource
        return self.acked_snapshot.get(id_)

    def rejected(self, rejection: Rejection) -> Iterator[XdsResource]:
        """The resources that a NACK is about, as far as it is still to have them, or was until just now.

        Many offers may have come since the one that it answers.
        """
        for name, version in zip(rejection.names, rejection.versions, strict=True):
            id_ = (rejection.type, name)
            offered = (offer.snapshot.get(id_) for offer in reversed(self._offers))
            rejected = next((each for each in offered if each is not None and each.version == version), None)
            acked = self.last_acked(id_)
            if rejected is not None and (acked is None or acked.version != version):
                yield rejected

    def report(self, status: ProxyStatus) -> None:
        """Note how much the proxy has acknowledged, and report what that means to the fleet."""
        has_same_versions = status.acked_versions is self.status.acked_versions
        self.status = status
        self.responses_at = self._events.clock()
        if self._offer is not None and self.has_newest:
            self.behind_since = None
            self._missed_build = self._build_failure is not None
            self._lacks_after = None
            self.acked_snapshot = self._offer.snapshot
            self._offers = (self._offer,)  # nothing older can be rejected any more
            self._events.acked(self)
        if status.rejections:
            self._events.rejected(self)
        if not self._acked_inbounds and self._has_inbounds():
            self._acked_inbounds = True
            self._events.ready(self)
        secrets = self.secrets_acked if has_same_versions else dict(status.acked_versions.get(SECRET) or {})
        counts_again = self._has_old_secrets and self._has_inbounds()
        if counts_again or secrets != self.secrets_acked:
            self._has_old_secrets = self._has_old_secrets and not counts_again
            self.secrets_acked = secrets
            self._events.secrets_acked(self, secrets)
        self._events.changed(self)

    def _has_inbounds(self) -> bool:
        """Whether it has acknowledged all that it needs to be called, whatever else it rejected."""
        if self._offer is None:
            return False
        if self.status.state == "synced":
            return self.has_newest
        acked = self.status.acked_versions
        if not acked.get(LISTENER):
            return False
        return all(
            (acked.get(each.type) or {}).get(each.name) == each.version
            for bundle in self.offered.bundles
            for each in bundle.inbound_resources
        )

    def check_access(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self.admission.check()

    async def close(self) -> None:
        """The stream has ended."""
        await self._events.disconnect(self)


def is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots hold the same bundle objects.

    Equal snapshots mostly share their bundles, and comparing bundles by content is expensive.
    """
    return [*map(id, one.bundles)] == [*map(id, other.bundles)]
