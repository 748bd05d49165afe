"""Redirect rules: which traffic of a machine goes through its proxy, as plain data.

Pure: every decision and the order of decisions is here, once; `redirect_nft` and `redirect_iptables` only
render it. A chain is evaluated from top to bottom until a rule matches; a packet that no rule matches passes
unchanged.

         others ──▶ inbound ──▶ proxy ──▶ service ──▶ outbound ──▶ proxy ──▶ others
                                  └─ calls of the proxy itself are never redirected ─┘
"""

import ipaddress
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

import msgspec

INBOUND_PORT: Final = 15006
OUTBOUND_PORT: Final = 15001
DNS_PORT: Final = 15053

# The source addresses of the proxy's calls to its own service, by which rules recognise them (core/build).
OWN_CALLS: Final = ("127.0.0.6/32", "::6/128")
OWN_CALLS_IPV6: Final = OWN_CALLS[1]

_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_DNS: Final = 53
# A conntrack zone that no other program of the machine is likely to use.
_ZONE: Final = 15053


class NumberRange(NamedTuple):
    """Ports or uids from the first to the last, both included."""

    first: int
    last: int


class RedirectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is redirected to which port, and what is excluded."""

    proxy_uid: int
    inbound_port: int = INBOUND_PORT  # 0: inbound is not redirected
    outbound_port: int = OUTBOUND_PORT
    dns_port: int = DNS_PORT  # 0: DNS is not redirected
    dns_servers: tuple[str, ...] | None = None  # only queries to these; None: all queries
    has_dns_zone: bool = True
    not_inbound_ports: tuple[NumberRange, ...] = ()
    not_outbound_ports: tuple[NumberRange, ...] = ()
    not_outbound_networks: tuple[str, ...] = ()
    not_uids: tuple[NumberRange, ...] = ()
    has_ipv6: bool = True


class PacketMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a rule: a packet matches when all fields that are set hold for it."""

    is_ipv6: bool = False  # only set where no address tells the family
    protocol: str = ""
    is_not_syn: bool = False  # TCP of a connection that is older than our rules
    is_forwarded: bool = False  # not for an address of this machine
    leaves_by_loopback: bool = False
    uid: NumberRange | None = None
    source: str = ""
    target: str = ""
    source_port: int = 0
    ports: NumberRange | None = None


class Pass(msgspec.Struct, frozen=True):
    """The packet keeps its destination (RETURN)."""


class Redirect(msgspec.Struct, frozen=True):
    """The packet goes to a port of this machine (REDIRECT)."""

    port: int


class ConntrackZone(msgspec.Struct, frozen=True):
    """The packet's connection is tracked in this conntrack zone, apart from others with equal addresses."""

    number: int


class RedirectRule(msgspec.Struct, frozen=True):
    """A verdict for the packets that match."""

    match: PacketMatch
    verdict: Pass | Redirect | ConntrackZone


class NetfilterHook(Enum):
    """Where in the kernel's packet path a chain is evaluated; OUTPUT_RAW comes before connection tracking."""

    PREROUTING = "prerouting"
    OUTPUT = "output"
    OUTPUT_RAW = "output, raw"


class Chain(msgspec.Struct, frozen=True):
    """Rules that are evaluated in order."""

    name: str
    hook: NetfilterHook
    rules: tuple[RedirectRule, ...]


PASS: Final = Pass()


def chains(of: RedirectSettings) -> tuple[Chain, ...]:
    """All chains for the settings."""
    result = [Chain("outbound", NetfilterHook.OUTPUT, tuple(_outbound(of)))]
    if of.inbound_port:
        result.insert(0, Chain("inbound", NetfilterHook.PREROUTING, tuple(_inbound(of))))
    if of.dns_port and of.has_dns_zone:
        result.append(Chain("dns_zone", NetfilterHook.OUTPUT_RAW, tuple(_dns_zone(of))))
    return tuple(result)


def _passing(**match: object) -> RedirectRule:
    return RedirectRule(PacketMatch(**match), PASS)  # type: ignore[arg-type] # fields of PacketMatch


def _common(of: RedirectSettings) -> Iterator[RedirectRule]:
    if not of.has_ipv6:
        yield _passing(is_ipv6=True)
    # Without this, an open SSH session would break when connection tracking begins.
    yield _passing(protocol="tcp", is_not_syn=True)


