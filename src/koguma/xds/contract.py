"""What the xDS server and the rest of the house say to each other.

The server carries bytes and knows streams; who a proxy is, whether it may connect and what it gets is said
by a `Door`.
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from koguma.envoy.health import HealthCheck
from koguma.envoy.snapshot import Snapshot
from koguma.model.schema import Json


class Hello(msgspec.Struct, frozen=True):
    """The first request of a stream: who it says it is."""

    mesh: str
    name: str  # core name of the Dataplane
    token: str  # as sent, maybe empty
    metadata: Mapping[str, Json]  # of the node
    version: str = ""  # of the Envoy, as 1.40.0
    peer: str = ""


class Offer(msgspec.Struct, frozen=True):
    """What a proxy is to have, and since which revision of the store."""

    revision: int
    snapshot: Snapshot
    again: bool = False  # also what the proxy refused before: the reason may have passed


class Rejection(msgspec.Struct, frozen=True):
    """A NACK: what was refused, and Envoy's words."""

    type: str
    names: tuple[str, ...]
    text: str
    revision: int


class ProxyStatus(msgspec.Struct, frozen=True):
    """How far a proxy is."""

    state: Literal["connecting", "synced", "behind", "nack"]
    offered: int  # revision of the newest offer
    acked: int  # revision of the newest offer that was acknowledged as a whole
    rejections: tuple[Rejection, ...] = ()
    acked_versions: Mapping[str, Mapping[str, str]] = {}  # by type, by name: what Envoy said it has taken


class Line(Protocol):
    """One connected proxy, from the house's side."""

    def follow(self, told: Callable[[Offer], None]) -> None:
        """Tell of offers from now on, first of one that was not told yet; only the newest counts."""

    def report(self, status: ProxyStatus) -> None:
        """Note how far the proxy is; called whenever that changes, cheap."""

    def check(self) -> None:
        """Raise a KogumaError once the proxy may not stay; asked once a second, so it is cheap."""

    async def close(self) -> None:
        """The stream is over."""


class CheckedProxy(Protocol):
    """One proxy that checks the health of applications, from the house's side."""

    def check(self) -> None:
        """Raise a KogumaError once the proxy may not stay; asked once a second, so it is cheap."""

    def checks(self) -> tuple[HealthCheck, ...]:
        """What it is to check now."""

    async def report(self, healthy: Mapping[str, bool]) -> None:
        """Note what it found, by the names of checks; what it has not found out yet is not there."""


class HealthDoor(Protocol):
    """Lets proxies in that check the health of applications."""

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is a valid one; what else there is to ask comes later."""

    async def check(self, hello: Hello) -> CheckedProxy:
        """Check who it is and let it in; Unauthenticated, Forbidden or NotFound say why not."""


class Door(Protocol):
    """Lets proxies in."""

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless the token is a valid one; what else there is to ask comes later."""

    async def connect(self, hello: Hello) -> Line:
        """Check who it is and let it in; Unauthenticated, Forbidden, NotFound or Invalid say why not."""
