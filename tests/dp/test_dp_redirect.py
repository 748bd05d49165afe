"""Redirection: which packets go where, how it is spelled, and what the command says."""

import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koguma.cli import main
from koguma.dp import redirect, redirect_iptables, redirect_nft, redirect_rules
from koguma.dp.redirect_rules import (
    ConntrackZone,
    NetfilterHook,
    NumberRange,
    PacketMatch,
    Pass,
    Redirect,
    RedirectSettings,
)
from tests.live_mesh import KOGUMA

FOLDER = Path(__file__).with_name("redirect_cases")
CASES = sorted(FOLDER.glob("*.txt"))
PROXY = 5678


def parts_of(path: Path) -> dict[str, str]:
    """A case by heading; what stands above all headings is the settings."""
    first, *rest = ("---- settings\n" + path.read_text()).removeprefix("---- ").split("\n---- ")
    heads = (part.partition("\n") for part in (first, *rest))
    return {name: text.strip("\n") + "\n" for name, _, text in heads}


def rendered(parts: dict[str, str]) -> dict[str, str]:
    of = msgspec.convert(yaml.safe_load(parts["settings"]), RedirectSettings)
    saved = parts.get("saved", "")
    spelled = {
        "nft": redirect_nft.text(of),
        "iptables": redirect_iptables.text(of, 4, saved),
        "ip6tables": redirect_iptables.text(of, 6),
        "iptables removal": redirect_iptables.removal(saved),
    }
    return {name: text for name, text in spelled.items() if text}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_rules_are_spelled_as_their_case_says(path: Path):
    parts = parts_of(path)
    given_parts = {name: text for name, text in parts.items() if name in ("settings", "saved")}
    result = rendered(parts)
    if os.environ.get("KOGUMA_GOLDEN") == "rewrite":
        sections = [parts["settings"], *(f"---- {name}\n{text}" for name, text in [*given_parts.items()][1:])]
        path.write_text("".join([*sections, *(f"---- {name}\n{text}" for name, text in result.items())]))
        return
    assert {**given_parts, **result} == parts


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """The first packet of a connection."""

    hook: NetfilterHook
    to: str = "203.0.113.7"
    port: int = 80
    protocol: str = "tcp"
    uid: int = 0
    source: str = ""
    source_port: int = 40000
    is_local: bool = True  # for this machine, on arrival
    by_loopback: bool = False
    opens: bool = True

    def fits(self, match: PacketMatch) -> bool:
        """Whether a rule is about this packet."""
        is_six = ":" in self.to
        return not any(
            (
                match.is_ipv6 and not is_six,
                match.protocol not in ("", self.protocol),
                match.is_not_syn and self.opens,
                match.is_forwarded and self.is_local,
                match.leaves_by_loopback and not self.by_loopback,
                match.uid and not match.uid.first <= self.uid <= match.uid.last,
                match.source and (not self.source or ip_address(self.source) not in ip_network(match.source)),
                match.target and ip_address(self.to) not in ip_network(match.target),
                match.source_port not in (0, self.source_port),
                match.ports and not match.ports.first <= self.port <= match.ports.last,
            )
        )

    def verdict(self, of: RedirectSettings) -> Pass | Redirect:
        """What becomes of it."""
        for chain in redirect_rules.chains(of):
            for rule in chain.rules if chain.hook is self.hook else ():
                if self.fits(rule.match) and not isinstance(rule.verdict, ConntrackZone):
                    return rule.verdict
        return Pass()

    def zones(self, of: RedirectSettings) -> list[int]:
        """The zones that it is tracked in."""
        result = []
        for chain in redirect_rules.chains(of):
            for rule in chain.rules if chain.hook is NetfilterHook.OUTPUT_RAW else ():
                if self.fits(rule.match):
                    if isinstance(rule.verdict, Pass):
                        return result
                    result.append(rule.verdict.number)
        return result


def arriving(**more: Any) -> Packet:
    return Packet(hook=NetfilterHook.PREROUTING, **more)


def leaving(**more: Any) -> Packet:
    return Packet(hook=NetfilterHook.OUTPUT, **more)


USUAL = RedirectSettings(
    proxy_uid=PROXY,
    dns_servers=("192.0.2.53", "127.0.0.53"),
    not_inbound_ports=(NumberRange(22, 22),),
    not_outbound_ports=(NumberRange(3306, 3310),),
    not_outbound_networks=("10.0.0.0/8", "fd00::/8"),
    not_uids=(NumberRange(1000, 1999),),
)
INBOUND, OUTBOUND, DNS = Redirect(15006), Redirect(15001), Redirect(15053)


