"""Redirect rules for iptables and ip6tables: chains of our own, and a jump to each.

All commands for a family are one script for `iptables-restore --noflush`, which changes each table at once
and leaves alone what is not named. What is there now has to be known, because a jump cannot be replaced, only
deleted and made again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, assert_never

from koguma.dp.redirect_rules import Chain, Hook, Match, Pass, Range, Redirect, Rule, Settings, Zone, chains

PREFIX: Final = "KOGUMA_"
TABLES: Final = ("raw", "nat")  # what a kernel may lack comes first, so that nothing is left half done

_HOOKS: Final[Mapping[Hook, tuple[str, str]]] = {
    Hook.ARRIVING: ("nat", "PREROUTING"),
    Hook.LEAVING: ("nat", "OUTPUT"),
    Hook.LEAVING_UNTRACKED: ("raw", "OUTPUT"),
}


def text(of: Settings, family: int, saved: str = "") -> str:
    """A script that puts the rules for IPv4 or IPv6 in place of ours in `saved`, what iptables-save says."""
    wanted = chains(of) if family == 4 or of.has_ipv6 else ()  # noqa: PLR2004 - IPv4
    return "".join(_table(table, wanted, family, saved) for table in TABLES)


def removal(saved: str) -> str:
    """A script that removes all that is ours in `saved`; empty where there is nothing."""
    return "".join(_table(table, (), 4, saved) for table in TABLES)


def _table(table: str, wanted: Iterable[Chain], family: int, saved: str) -> str:
    here = [chain for chain in wanted if _HOOKS[chain.hook][0] == table]
    names = [_name(chain) for chain in here]
    there, jumps = _ours(table, saved)
    if not here and not there:
        return ""
    lines = [f"*{table}", *(f":{name} - [0:0]" for name in names)]
    lines += [f"-D {hook} -j {name}" for (hook, name), n_times in jumps.items() for _ in range(n_times)]
    lines += [f"-I {_HOOKS[chain.hook][1]} 1 -j {_name(chain)}" for chain in here]
    for chain in here:
        lines += _rules(chain, family)
    gone = [name for name in there if name not in names]
    lines += [f"-F {name}" for name in gone] + [f"-X {name}" for name in gone]
    return "\n".join([*lines, "COMMIT", ""])


def _name(chain: Chain) -> str:
    return PREFIX + chain.name.upper()


def _ours(table: str, saved: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Our chains that are there, and which chain of others jumps to them how often."""
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
        other = {_family(network) for network in (match.source, match.target) if network} - {family}
        if not other and not match.is_ipv6:
            yield " ".join(["-A", _name(chain), *_words(match), "-j", _verdict(rule)])


def _words(match: Match) -> Iterator[str]:
    if match.source:
        yield f"-s {match.source}"
    if match.target:
        yield f"-d {match.target}"
    if match.leaves_by_loopback:
        yield "-o lo"
    if match.protocol:
        yield f"-p {match.protocol}"
    if match.opens_nothing:
        yield "! --syn"
    if match.source_port:
        yield f"--sport {match.source_port}"
    if match.ports:
        yield f"--dport {_numbers(match.ports, ':')}"
    if match.is_for_others:
        yield "-m addrtype ! --dst-type LOCAL"
    if match.uid:
        yield f"-m owner --uid-owner {_numbers(match.uid, '-')}"


def _verdict(rule: Rule) -> str:
    match rule.verdict:
        case Pass():
            return "RETURN"
        case Redirect(port):
            return f"REDIRECT --to-ports {port}"
        case Zone(number):
            return f"CT --zone {number}"
        case unknown:
            assert_never(unknown)


def _family(network: str) -> int:
    return 6 if ":" in network else 4


def _numbers(of: Range, to: str) -> str:
    return str(of.first) if of.first == of.last else f"{of.first}{to}{of.last}"
