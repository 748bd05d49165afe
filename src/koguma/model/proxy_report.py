"""Proxy report: what the control plane of a zone tells Global of its proxies, as a plain value."""

from collections.abc import Sequence
from typing import Final

import msgspec

from koguma.model.resource import Key

STATE_BYTES_MAX: Final = 16 * 1024


class ProxyReport(msgspec.Struct, frozen=True):
    """States of proxies that are new or changed, each as JSON, and proxies that are known no more."""

    revision: int  # of the zone's store: what its synced proxies have
    states: Sequence[tuple[Key, bytes]] = ()
    removed: Sequence[Key] = ()
