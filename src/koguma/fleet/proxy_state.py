"""Proxy state: what a control plane knows of a proxy, as a plain value.

It is what `koguma get proxies`, the checks and insights show, and what control planes of one store tell each
other: each writes those of the proxies that are connected to it, as rows beside the log of revisions.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal

import msgspec

from koguma.core.build.network import NodeMetadata
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, Failure, Id
from koguma.fleet.quarantine import HeldResource
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import cut
from koguma.xds.contract import Rejection, ResponseCount

SyncState = Literal["connecting", "synced", "behind", "nack"]

TOTAL: Final = "total"  # of all types, among counts of responses by type
_VERSION_MAX: Final = 200  # characters; proxies say themselves which version they are
_SERVICES: Final = {"cds": CLUSTER, "eds": ENDPOINTS, "lds": LISTENER, "rds": ROUTES}  # that Kuma counts
_NO_VERSIONS: Final[Mapping[str, str]] = {}


class ProxyVersions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions of a proxy's programs, as it says itself."""

    agent: str = ""
    agent_tag: str = ""
    agent_commit: str = ""
    agent_built: str = ""
    envoy: str = ""
    envoy_build: str = ""
    is_envoy_compatible: bool = True  # with the agent, as this says itself
    dependencies: Mapping[str, str] = _NO_VERSIONS


class CertificateState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The certificate of a proxy in one mesh, and the CAs whose certificates it accepts there.

    A proxy of another mesh that only calls into this one has no certificate of it.
    """

    mesh: str
    expires_at: datetime | None = None  # the one that it acknowledged last
    issued_at: datetime | None = None
    n_issued: int = 0  # over this connection
    backend: str = ""  # that issued it
    backends: tuple[str, ...] = ()  # whose certificates it accepts
    trusts: tuple[str, ...] = ()  # ids of the CAs that it has acknowledged
    presents: tuple[str, ...] = ()  # ids of the CAs of which it may present a certificate


class TokenState(msgspec.Struct, frozen=True):
    """From when to when the token of a proxy is valid, in seconds since 1970."""

    issued_at: float
    ends_at: float


class MissingPart(msgspec.Struct, frozen=True):
    """A policy's part that cannot be built: all else of its offers a proxy gets."""

    failure: Failure
    had: int  # the revision of the last offer before it
    revision: int  # of the first offer with it


class ProxyState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The state of a proxy over its last connection."""

    key: Key
    core_name: str
    identifier: str = ""  # its KRI
    instance: str  # the control plane that it is, or was, connected to
    subscription: str = ""  # identifies the connection
    connected_at: datetime
    disconnected_at: datetime | None = None
    state: SyncState = "connecting"
    # Of the store: the newest one that it is known to have. 0 in the row of a connected proxy that has all of
    # what its control plane has: that one's row says which revision this is, so that a change of others
    # writes no row here.
    revision: int = 0
    offered: int = 0  # the revision of the newest offer: those after it, that are known, do not touch it
    behind_since: datetime | None = None
    rejections: tuple[Rejection, ...] = ()
    held: tuple[HeldResource, ...] = ()  # what it rejected, without the bytes that it has instead
    failures: tuple[Failure, ...] = ()
    missing_parts: tuple[MissingPart, ...] = ()  # since when, of some of these failures
    kept: tuple[Id, ...] = ()  # resources that could not be built, of which it has an earlier version
    not_ready: tuple[str, ...] = ()  # a sentence for each inbound that takes no calls; never in a row
    versions: ProxyVersions = ProxyVersions()
    responses: Mapping[str, ResponseCount] = {}  # by type: cds, eds, lds, rds, total
    responses_at: datetime | None = None  # when a response was last sent or answered
    certificates: tuple[CertificateState, ...] = ()  # its own mesh first
    token: TokenState | None = None
    is_registered: bool = False  # it brought its own object
    node: NodeMetadata | None = None  # what it said of itself, on which its configuration depends

    @property
    def is_connected(self) -> bool:
        """Whether it has a stream to a control plane."""
        return self.disconnected_at is None

    @property
    def certificate(self) -> CertificateState | None:
        """Its certificate in its own mesh; None without mTLS, and of a zone proxy."""
        first = self.certificates[0] if self.certificates else None
        return first if first is not None and first.mesh == self.key.mesh else None

    def behind_seconds(self, now: datetime) -> float:
        """For how long it lacks something."""
        return max((now - self.behind_since).total_seconds(), 0.0) if self.behind_since else 0.0

    def is_certified(self, now: datetime) -> bool:
        """Whether it has acknowledged a certificate of its mesh that is still valid."""
        certificate = self.certificate
        return certificate is not None and certificate.expires_at is not None and certificate.expires_at > now


def responses_of(counts: Mapping[str, ResponseCount]) -> dict[str, ResponseCount]:
    """Counts of responses under the names that Kuma shows, of all types together as `total`."""
    if not counts:
        return {}
    total = ResponseCount(
        sum(count.sent for count in counts.values()),
        sum(count.acked for count in counts.values()),
        sum(count.rejected for count in counts.values()),
    )
    return {TOTAL: total, **{name: counts[type_] for name, type_ in _SERVICES.items() if type_ in counts}}


class InstanceState(msgspec.Struct, frozen=True, kw_only=True):
    """A control plane of this store, as another one sees it."""

    id: str
    version: str = ""  # of the software
    started_at: datetime | None = None
    address: str = ""  # where other control planes reach it
    revision: int = 0  # of the store: what its synced proxies have
    is_here: bool = False
    is_gone: bool = False  # it gives no sign of life: its proxies count as disconnected
    has_stopped: bool = False  # it said so itself
    silent_seconds: float = 0.0  # since its last sign of life was seen
    n_proxies: int = 0  # that were connected to it when it was last heard of
    n_missing: int = 0  # of these, if it is gone: connected to no other one, and their objects still stored
    heard_at: datetime | None = None  # when it last wrote, by its own clock


def versions_of(metadata: Mapping[str, Json], envoy: str) -> ProxyVersions:
    """The versions in the metadata of a node; a value of another type counts as absent."""
    versions = _mapping(metadata.get("version"))
    agent, proxy = _mapping(versions.get("kumaDp")), _mapping(versions.get("envoy"))
    dependencies = _mapping(versions.get("dependencies"))
    return _versions(
        tuple(_text(agent.get(name)) for name in ("version", "gitTag", "gitCommit", "buildDate")),
        envoy=_text(envoy) or _text(proxy.get("version")),
        envoy_build=_text(proxy.get("build")),
        is_envoy_compatible=proxy.get("kumaDpCompatible") is not False,
        dependencies=tuple(sorted((_text(name), _text(value)) for name, value in dependencies.items())),
    )


@lru_cache(maxsize=256)
def _versions(
    agent: tuple[str, ...],
    envoy: str,
    envoy_build: str,
    *,
    is_envoy_compatible: bool,
    dependencies: tuple[tuple[str, str], ...],
) -> ProxyVersions:
    """One value for equal ones: most proxies of a fleet have the same versions."""
    version, tag, commit, built = agent
    others = dict(dependencies) or _NO_VERSIONS
    return ProxyVersions(version, tag, commit, built, envoy, envoy_build, is_envoy_compatible, others)


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Json) -> str:
    return cut(value, _VERSION_MAX) if isinstance(value, str) else ""