def _inbound(of: RedirectSettings) -> Iterator[RedirectRule]:
    yield from _common(of)
    yield _passing(is_forwarded=True)
    yield from (_passing(protocol="tcp", ports=ports) for ports in merged(of.not_inbound_ports))
    yield RedirectRule(PacketMatch(protocol="tcp"), Redirect(of.inbound_port))


def _outbound(of: RedirectSettings) -> Iterator[RedirectRule]:
    yield from _common(of)
    yield from (_passing(uid=uids) for uids in merged(of.not_uids))
    yield from _of_proxy(of)
    yield from _dns(of, Redirect(of.dns_port), ("udp", "tcp"))
    yield _passing(leaves_by_loopback=True)  # the service calls itself
    yield from (_passing(protocol="tcp", ports=ports) for ports in merged(of.not_outbound_ports))
    yield from (_passing(target=network) for network in networks(of.not_outbound_networks))
    yield RedirectRule(PacketMatch(protocol="tcp"), Redirect(of.outbound_port))


def _of_proxy(of: RedirectSettings) -> Iterator[RedirectRule]:
    """The proxy's own calls are not redirected, except calls to this machine's service: those are inbound."""
    proxy = NumberRange(of.proxy_uid, of.proxy_uid)
    if of.inbound_port:
        yield from (_passing(leaves_by_loopback=True, uid=proxy, source=own) for own in OWN_CALLS)
        yield from (_passing(uid=proxy, target=loopback) for loopback in _LOOPBACK)
        not_redirected = chain(merged(of.not_inbound_ports), [NumberRange(_DNS, _DNS)] if of.dns_port else ())
        yield from (_passing(protocol="tcp", uid=proxy, ports=ports) for ports in not_redirected)
        to_itself = PacketMatch(protocol="tcp", leaves_by_loopback=True, uid=proxy)
        yield RedirectRule(to_itself, Redirect(of.inbound_port))
    yield _passing(uid=proxy)


def _dns(
    of: RedirectSettings, verdict: Redirect | ConntrackZone, protocols: Iterable[str]
) -> Iterator[RedirectRule]:
    """DNS queries that no earlier rule of the chain matched."""
    if not of.dns_port:
        return
    targets = [""] if of.dns_servers is None else networks(of.dns_servers)
    for protocol in protocols:
        for target in targets:
            yield RedirectRule(
                PacketMatch(protocol=protocol, target=target, ports=NumberRange(_DNS, _DNS)), verdict
            )


def _dns_zone(of: RedirectSettings) -> Iterator[RedirectRule]:
    """Redirected queries over UDP are tracked in their own conntrack zone.

    The kernel keeps the translation of a query for half a minute. If the proxy then queries the same name
    server from a port that the service has just used, the query would be redirected to the proxy itself.
    """
    if not of.has_ipv6:
        yield _passing(is_ipv6=True)
    answers = PacketMatch(protocol="udp", leaves_by_loopback=True, source_port=of.dns_port)
    yield RedirectRule(answers, ConntrackZone(_ZONE))
    yield from (_passing(uid=uids) for uids in merged(of.not_uids))
    yield _passing(uid=NumberRange(of.proxy_uid, of.proxy_uid))
    yield from _dns(of, ConntrackZone(_ZONE), ("udp",))


def merged(ranges: Iterable[NumberRange]) -> list[NumberRange]:
    """Ranges in order; overlapping and adjacent ones are merged."""
    result: list[NumberRange] = []
    for numbers in sorted(ranges):
        if result and numbers.first <= result[-1].last + 1:
            result[-1] = NumberRange(result[-1].first, max(result[-1].last, numbers.last))
        else:
            result.append(numbers)
    return result


def networks(texts: Iterable[str]) -> list[str]:
    """Addresses and networks as networks, in order and collapsed; IPv4 first."""
    parsed = [ipaddress.ip_network(text.partition("%")[0], strict=False) for text in texts]
    ipv4 = ipaddress.collapse_addresses(ip for ip in parsed if isinstance(ip, ipaddress.IPv4Network))
    ipv6 = ipaddress.collapse_addresses(ip for ip in parsed if isinstance(ip, ipaddress.IPv6Network))
    return [str(network) for network in (*ipv4, *ipv6)]
