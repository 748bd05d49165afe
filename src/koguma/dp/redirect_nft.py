"""Redirect rules for nft: one table of our own, replaced or removed as a whole."""

from collections.abc import Iterator
from typing import Final, assert_never

from koguma.dp.redirect_rules import Chain, Hook, Match, Pass, Range, Redirect, Rule, Settings, Zone, chains

TABLE: Final = "inet koguma_transparent_proxy"

# One before the usual place of redirections, so that what a container runtime redirects there is found last.
_HOOKS: Final = {
    Hook.ARRIVING: "type nat hook prerouting priority -101; policy accept;",
    Hook.LEAVING: "type nat hook output priority -101; policy accept;",
    Hook.LEAVING_UNTRACKED: "type filter hook output priority -300; policy accept;",
}


def text(of: Settings) -> str:
    """A script that puts the rules in place of whatever rules of ours there were, at once."""
    lines = [*_emptied(), f"table {TABLE} {{"]
    for chain in chains(of):
        lines += _chain(chain)
    return "\n".join([*lines, "}", ""])


def removal() -> str:
    """A script that removes all that is ours."""
    return "\n".join([*_emptied(), ""])


def _emptied() -> list[str]:
    """Named before it is deleted, because deleting what is not there fails."""
    return [f"table {TABLE}", f"delete table {TABLE}"]


def _chain(chain: Chain) -> Iterator[str]:
    yield f"\tchain {chain.name} {{"
    yield f"\t\t{_HOOKS[chain.hook]}"
    for rule in chain.rules:
        yield "\t\t" + " ".join([*_words(rule.match), _verdict(rule)])
    yield "\t}"


def _words(match: Match) -> Iterator[str]:
    if match.is_ipv6:
        yield "meta nfproto ipv6"
    if match.opens_nothing:
        yield "tcp flags & (fin | syn | rst | ack) != syn"
    if match.is_for_others:
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
    elif match.protocol and not match.source_port and not match.opens_nothing:
        yield f"meta l4proto {match.protocol}"


def _verdict(rule: Rule) -> str:
    match rule.verdict:
        case Pass():
            return "return"
        case Redirect(port):
            return f"redirect to :{port}"
        case Zone(number):
            return f"ct zone set {number}"
        case unknown:
            assert_never(unknown)


def _family(network: str) -> str:
    return "ip6" if ":" in network else "ip"


def _numbers(of: Range) -> str:
    return str(of.first) if of.first == of.last else f"{of.first}-{of.last}"
