"""Requests and responses of delta xDS, as plain values."""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.envoy.snapshot import CLUSTER, LISTENER, VIRTUAL_HOST, XdsResource
from koguma.xds.protocol.bundle_diff import BundleDiff

WILDCARD: Final = "*"
# Types to which Envoy subscribes with a wildcard; it subscribes to all others by name. To the first ones it
# subscribes when it connects, to virtual hosts once it has routes whose hosts are sent apart.
FIRST_TYPES: Final = frozenset({CLUSTER, LISTENER})
WILDCARD_TYPES: Final = FIRST_TYPES | {VIRTUAL_HOST}
WILDCARD_SUBSCRIPTIONS: Final[tuple[tuple[str, ...], ...]] = ((), (WILDCARD,))  # legacy and explicit


class DeltaRequest(msgspec.Struct, frozen=True):
    """A DeltaDiscoveryRequest: a change of subscriptions, an ACK or NACK, or both."""

    type: str  # our short name of the type, for example "cluster"
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = {}  # initial_resource_versions: held from an earlier stream
    nonce: str = ""  # of the response that is ACKed or NACKed
    error: str = ""  # Envoy's error message; makes it a NACK

    @property
    def n_versions(self) -> int:
        """The number of initial versions, without parsing them."""
        n_entries: int | None = getattr(self.initial_versions, "n_entries", None)
        return len(self.initial_versions) if n_entries is None else n_entries


class DeltaResponse(msgspec.Struct, frozen=True):
    """A DeltaDiscoveryResponse: new and changed resources, and the names of removed ones."""

    type: str
    nonce: str
    resources: tuple[XdsResource, ...] = ()
    removed: tuple[str, ...] = ()
    diff: BundleDiff | None = None  # set where many proxies get exactly these resources
