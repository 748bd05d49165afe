"""IP range: addresses as users write them, one or many, as a network."""

import ipaddress
from typing import Final

IpRange = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where gateways of other meshes have their virtual addresses.
CROSS_MESH: Final = ipaddress.IPv4Network("244.0.0.0/8")


def parsed(type_: str, value: str) -> IpRange | None:
    """The addresses of a match of type IP (one address) or CIDR (a range such as 10.1.0.0/16).

    None for other types, and for what is no address. An address with a zone (`fe80::1%eth0`) means another
    machine on every machine, so it is none either.
    """
    if type_ not in ("IP", "CIDR") or ("/" in value) != (type_ == "CIDR") or "%" in value:
        return None
    try:
        return ipaddress.ip_network(value, strict=False)
    except ValueError:
        return None


def common(one: IpRange, other: IpRange) -> IpRange | None:
    """The addresses that two ranges have in common: the smaller one of them, or None."""
    if one.version != other.version or not one.overlaps(other):
        return None
    return max(one, other, key=lambda network: network.prefixlen)


def covers(outer: IpRange, inner: IpRange) -> bool:
    """Whether all addresses of a range are in another one."""
    return common(outer, inner) == inner


def text(addresses: IpRange) -> str:
    """A range for people: a single address has no prefix length."""
    is_one = addresses.prefixlen == addresses.max_prefixlen
    return str(addresses.network_address if is_one else addresses)
