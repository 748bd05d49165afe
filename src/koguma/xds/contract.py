"""The interface between the xDS server and the rest of the control plane.

The server moves bytes over streams. Who a proxy is, whether it may connect and which configuration it gets is
decided behind an `XdsGate` (for health discovery, an `HdsGate`).
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from koguma.envoy.health import HealthCheck
from koguma.envoy.snapshot import Snapshot
from koguma.model.schema import Json


class ConnectRequest(msgspec.Struct, frozen=True):
    """Which proxy a stream claims to be: the node of its first request, and its token."""

    mesh: str  # empty for a zone proxy
    name: str  # core name of the Dataplane, or of a zone proxy's object
    token: str  # as sent, may be empty
    metadata: Mapping[str, Json]  # of the node
    version: str = ""  # of Envoy, for example 1.40.0
    peer: str = ""
    is_delta: bool = True  # of the variants of xDS; the older one has no virtual hosts apart from routes

    @property
    def proxy_type(self) -> str:
        """The type of the proxy, in Kuma's words; empty where the node does not say."""
        return str(self.metadata.get("dataplane.proxyType") or "")

    @property
    def proxy_id(self) -> tuple[str, str, str]:
        """What identifies the proxy among all; proxies of a mesh have no type here."""
        return "" if self.mesh else self.proxy_type, self.mesh, self.name


class Offer(msgspec.Struct, frozen=True):
    """The configuration that a proxy should have, and the store revision it was compiled from."""

    revision: int
    snapshot: Snapshot
    retry_rejected: bool = False  # also send versions that the proxy rejected: the cause may be gone


class Rejection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NACK: the rejected resources and Envoy's error message."""

    type: str
    names: tuple[str, ...]
    text: str
    revision: int
    versions: tuple[str, ...] = ()  # that were rejected, one for each name


class ResponseCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many responses of one type a proxy was sent on its stream, and how it answered them."""

    sent: int = 0
    acked: int = 0
    rejected: int = 0


class ProxyStatus(msgspec.Struct, frozen=True):
    """How much of its configuration a proxy has acknowledged."""

    state: Literal["connecting", "synced", "behind", "nack"]
    offered: int  # revision of the newest offer
    acked: int  # revision of the newest offer that was acknowledged completely
    rejections: tuple[Rejection, ...] = ()
    acked_versions: Mapping[str, Mapping[str, str]] = {}  # by type and name: what Envoy has acknowledged
    # The very object that was acknowledged completely: several offers may be of one revision.
    acked_snapshot: Snapshot | None = None
    responses: Mapping[str, ResponseCount] = {}  # by type, on this stream, at the moment of reading


class ProxyConnection(Protocol):
    """One connected proxy, as the xDS server sees it."""

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        """Call `on_offer` with a pending offer, then with each newer one; only the newest counts."""

    def report(self, status: ProxyStatus) -> None:
        """Note the proxy's status. Called on every change, so it has to be cheap."""

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay connected. Called every second: keep it cheap."""

    async def close(self) -> None:
        """The stream has ended."""


class HdsConnection(Protocol):
    """One proxy that checks the health of applications, as the health discovery server sees it."""

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay connected. Called every second: keep it cheap."""

    def checks(self) -> tuple[HealthCheck, ...]:
        """The health checks that the proxy should run now."""

    async def report(self, healthy: Mapping[str, bool]) -> None:
        """Note results by check name; a check without a result yet is absent."""


class HdsGate(Protocol):
    """Admits proxies to health discovery."""

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is valid for some proxy; `connect` checks the rest."""

    async def connect(self, request: ConnectRequest) -> HdsConnection:
        """Authorize and admit the proxy, or raise Unauthenticated, Forbidden or NotFound."""


class XdsGate(Protocol):
    """Admits proxies to aggregated discovery."""

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is valid for some proxy; `connect` checks the rest."""

    async def connect(self, request: ConnectRequest) -> ProxyConnection:
        """Authorize and admit the proxy, or raise Unauthenticated, Forbidden, NotFound or Invalid."""
