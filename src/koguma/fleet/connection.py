"""Proxy lines: one connected proxy, from the house's side; what it said, what it is offered, how it is.

At most one offer is pending, and the newest wins.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Final, Protocol

import msgspec

from koguma.core.build.network import NodeMetadata
from koguma.envoy import names
from koguma.envoy.snapshot import CLUSTER, EXTENSION, LISTENER, SECRET, Failure, Id, Snapshot, XdsResource
from koguma.fleet.bootstrap_request import LOG_DIRECTORIES
from koguma.fleet.quarantine import Held
from koguma.identity.claims import DataplaneClaims
from koguma.model import kri, labels
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.xds.contract import ConnectRequest, Offer, ProxyStatus, Rejection

_OFFERS_KEPT: Final = 4  # a NACK of an older one is not understood
REDIRECT_PORT_INBOUND: Final = 15006  # as Kuma, where it is on and no port is named
REDIRECT_PORT_OUTBOUND: Final = 15001
_NONE_TAKEN: Final[Mapping[str, str]] = {}
_BEFORE: Final = "the version before"
_NONE: Final = "none"


class House(Protocol):
    """Whom a line tells what it hears."""

    clock: Callable[[], datetime]

    def secrets_acked(self, line: "ProxyLine", versions: Mapping[str, str]) -> None:
        """A proxy has taken certificates."""

    def refused(self, line: "ProxyLine") -> None:
        """A proxy refused something."""

    def took(self, line: "ProxyLine") -> None:
        """A proxy has taken all that was offered."""

    def took_all(self, line: "ProxyLine") -> None:
        """A proxy has taken all that it can be called with, for the first time."""

    async def disconnect(self, line: "ProxyLine") -> None:
        """A stream is over."""


class Admission(Protocol):
    """The right by which a proxy is connected."""

    @property
    def claims(self) -> DataplaneClaims:
        """What its token says."""

    def check(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""


class ProxyView(msgspec.Struct, frozen=True):
    """How a proxy is, for people."""

    key: Key
    core_name: str
    status: ProxyStatus
    revision: int  # of the store, that it is known to have
    behind_seconds: float
    connected_at: datetime
    envoy: str
    failures: tuple[Failure, ...]
    held: tuple[Held, ...] = ()
    kept: frozenset[Id] = frozenset()  # what could not be built, and the proxy has an earlier version of
    token: DataplaneClaims | None = None  # by which it is connected
    not_ready: tuple[str, ...] = ()  # what there is to say about inbounds that take no calls


class ProxyLine:
    """One connected proxy. What it said when it came is read, and not kept."""

    __slots__ = (
        "_can_be_called",
        "_has_old_secrets",
        "_house",
        "_is_fresh",
        "_offer",
        "_offers",
        "_told",
        "admission",
        "behind_since",
        "compiled",
        "connected_at",
        "envoy",
        "good",
        "identity_tags",
        "key",
        "node",
        "proxy",
        "registered",
        "run",
        "secrets_taken",
        "status",
        "unbuilt",
        "uris",
    )

    def __init__(
        self,
        house: House,
        hello: ConnectRequest,
        proxy: Resource,
        admission: Admission,
        *,
        registered: bool,
        identity_tags: frozenset[str] | None = None,
    ) -> None:
        self.key = proxy.key
        self.admission = admission
        self.identity_tags = identity_tags  # those that its certificate may name; None: all that it has
        self.proxy = proxy
        self.registered = registered
        self.envoy = intern(hello.version)
        self.node = node_metadata_of(hello.metadata)
        self.run = run_of(hello, proxy.labels)
        self.connected_at = house.clock()
        self.compiled: Snapshot | None = None  # without secrets
        self.uris: tuple[str, ...] = ()
        self.unbuilt: Failure | None = None  # why there is no newer configuration at all
        self.status = ProxyStatus("connecting", 0, 0)
        self.behind_since: datetime | None = self.connected_at
        self._house = house
        self.secrets_taken = _NONE_TAKEN  # versions by name
        self.good = Snapshot()  # what it took as a whole last
        self._offer: Offer | None = None
        self._offers: tuple[Offer, ...] = ()
        self._is_fresh = False  # the offer was not told yet
        self._told: Callable[[Offer], None] | None = None
        self._can_be_called = False
        self._has_old_secrets = False  # which count again once its inbounds use them

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        """Tell of offers from now on, first of one that was not told yet."""
        self._told = on_offer
        self._tell()

    def _tell(self) -> None:
        if self._is_fresh and self._told is not None and self._offer is not None:
            self._is_fresh = False
            self._told(self._offer)

    def offer(self, revision: int, snapshot: Snapshot) -> None:
        """Let the proxy have this, unless it is what was offered last."""
        if self._offer is None or not is_same(self._offer.snapshot, snapshot):
            self._let_have(Offer(revision, snapshot))

    def offer_again(self, snapshot: Snapshot) -> None:
        """Let the proxy have this, also what it refused before."""
        assert self._offer is not None
        self._let_have(Offer(self._offer.revision, snapshot, retry_rejected=True))

    def keep_secrets(self) -> None:
        """Let what it has of secrets count again, once it has taken what was offered.

        What it still has from before mTLS was switched off and on is not sent, nor answered again.
        """
        self._has_old_secrets = bool(self.secrets_taken)

    @property
    def is_trying(self) -> bool:
        """Whether it was offered last what it had refused before."""
        return self._offer is not None and self._offer.retry_rejected

    def _let_have(self, offer: Offer) -> None:
        self._offer = offer
        self._offers = (*self._offers[1 - _OFFERS_KEPT :], self._offer)
        self.behind_since = self.behind_since or self._house.clock()
        self._is_fresh = True
        self._tell()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What could not be built of its newest configuration; that is all of it where building raised."""
        return (*self.offered.failures, *((self.unbuilt,) if self.unbuilt else ()))

    @property
    def kept(self) -> frozenset[Id]:
        """What could not be built, and the proxy still has an earlier version of."""
        failures = self.failures
        taken = {
            type_: self.status.acked_versions.get(type_) or {} for type_ in {each.type for each in failures}
        }
        return frozenset(each.id for each in failures if each.name in taken[each.type])

    @property
    def offered(self) -> Snapshot:
        """What was offered last."""
        return self._offer.snapshot if self._offer else Snapshot()

    def refused(self, rejection: Rejection) -> Iterator[XdsResource]:
        """What a NACK is about; nothing where its offer was too long ago."""
        for offer in self._offers:
            if offer.revision == rejection.revision:
                for name in rejection.names:
                    piece, good = (each.get((rejection.type, name)) for each in (offer.snapshot, self.good))
                    if piece is not None and (good is None or good.version != piece.version):
                        yield piece

    def report(self, status: ProxyStatus) -> None:
        """Note how far the proxy is."""
        is_told = status.acked_versions is self.status.acked_versions
        self.status = status
        if status.state == "synced" and self._offer and status.acked >= self._offer.revision:
            self.behind_since = None
            self.good = self._offer.snapshot
            self._offers = (self._offer,)  # nothing older can be refused any more
            self._house.took(self)
        if status.rejections:
            self._house.refused(self)
        if not self._can_be_called and self._took_inbounds():
            self._can_be_called = True
            self._house.took_all(self)
        taken = self.secrets_taken if is_told else dict(status.acked_versions.get(SECRET) or {})
        counts_again = self._has_old_secrets and self._took_inbounds()
        if counts_again or taken != self.secrets_taken:
            self._has_old_secrets = self._has_old_secrets and not counts_again
            self.secrets_taken = taken
            self._house.secrets_acked(self, taken)

    def _took_inbounds(self) -> bool:
        """Whether it has all that it can be called with; what else is refused does not matter."""
        if self._offer is None:
            return False
        if self.status.state == "synced":
            return self.status.acked >= self._offer.revision
        taken = self.status.acked_versions
        if not taken.get(LISTENER):
            return False
        own = [piece for piece in self.offered if _is_of_inbound(piece)]
        return all((taken.get(piece.type) or {}).get(piece.name) == piece.version for piece in own)

    def check_access(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self.admission.check()

    async def close(self) -> None:
        """The stream is over."""
        await self._house.disconnect(self)


def _is_of_inbound(piece: XdsResource) -> bool:
    """Whether a piece is part of an inbound: named by the Dataplane, or coming apart from its listener."""
    return piece.type == EXTENSION or (piece.type != CLUSTER and piece.name.startswith("kri_dp_"))


def is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots hold the very same bundles; equal ones are mostly one, and to compare is dear."""
    return [*map(id, one.bundles)] == [*map(id, other.bundles)]


def node_metadata_of(metadata: Mapping[str, Json]) -> NodeMetadata:
    """What a proxy's metadata says of it; what does not fit is as good as absent."""
    features = metadata.get("features")
    proxying = _mapping(metadata.get("transparentProxy"))
    redirect = _mapping(proxying.get("redirect"))
    has_dns = not redirect or _redirected(redirect.get("dns"), 1) != 0
    return NodeMetadata(
        features=_alike(tuple(sorted(map(str, features)))) if isinstance(features, list) else (),
        workdir=str(metadata.get("workdir") or ""),
        admin_port=_port(metadata.get("dataplane.admin.port")),
        dns_port=_port(metadata.get("dataplane.dns.port")) if has_dns else 0,
        has_ipv6=metadata.get("ipv6Enabled") is True,
        readiness_port=_port(metadata.get("dataplane.readinessReporter.port")),
        redirect_inbound=_redirected(redirect.get("inbound"), REDIRECT_PORT_INBOUND),
        redirect_outbound=_redirected(redirect.get("outbound"), REDIRECT_PORT_OUTBOUND),
        ip_family="IPv4" if str(proxying.get("ipFamilyMode") or "").lower() == "ipv4" else "",
        metrics_certificate=str(metadata.get("metricsCertPath") or ""),
        metrics_key=str(metadata.get("metricsKeyPath") or ""),
        log_directories=_directories(metadata.get(LOG_DIRECTORIES)),
    )


def _directories(said: Json) -> tuple[str, ...] | None:
    """Where Envoy may write files; None where nothing is said about it."""
    return _alike(tuple(sorted(map(str, said)))) if isinstance(said, list) else None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _redirected(flow: Json, default_port: int) -> int:
    """Where the kernel redirects one direction of traffic to; 0 where it does not."""
    told = _mapping(flow)
    return (_port(told.get("port")) or default_port) if told.get("enabled") is True else 0


@lru_cache(maxsize=64)
def _alike(features: tuple[str, ...]) -> tuple[str, ...]:
    """Equal features as one value: proxies of a version have the same ones."""
    return features


def run_of(hello: ConnectRequest, own: Mapping[str, str]) -> str:
    """Which run of a proxy this is: what it says itself, or else where it keeps its files."""
    return own.get(labels.INSTANCE) or str(hello.metadata.get("workdir") or "")


def _port(text: Json) -> int:
    is_whole = isinstance(text, float) and text.is_integer()  # a protobuf Struct has no other numbers
    found = str(int(text) if is_whole else text or "")
    return int(found) if found.isascii() and found.isdigit() and int(found) < 1 << 16 else 0


def shown(view: ProxyView, identifier: str, instance: str) -> Mapping[str, Json]:
    """A proxy as the API shows it."""
    return {
        "name": view.core_name,
        "mesh": view.key.mesh,
        "kri": identifier,
        "state": view.status.state,
        "revision": view.revision,
        "behindSeconds": round(view.behind_seconds, 3),
        "connectedAt": view.connected_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envoy": view.envoy,
        "instance": instance,
        "rejections": [_rejection(each) for each in view.status.rejections],
        "quarantined": [_held(each) for each in view.held],
        "notReady": list(view.not_ready),
        "failures": [_failure(each, is_kept=each.id in view.kept) for each in view.failures],
    }


def _rejection(rejection: Rejection) -> Mapping[str, Json]:
    """A NACK with the objects that caused it: those that the refused names identify."""
    objects = [name for name in map(names.resource, rejection.names) if kri.is_kri(name)]
    return {**msgspec.to_builtins(rejection), "objects": objects}


def _failure(failure: Failure, *, is_kept: bool) -> Mapping[str, Json]:
    return {**msgspec.to_builtins(failure), "has": _BEFORE if is_kept else _NONE}


def _held(held: Held) -> Mapping[str, Json]:
    has = _BEFORE if held.good_version else _NONE
    return {"type": held.type, "name": held.name, "text": held.text, "policies": held.policies, "has": has}


def status_of(status: ProxyStatus, *, is_behind: bool, is_held: bool) -> ProxyStatus:
    """The status that people see: what is held back is a NACK, also after it was offered again otherwise."""
    if is_held:
        return msgspec.structs.replace(status, state="nack")
    if is_behind and status.state == "synced":
        return msgspec.structs.replace(status, state="behind")
    return status