@pytest.mark.parametrize(
    ("packet", "verdict"),
    [
        (arriving(port=8080), INBOUND),
        (arriving(port=8080, to="2001:db8::7"), INBOUND),
        (arriving(port=22), Pass()),
        (arriving(port=8080, is_local=False), Pass()),  # for a container behind this machine
        (arriving(port=8080, opens=False), Pass()),  # a session that is older than the rules
        (arriving(protocol="udp", port=53), Pass()),
        (leaving(), OUTBOUND),
        (leaving(to="2001:db8::7"), OUTBOUND),
        (leaving(to="241.0.0.1"), OUTBOUND),  # a service's own address
        (leaving(port=3306), Pass()),
        (leaving(port=3311), OUTBOUND),
        (leaving(to="10.1.2.3"), Pass()),
        (leaving(to="fd00::1"), Pass()),
        (leaving(uid=1500), Pass()),
        (leaving(opens=False), Pass()),
        (leaving(protocol="udp", port=443), Pass()),
        (leaving(uid=PROXY), Pass()),
        (leaving(to="127.0.0.1", by_loopback=True), Pass()),
        (leaving(to="192.0.2.1", port=8080, by_loopback=True), Pass()),  # the service calls itself
        # The proxy calls this machine by its address: for somebody, so it arrives as any call does ...
        (leaving(uid=PROXY, to="192.0.2.1", port=8080, by_loopback=True), INBOUND),
        (leaving(uid=PROXY, to="2001:db8::7", port=8080, by_loopback=True), INBOUND),
        (leaving(uid=PROXY, to="192.0.2.1", port=22, by_loopback=True), Pass()),
        # ... but what it hands to the service has arrived already, and comes from an address of its own.
        (leaving(uid=PROXY, to="192.0.2.1", port=8080, by_loopback=True, source="127.0.0.6"), Pass()),
        (leaving(uid=PROXY, to="2001:db8::7", port=8080, by_loopback=True, source="::6"), Pass()),
        (leaving(uid=PROXY, to="127.0.0.1", port=8080, by_loopback=True), Pass()),
        (leaving(protocol="udp", to="192.0.2.53", port=53), DNS),
        (leaving(protocol="tcp", to="192.0.2.53", port=53), DNS),
        (leaving(protocol="udp", to="127.0.0.53", port=53, by_loopback=True), DNS),
        (leaving(protocol="udp", to="192.0.2.99", port=53), Pass()),  # what a local name server asks itself
        (leaving(protocol="udp", to="192.0.2.53", port=53, uid=PROXY), Pass()),
        (leaving(protocol="tcp", to="127.0.0.53", port=53, uid=PROXY, by_loopback=True), Pass()),
        (leaving(protocol="udp", to="192.0.2.53", port=53, uid=1500), Pass()),
    ],
    ids=str,
)
def test_a_packet_goes_where_it_should(packet, verdict):
    assert packet.verdict(USUAL) == verdict


def test_redirected_queries_and_their_answers_are_tracked_apart_from_those_of_the_proxy():
    query = leaving(protocol="udp", to="192.0.2.53", port=53)
    answer = leaving(
        protocol="udp", to="192.0.2.1", port=40000, source_port=15053, uid=PROXY, by_loopback=True
    )
    assert query.zones(USUAL) == answer.zones(USUAL) != []
    for other in (
        msgspec.structs.replace(query, uid=PROXY),
        msgspec.structs.replace(query, uid=1500),
        msgspec.structs.replace(query, to="192.0.2.99"),
        msgspec.structs.replace(query, protocol="tcp"),
    ):
        assert other.zones(USUAL) == []


def ranges(most: int) -> st.SearchStrategy[tuple[NumberRange, ...]]:
    numbers = st.integers(0, most)
    range_ = st.tuples(numbers, numbers).map(lambda pair: NumberRange(min(pair), max(pair)))
    return st.lists(range_, max_size=4).map(tuple)


