"""Variants of the xDS transport protocol: delta, and state of the world."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from koguma.xds.contract import Offer, ProxyStatus
from koguma.xds.messages import DecodedRequest

_Req = TypeVar("_Req")
_Resp = TypeVar("_Resp")
_Req_contra = TypeVar("_Req_contra", contravariant=True)


class XdsSession(Protocol[_Req_contra, _Resp]):
    """A protocol session of one variant."""

    def receive(self, request: _Req_contra, now: float) -> list[_Resp]:
        """Handle a request of the proxy."""

    def offer(self, offer: Offer, now: float) -> list[_Resp]:
        """Replace the configuration that the proxy should have."""

    def accept_if_held(self, offer: Offer) -> bool:
        """Take an offer if the proxy holds all of it already, so that no response is due; whether so."""

    def tick(self, now: float) -> list[_Resp]:
        """Handle that time has passed."""

    @property
    def next_tick(self) -> float | None:
        """When to call `tick`."""

    @property
    def status(self) -> ProxyStatus:
        """The status of the proxy."""

    @property
    def n_acks(self) -> int:
        """The number of responses that the proxy has ACKed."""


class XdsVariant(msgspec.Struct, Generic[_Req, _Resp], frozen=True):
    """A variant of the xDS protocol, delta or state of the world: its codec and its session."""

    name: str
    decode: Callable[[bytes], DecodedRequest[_Req]]
    session: Callable[[], XdsSession[_Req, _Resp]]
    encode: Callable[[_Resp], bytes]
    id_path: tuple[int, ...]  # field numbers that lead to the id of the node
