"""Addresses: where one endpoint of a service is called."""

import ipaddress
from functools import lru_cache

import msgspec

from koguma.core.world import Pairs


class Endpoint(msgspec.Struct, frozen=True, order=True):
    """One address of a service."""

    address: str
    port: int
    zone: str = ""
    tags: Pairs = ()
    host: str = ""  # for which requests to it are, whatever they named; empty: what they named


@lru_cache(maxsize=4096)
def is_ip(text: str) -> bool:
    """Whether a text is an address and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