@st.composite
def settings(draw: st.DrawFn) -> RedirectSettings:
    return RedirectSettings(
        proxy_uid=PROXY,
        inbound_port=draw(st.sampled_from((0, 15006))),
        dns_port=draw(st.sampled_from((0, 15053))),
        dns_servers=draw(st.sampled_from((None, ("192.0.2.53",), ("2001:db8::53",)))),
        not_inbound_ports=draw(ranges(65535)),
        not_outbound_ports=draw(ranges(65535)),
        not_outbound_networks=draw(st.sampled_from(((), ("10.0.0.0/8",), ("fd00::/8",)))),
        not_uids=draw(ranges(10_000)),
        has_ipv6=draw(st.booleans()),
    )


PACKETS = st.builds(
    leaving,
    to=st.sampled_from(("203.0.113.7", "10.1.2.3", "192.0.2.53", "2001:db8::53", "fd00::1")),
    port=st.integers(1, 65535) | st.just(53),
    protocol=st.sampled_from(("tcp", "udp")),
    uid=st.integers(0, 10_000),
    opens=st.booleans(),
)


@given(settings(), PACKETS)
def test_what_the_proxy_sends_away_is_never_redirected(of, packet):
    assert msgspec.structs.replace(packet, uid=PROXY).verdict(of) == Pass()


@given(settings(), PACKETS)
def test_what_is_excluded_is_not_redirected_and_all_other_tcp_is(of, packet):
    is_query = packet.port == 53 and of.dns_port and (of.dns_servers is None or packet.to in of.dns_servers)
    is_excluded = any(
        (
            ":" in packet.to and not of.has_ipv6,
            packet.protocol == "tcp" and not packet.opens,
            packet.uid == PROXY,
            any(each.first <= packet.uid <= each.last for each in of.not_uids),
            not is_query and packet.protocol == "udp",
            not is_query and any(each.first <= packet.port <= each.last for each in of.not_outbound_ports),
            not is_query
            and any(ip_address(packet.to) in ip_network(each) for each in of.not_outbound_networks),
        )
    )
    expected = Pass() if is_excluded else Redirect(of.dns_port if is_query else of.outbound_port)
    assert packet.verdict(of) == expected


@given(settings())
def test_what_is_spelled_is_removed_again_and_nothing_else(of):
    """What iptables-save would say after an installation is enough to find all of it."""
    saved = redirect_iptables.text(of, 4).replace("-I OUTPUT 1 ", "-A OUTPUT ")
    saved = saved.replace("-I PREROUTING 1 ", "-A PREROUTING ")
    removal = redirect_iptables.removal(saved)
    chains = [line.split()[0][1:] for line in saved.splitlines() if line.startswith(":")]
    assert sorted(line[3:] for line in removal.splitlines() if line.startswith("-X ")) == sorted(chains)
    assert removal.count("-D ") == len(chains)
    assert redirect_iptables.removal("*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j DOCKER\nCOMMIT\n") == ""


def installing(*words: str) -> list[str]:
    return ["dp", "install", "transparent-proxy", *words]


