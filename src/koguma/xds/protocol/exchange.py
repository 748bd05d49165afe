"""Exchange: what a proxy says and what it is told, in the incremental form of xDS."""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.envoy.snapshot import CLUSTER, LISTENER, XdsResource
from koguma.xds.protocol.differences import Step

WILDCARD: Final = "*"
# Of these a proxy wants whatever there is; all others it asks for by name.
WILDCARD_TYPES: Final = frozenset({CLUSTER, LISTENER})


class DeltaRequest(msgspec.Struct, frozen=True):
    """One request: a change of what is asked for, an answer to a response, or both."""

    type: str  # the word for the type
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = {}  # what the proxy has from an earlier stream
    nonce: str = ""  # of the response that is answered
    error: str = ""  # the proxy's words, where it refuses that response

    @property
    def n_versions(self) -> int:
        """How many versions it names, without reading them."""
        n_entries: int | None = getattr(self.initial_versions, "n_entries", None)
        return len(self.initial_versions) if n_entries is None else n_entries


class Response(msgspec.Struct, frozen=True):
    """One response: what is new or changed, and the names of what is not there any more."""

    type: str
    nonce: str
    pieces: tuple[XdsResource, ...] = ()
    removed: tuple[str, ...] = ()
    step: Step | None = None  # where many proxies are told just these pieces
