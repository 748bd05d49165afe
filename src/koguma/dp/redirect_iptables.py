"""Redirect rules for iptables and ip6tables: chains of our own, and a jump to each.

All commands for a family are one script for `iptables-restore --noflush`, which changes each table atomically
and leaves other chains alone. It needs the output of iptables-save, because a jump cannot be replaced, only
deleted and inserted again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

PREFIX: Final = "KOGUMA_"
TABLES: Final = (
    "raw",
    "nat",
)  # `raw`, which a kernel may lack, comes first, so that nothing is left half done

_HOOKS: Final[Mapping[NetfilterHook, tuple[str, str]]] = {
    NetfilterHook.PREROUTING: ("nat", "PREROUTING"),
    NetfilterHook.OUTPUT: ("nat", "OUTPUT"),
    NetfilterHook.OUTPUT_RAW: ("raw", "OUTPUT"),
}


def text(of: RedirectSettings, family: int, saved: str = "") -> str:
    """A script that replaces our rules for IPv4 or IPv6; `saved` is the output of iptables-save."""
    required = chains(of) if family == 4 or of.has_ipv6 else ()  # noqa: PLR2004 - IPv4
    return "".join(_table(table, required, family, saved) for table in TABLES)


def removal(saved: str) -> str:
    """A script that removes all our rules in `saved`; empty where there are none."""
    return "".join(_table(table, (), 4, saved) for table in TABLES)


def _table(table: str, required: Iterable[Chain], family: int, saved: str) -> str:
    new = [chain for chain in required if _HOOKS[chain.hook][0] == table]
    names = [_name(chain) for chain in new]
    installed, jumps = _installed(table, saved)
    if not new and not installed:
        return ""
    lines = [f"*{table}", *(f":{name} - [0:0]" for name in names)]
    lines += [f"-D {hook} -j {name}" for (hook, name), n_times in jumps.items() for _ in range(n_times)]
    lines += [f"-I {_HOOKS[chain.hook][1]} 1 -j {_name(chain)}" for chain in new]
    for chain in new:
        lines += _rules(chain, family)
    obsolete = [name for name in installed if name not in names]
    lines += [f"-F {name}" for name in obsolete] + [f"-X {name}" for name in obsolete]
    return "\n".join([*lines, "COMMIT", ""])


def _name(chain: Chain) -> str:
    return PREFIX + chain.name.upper()


def _installed(table: str, saved: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Our installed chains, and how often which built-in chain jumps to which of them."""
    names: list[str] = []
    jumps: Counter[tuple[str, str]] = Counter()
    current = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            current = line[1:].strip()
        elif current == table:
            match line.split():
                case [name, *_] if name.startswith(f":{PREFIX}"):
                    names.append(name[1:])
                case ["-A", hook, "-j", name] if name.startswith(PREFIX) and not hook.startswith(PREFIX):
                    jumps[hook, name] += 1
    return names, jumps


def _rules(chain: Chain, family: int) -> Iterator[str]:
    for rule in chain.rules:
        match = rule.match
        other_family = {_family(network) for network in (match.source, match.target) if network} - {family}
        if not other_family and not match.is_ipv6:
            yield " ".join(["-A", _name(chain), *_conditions(match), "-j", _verdict(rule)])


def _conditions(match: PacketMatch) -> Iterator[str]:
    if match.source:
        yield f"-s {match.source}"
    if match.target:
        yield f"-d {match.target}"
    if match.leaves_by_loopback:
        yield "-o lo"
    if match.protocol:
        yield f"-p {match.protocol}"
    if match.is_not_syn:
        yield "! --syn"
    if match.source_port:
        yield f"--sport {match.source_port}"
    if match.ports:
        yield f"--dport {_numbers(match.ports, ':')}"
    if match.is_forwarded:
        yield "-m addrtype ! --dst-type LOCAL"
    if match.uid:
        yield f"-m owner --uid-owner {_numbers(match.uid, '-')}"


def _verdict(rule: RedirectRule) -> str:
    match rule.verdict:
        case Pass():
            return "RETURN"
        case Redirect(port):
            return f"REDIRECT --to-ports {port}"
        case ConntrackZone(number):
            return f"CT --zone {number}"
        case unknown:
            assert_never(unknown)


def _family(network: str) -> int:
    return 6 if ":" in network else 4


def _numbers(of: NumberRange, to: str) -> str:
    return str(of.first) if of.first == of.last else f"{of.first}{to}{of.last}"
