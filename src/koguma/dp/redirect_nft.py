"""Redirect rules for nft: one table of our own, replaced or removed as a whole."""

from collections.abc import Iterator
from typing import Final, assert_never

from koguma.dp.redirect_rules import (
    Chain,
    ConntrackZone,
    NetfilterHook,
    NumberRange,
    PacketMatch,
    Pass,
    Redirect,
    RedirectRule,
    RedirectSettings,
    chains,
)

TABLE: Final = "inet koguma_transparent_proxy"

# One before the standard priority of NAT (-100), so that our rules come before those of a container runtime.
_HOOKS: Final = {
    NetfilterHook.PREROUTING: "type nat hook prerouting priority -101; policy accept;",
    NetfilterHook.OUTPUT: "type nat hook output priority -101; policy accept;",
    NetfilterHook.OUTPUT_RAW: "type filter hook output priority -300; policy accept;",
}


def text(of: RedirectSettings) -> str:
    """An nft script that replaces our table atomically."""
    lines = [*_deletion(), f"table {TABLE} {{"]
    for chain in chains(of):
        lines += _chain(chain)
    return "\n".join([*lines, "}", ""])


def removal() -> str:
    """An nft script that removes our table."""
    return "\n".join([*_deletion(), ""])


def _deletion() -> list[str]:
    """The table is created before it is deleted, because deleting a table that does not exist fails."""
    return [f"table {TABLE}", f"delete table {TABLE}"]


def _chain(chain: Chain) -> Iterator[str]:
    yield f"\tchain {chain.name} {{"
    yield f"\t\t{_HOOKS[chain.hook]}"
    for rule in chain.rules:
        yield "\t\t" + " ".join([*_conditions(rule.match), _verdict(rule)])
    yield "\t}"


def _conditions(match: PacketMatch) -> Iterator[str]:
    if match.is_ipv6:
        yield "meta nfproto ipv6"
    if match.is_not_syn:
        yield "tcp flags & (fin | syn | rst | ack) != syn"
    if match.is_forwarded:
        yield "fib daddr type != local"
    if match.leaves_by_loopback:
        yield 'oifname "lo"'
    if match.uid:
        yield f"meta skuid {_numbers(match.uid)}"
    if match.source:
        yield f"{_family(match.source)} saddr {match.source}"
    if match.target:
        yield f"{_family(match.target)} daddr {match.target}"
    if match.source_port:
        yield f"{match.protocol} sport {match.source_port}"
    if match.ports:
        yield f"{match.protocol} dport {_numbers(match.ports)}"
    elif match.protocol and not match.source_port and not match.is_not_syn:
        yield f"meta l4proto {match.protocol}"


def _verdict(rule: RedirectRule) -> str:
    match rule.verdict:
        case Pass():
            return "return"
        case Redirect(port):
            return f"redirect to :{port}"
        case ConntrackZone(number):
            return f"ct zone set {number}"
        case unknown:
            assert_never(unknown)


def _family(network: str) -> str:
    return "ip6" if ":" in network else "ip"


def _numbers(of: NumberRange) -> str:
    return str(of.first) if of.first == of.last else f"{of.first}-{of.last}"