@pytest.mark.parametrize(
    ("backend", "first", "words"),
    [
        ("nft", "# nft -f -", ("table inet koguma_transparent_proxy {", "redirect to :15001")),
        ("iptables", "# iptables-restore --noflush --wait 5", ("# ip6tables-restore", "--to-ports 15006")),
        ("iptables-legacy", "# iptables-legacy-restore --noflush --wait 5", ("# ip6tables-legacy-restore",)),
    ],
)
def test_a_dry_run_prints_the_rules(backend, first, words, capsys, monkeypatch):
    monkeypatch.setattr("koguma.dp.machine.has_ipv6", lambda: True)
    assert main(installing("--uid", "5678", "--backend", backend, "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ip -6 address replace ::6/128 dev lo preferred_lft 0\n" + first)
    for each in words:
        assert each in shown


def test_a_machine_without_ipv6_is_told_so(capsys, monkeypatch):
    monkeypatch.setattr("koguma.dp.machine.has_ipv6", lambda: False)
    assert main(installing("--uid", "5678", "--backend", "nft", "--dry-run")) == 0
    shown = capsys.readouterr()
    assert "this machine has no IPv6" in shown.err
    assert "meta nfproto ipv6 return" in shown.out
    assert "ip -6" not in shown.out


@pytest.mark.parametrize(
    ("resolv_conf", "servers"),
    [
        ("nameserver 192.0.2.53\nnameserver 2001:db8::53\n", ["192.0.2.53", "2001:db8::53"]),
        # What a name server on this machine asks others has to reach them.
        ("nameserver 127.0.0.53\nnameserver 192.0.2.53\n", ["127.0.0.53"]),
        ("", ["127.0.0.1"]),
    ],
)
def test_queries_to_the_machines_name_servers_are_redirected(resolv_conf, servers, capsys, monkeypatch):
    monkeypatch.setattr("koguma.dp.machine.resolv_conf", lambda: resolv_conf)
    monkeypatch.setattr("koguma.dp.machine.has_ipv6", lambda: True)
    assert main(installing("--uid", "5678", "--backend", "nft", "--dry-run")) == 0
    shown = capsys.readouterr().out
    result = [line.split()[2] for line in shown.splitlines() if "udp dport 53 redirect" in line]
    assert [network.partition("/")[0] for network in result] == servers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--uid", "root"), '"root" must be a number from 0'),
        (("--kuma-dp-user", "nobody-here"), '"nobody-here" is no user of this machine'),
        (("--kuma-dp-user", "0", "--uid", "1"), "--kuma-dp-user is uid 0, and --uid is 1"),
        (("--exclude-inbound-ports", "ssh"), "must be a list such as 22,9000-9100: 'ssh' is not a port"),
        (("--exclude-inbound-ports", "9100-9000"), "must be within 1 to 65535, in order; 9100-9000 is not"),
        (("--exclude-outbound-ports", "0"), "must be within 1 to 65535"),
        (("--exclude-outbound-ips", "example.com"), "'example.com' is no address"),
        (("--exclude-outbound-uids", "nobody-here"), "is no user of this machine"),
        (("--dns-port", "0"), "must be a port from 1 to 65535"),
        (("--backend", "pf"), "'pf' is not one of"),
    ],
)
def test_wrong_words_are_told(words, message, capsys):
    assert main(installing("--dry-run", "--uid", "5678", *words)) == 2
    assert message in capsys.readouterr().err


def test_the_proxy_has_to_be_named(capsys, monkeypatch):
    monkeypatch.setattr("koguma.cli.dp_install._USERS", ("nobody-here",))
    assert main(installing("--dry-run")) == 2
    stderr = capsys.readouterr().err
    assert "say as whom the proxy runs, with --kuma-dp-user or --uid" in stderr
    assert "useradd --system" in stderr


@pytest.fixture
def bare_machine(tmp_path, monkeypatch) -> Iterator[Path]:
    """A machine on which we may do everything, with no program but those that a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redirect, "_SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(redirect, "_require_net_admin", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "neither nft nor iptables is on this machine; install it, for example with `apt-get install nf"),
        (("--backend", "iptables"), "iptables is not on this machine; install it, for example with `apt-get"),
    ],
)
def test_what_is_missing_is_named(words, message, bare_machine, capsys):
    assert main(installing("--uid", "5678", *words)) == 1
    assert message in capsys.readouterr().err
    assert main(["dp", "uninstall", "transparent-proxy"]) == 1


def put(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_what_the_kernel_refuses_is_told_in_its_words_and_nothing_is_changed(bare_machine, capsys):
    put(bare_machine, "nft", f'echo "$@" >> {bare_machine}/log; echo "Error: no such thing" >&2; exit 1')
    assert main(installing("--uid", "5678", "--ip-family", "ipv4")) == 1
    assert "`nft -c -f -` failed: Error: no such thing" in capsys.readouterr().err
    assert (bare_machine / "log").read_text() == "-c -f -\n"


@pytest.mark.parametrize(("programs", "chosen"), [(("nft", "iptables"), "nft"), (("iptables",), "iptables")])
def test_nft_is_taken_if_it_is_there(programs, chosen, bare_machine, capsys):
    for program in (*programs, "iptables-restore", "ip6tables-restore", "iptables-save", "ip6tables-save"):
        put(bare_machine, program, "exit 0")
    assert main(installing("--uid", "5678", "--ip-family", "ipv4")) == 0
    assert f"made with {chosen};" in capsys.readouterr().out


def test_without_the_power_nothing_is_tried():
    refused = subprocess.run(
        [*_without_power(), KOGUMA, *installing("--uid", "5678")], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "not allowed to change how the kernel redirects traffic: run it as root" in refused.stderr


def _without_power() -> list[str]:
    """What is written before a command so that even root may not change the network."""
    return ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"] if os.geteuid() == 0 else []
