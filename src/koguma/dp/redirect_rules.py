"""Redirect rules: which traffic of a machine goes through its proxy, as plain data.

Pure, and written once: every decision and the order of decisions stands here; `redirect_nft` and
`redirect_iptables` only spell it. A chain is read from top to bottom until a rule ends it, and what reaches
its end passes untouched.

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

# Where the proxy's calls to its own service come from, so that they are told from all others (core/build).
OWN_CALLS: Final = ("127.0.0.6/32", "::6/128")
OWN_CALLS_IPV6: Final = OWN_CALLS[1]

_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_DNS: Final = 53
# Any number that nobody else on the machine uses for a zone of connection tracking.
_ZONE: Final = 15053


class Range(NamedTuple):
    """Numbers from the first to the last, both included."""

    first: int
    last: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is redirected where, and what is not."""

    proxy_uid: int
    inbound_port: int = INBOUND_PORT  # 0: inbound is not redirected
    outbound_port: int = OUTBOUND_PORT
    dns_port: int = DNS_PORT  # 0: DNS is not redirected
    dns_servers: tuple[str, ...] | None = None  # only queries to these; None: all queries
    has_dns_zone: bool = True
    not_inbound_ports: tuple[Range, ...] = ()
    not_outbound_ports: tuple[Range, ...] = ()
    not_outbound_networks: tuple[str, ...] = ()
    not_uids: tuple[Range, ...] = ()
    has_ipv6: bool = True


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Which packets a rule is about: those for which everything that is said here is true."""

    is_ipv6: bool = False  # said only where nothing else tells the family
    protocol: str = ""
    opens_nothing: bool = False  # TCP that belongs to a connection which is older than our rules
    is_for_others: bool = False  # only passes through this machine
    leaves_by_loopback: bool = False
    uid: Range | None = None
    source: str = ""
    target: str = ""
    source_port: int = 0
    ports: Range | None = None


class Pass(msgspec.Struct, frozen=True):
    """The packet goes where it was going."""


class Redirect(msgspec.Struct, frozen=True):
    """The packet goes to a port of this machine."""

    port: int


class Zone(msgspec.Struct, frozen=True):
    """The packet's connection is tracked apart from others with equal addresses and ports."""

    number: int


class Rule(msgspec.Struct, frozen=True):
    """What becomes of some packets."""

    match: Match
    verdict: Pass | Redirect | Zone


class Hook(Enum):
    """Where in the kernel a chain is asked."""

    ARRIVING = "arriving"
    LEAVING = "leaving"
    LEAVING_UNTRACKED = "leaving, not yet tracked"


class Chain(msgspec.Struct, frozen=True):
    """Rules that are read in order."""

    name: str
    hook: Hook
    rules: tuple[Rule, ...]


PASS: Final = Pass()


def chains(of: Settings) -> tuple[Chain, ...]:
    """All chains that the settings ask for."""
    found = [Chain("outbound", Hook.LEAVING, tuple(_outbound(of)))]
    if of.inbound_port:
        found.insert(0, Chain("inbound", Hook.ARRIVING, tuple(_inbound(of))))
    if of.dns_port and of.has_dns_zone:
        found.append(Chain("dns_zone", Hook.LEAVING_UNTRACKED, tuple(_dns_zone(of))))
    return tuple(found)


def _passing(**match: object) -> Rule:
    return Rule(Match(**match), PASS)  # type: ignore[arg-type] # as the caller names them


def _common(of: Settings) -> Iterator[Rule]:
    if not of.has_ipv6:
        yield _passing(is_ipv6=True)
    # Without this an open SSH session would end here when connections begin to be tracked.
    yield _passing(protocol="tcp", opens_nothing=True)


def _inbound(of: Settings) -> Iterator[Rule]:
    yield from _common(of)
    yield _passing(is_for_others=True)
    yield from (_passing(protocol="tcp", ports=ports) for ports in merged(of.not_inbound_ports))
    yield Rule(Match(protocol="tcp"), Redirect(of.inbound_port))


def _outbound(of: Settings) -> Iterator[Rule]:
    yield from _common(of)
    yield from (_passing(uid=uids) for uids in merged(of.not_uids))
    yield from _of_proxy(of)
    yield from _dns(of, Redirect(of.dns_port), ("udp", "tcp"))
    yield _passing(leaves_by_loopback=True)  # the service calls itself
    yield from (_passing(protocol="tcp", ports=ports) for ports in merged(of.not_outbound_ports))
    yield from (_passing(target=network) for network in networks(of.not_outbound_networks))
    yield Rule(Match(protocol="tcp"), Redirect(of.outbound_port))


def _of_proxy(of: Settings) -> Iterator[Rule]:
    """The proxy calls whom it wants; but its call to this very machine arrives like anybody else's."""
    proxy = Range(of.proxy_uid, of.proxy_uid)
    if of.inbound_port:
        yield from (_passing(leaves_by_loopback=True, uid=proxy, source=own) for own in OWN_CALLS)
        yield from (_passing(uid=proxy, target=loopback) for loopback in _LOOPBACK)
        not_redirected = chain(merged(of.not_inbound_ports), [Range(_DNS, _DNS)] if of.dns_port else ())
        yield from (_passing(protocol="tcp", uid=proxy, ports=ports) for ports in not_redirected)
        to_itself = Match(protocol="tcp", leaves_by_loopback=True, uid=proxy)
        yield Rule(to_itself, Redirect(of.inbound_port))
    yield _passing(uid=proxy)


def _dns(of: Settings, verdict: Redirect | Zone, protocols: Iterable[str]) -> Iterator[Rule]:
    """Queries, of everybody for whom no rule above said otherwise."""
    if not of.dns_port:
        return
    targets = [""] if of.dns_servers is None else networks(of.dns_servers)
    for protocol in protocols:
        for target in targets:
            yield Rule(Match(protocol=protocol, target=target, ports=Range(_DNS, _DNS)), verdict)


def _dns_zone(of: Settings) -> Iterator[Rule]:
    """Redirected queries over UDP have a zone of their own.

    The kernel remembers where it sent a query for half a minute. If the proxy then asks the same name server
    from a port that the service has just used, it would be sent to itself.
    """
    if not of.has_ipv6:
        yield _passing(is_ipv6=True)
    answers = Match(protocol="udp", leaves_by_loopback=True, source_port=of.dns_port)
    yield Rule(answers, Zone(_ZONE))
    yield from (_passing(uid=uids) for uids in merged(of.not_uids))
    yield _passing(uid=Range(of.proxy_uid, of.proxy_uid))
    yield from _dns(of, Zone(_ZONE), ("udp",))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, those that meet made one."""
    found: list[Range] = []
    for each in sorted(ranges):
        if found and each.first <= found[-1].last + 1:
            found[-1] = Range(found[-1].first, max(found[-1].last, each.last))
        else:
            found.append(each)
    return found


def networks(texts: Iterable[str]) -> list[str]:
    """Addresses and networks as networks, in order, those within others left out; IPv4 first."""
    given = [ipaddress.ip_network(text.partition("%")[0], strict=False) for text in texts]
    four = ipaddress.collapse_addresses(each for each in given if isinstance(each, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(each for each in given if isinstance(each, ipaddress.IPv6Network))
    return [str(each) for each in (*four, *six)]
