"""Allowed hosts: which machines the control plane may call, as its operator says; none by default.

Objects of users name addresses that the control plane calls: webhooks, aggregated API servers. Without a
list, whoever may write such an object could reach whatever the control plane's machine can reach: its own
loopback, the metadata service of a cloud, machines behind a firewall. A name is never trusted for the
addresses of the machine itself or of its link, since who runs the DNS of that name chooses them.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NAME_LENGTH_MAX: Final = 253
_PORT_MAX: Final = 65535
_LOCALHOST: Final = "localhost"
_NETWORK_HINT: Final = (
    "write a host name, *.example.com, an address or a range as 10.1.0.0/16, with or without :PORT"
)

Address = IPv4Address | IPv6Address


class AllowedHost(msgspec.Struct, frozen=True):
    """A name (`*.` before it stands for all names below it) or a range of addresses, on a port or on any."""

    name: str = ""
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None

    def allows(self, host: str, address: Address, port: int) -> bool:
        """Whether it lets somebody call a host that has this address."""
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address in self.network
        return self._is_named(host) and (self.name == _LOCALHOST or not _is_own(address))

    def _is_named(self, host: str) -> bool:
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return host == self.name


class AllowedHosts(msgspec.Struct, frozen=True):
    """All that an operator allows."""

    hosts: tuple[AllowedHost, ...] = ()

    def addresses(self, host: str, port: int, resolved: Iterable[str]) -> list[str]:
        """Those addresses of a host that may be called."""
        name = host.rstrip(".").lower()
        return [
            text
            for text in resolved
            if any(allowed.allows(name, plain_address(text), port) for allowed in self.hosts)
        ]


def parse(text: str) -> AllowedHost:
    """An entry of the setting; ValueError says what it should look like."""
    host, port = _split(text.strip().lower())
    try:
        return AllowedHost(network=ip_network(host, strict=False), port=port)
    except ValueError:
        pass
    name = host.rstrip(".")
    if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH_MAX or "/" in name:
        raise ValueError(f'"{text}" is no host; {_NETWORK_HINT}')
    return AllowedHost(name, port=port)


def of(texts: Iterable[str]) -> AllowedHosts:
    """All entries of the setting."""
    return AllowedHosts(tuple(map(parse, texts)))


def plain_address(text: str) -> Address:
    """An address without a scope; an IPv4 address that is written as IPv6 is one of IPv4."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _split(text: str) -> tuple[str, int | None]:
    """Host and port; an IPv6 address with a port stands in brackets."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not is_bracketed):
        return text.strip("[]"), None
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _PORT_MAX:
        raise ValueError(f'"{text}" has no port from 1 to {_PORT_MAX}; {_NETWORK_HINT}')
    return host.strip("[]"), int(port)


def _is_own(address: Address) -> bool:
    """Whether only a machine itself or its link uses it, so that no name of others should lead there."""
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address.is_reserved
    )
