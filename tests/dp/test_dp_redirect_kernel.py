"""Redirection in a real kernel, with each of the programs: who is redirected, and that nothing else changes.

hub ──── box, which has a service, and where the proxy would be something that says its name
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koguma.dp import redirect
from tests.live_mesh import KOGUMA
from tests.netns import Namespace, Network

pytestmark = pytest.mark.slow

PROXY, EXCLUDED = 5678, 4321
HUB, HUB6, BOX, BOX6 = "10.9.1.1", "fd09:1::1", "10.9.1.2", "fd09:1::2"
FAR = "10.9.7.1"  # of hub too, in a network that is excluded
WORDS = (
    *("--uid", str(PROXY), "--exclude-inbound-ports", "22", "--exclude-outbound-ports", "3306"),
    *("--exclude-outbound-cidrs", "10.9.7.0/24", "--exclude-outbound-uids", str(EXCLUDED)),
)
# A caller that keeps its connection while something happens.
KEPT = """
import http.client, sys
asked = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
for _ in range(2):
    asked.request("GET", "/")
    print(asked.getresponse().read().decode(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Iterator[tuple[Namespace, Namespace]]:
    with Network(tmp_path_factory.mktemp("redirect")) as network:
        hub, box = network.namespace("hub"), network.namespace("box")
        network.connect(hub, box, "10.9.1", "fd09:1")
        hub.run("ip", "address", "add", f"{FAR}/32", "dev", "lo")
        hub.start_service("outside", 80, 3306)
        hub.start_name_server("a.name", "192.0.2.1", HUB, HUB6)
        box.use_name_servers(HUB)
        box.start_service("service", 22, 8080)
        box.start_service("proxy", 15001, 15006, uid=PROXY)
        box.start_name_server("a.name", "192.0.2.2", "127.0.0.1", "::1", port=15053, uid=PROXY)
        others(box)
        yield hub, box


def rules(box: Namespace) -> str:
    """All that the kernel does with packets, however it was told; without counters and times."""
    programs = ("iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save")
    found = "".join(box.run(program).stdout for program in programs)
    found += box.run("nft", "list", "ruleset").stdout + box.run("ip", "address", "show", "dev", "lo").stdout
    return re.sub(r"^#.*\n|counter packets \d+ bytes \d+|\[\d+:\d+\]", "", found, flags=re.MULTILINE)


def others(box: Namespace) -> None:
    """Rules of somebody else, in every place where we write."""
    for program in ("iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy"):
        for table, chain in (("nat", "PREROUTING"), ("nat", "OUTPUT"), ("raw", "OUTPUT")):
            box.run(program, "-t", table, "-A", chain, "-p", "tcp", "--dport", "9999", "-j", "ACCEPT")
    box.run(
        "nft", "add table inet others; add chain inet others some { type filter hook output priority 0; }"
    )


def koguma(box: Namespace, *words: str) -> str:
    return box.run(KOGUMA, "dp", *words).stdout


def reached(machine: Namespace, host: str, port: int, uid: int = 0) -> tuple[str, int]:
    """Who answers a call, and on which of its ports."""
    answer = machine.get(host, port, uid=uid).json
    return answer["name"], answer["port"]


@pytest.mark.parametrize("backend", redirect.BACKENDS)
def test_all_goes_through_the_proxy_but_what_was_excluded(backend, machines):
    hub, box = machines
    before = rules(box)
    open_ = subprocess.Popen(
        hub.within(sys.executable, "-I", "-c", KEPT, BOX, "8080"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "service" in open_.stdout.readline()

    assert f"made with {backend};" in koguma(
        box, "install", "transparent-proxy", "--backend", backend, *WORDS
    )
    try:
        installed = rules(box)
        assert "service" in open_.communicate("\n\n", timeout=60)[0], "an open connection goes on"
        found = {
            "arrives": reached(hub, BOX, 8080),
            "arrives over IPv6": reached(hub, BOX6, 8080),
            "arrives at an excluded port": reached(hub, BOX, 22),
            "leaves": reached(box, HUB, 80),
            "leaves over IPv6": reached(box, HUB6, 80),
            "leaves for an excluded port": reached(box, HUB, 3306),
            "leaves for an excluded network": reached(box, FAR, 80),
            "leaves from an excluded user": reached(box, HUB, 80, uid=EXCLUDED),
            "the proxy calls": reached(box, HUB, 80, uid=PROXY),
            "the proxy calls over IPv6": reached(box, HUB6, 80, uid=PROXY),
            "the proxy calls its own machine": reached(box, BOX, 8080, uid=PROXY),
            "the service calls itself": reached(box, BOX, 8080),
            "the service calls itself on loopback": reached(box, "127.0.0.1", 8080),
        }
        assert found == {
            "arrives": ("proxy", 15006),
            "arrives over IPv6": ("proxy", 15006),
            "arrives at an excluded port": ("service", 22),
            "leaves": ("proxy", 15001),
            "leaves over IPv6": ("proxy", 15001),
            "leaves for an excluded port": ("outside", 3306),
            "leaves for an excluded network": ("outside", 80),
            "leaves from an excluded user": ("outside", 80),
            "the proxy calls": ("outside", 80),
            "the proxy calls over IPv6": ("outside", 80),
            "the proxy calls its own machine": ("proxy", 15006),
            "the service calls itself": ("service", 8080),
            "the service calls itself on loopback": ("service", 8080),
        }
        resolved = [box.resolve("a.name", uid=uid) for uid in (0, PROXY, EXCLUDED)]
        assert resolved == ["192.0.2.2", "192.0.2.1", "192.0.2.1"]

        koguma(box, "install", "transparent-proxy", "--backend", backend, *WORDS)
        assert rules(box) == installed, "installing twice is the same as once"
        would = koguma(box, "uninstall", "transparent-proxy", "--dry-run")
        assert rules(box) == installed
        assert would.startswith(f"# {'nft -f -' if backend == 'nft' else f'{backend}-restore --noflush'}")
    finally:
        assert koguma(box, "uninstall", "transparent-proxy") == "nothing is redirected any more\n"
    assert rules(box) == before
    assert reached(hub, BOX, 8080) == ("service", 8080)
    assert reached(box, HUB, 80) == ("outside", 80)
    assert box.resolve("a.name") == "192.0.2.1"
    assert koguma(box, "uninstall", "transparent-proxy") == "there was nothing to remove\n"


def test_another_program_takes_over_without_a_trace_of_the_first(machines):
    _, box = machines
    before = rules(box)
    for backend in ("iptables", "nft", "iptables-legacy", "nft"):
        koguma(box, "install", "transparent-proxy", "--backend", backend, *WORDS)
        found = rules(box)
        assert ("koguma_transparent_proxy" in found) == (backend == "nft")
        assert ("KOGUMA_OUTBOUND" in found) == (backend != "nft")
    koguma(box, "install", "transparent-proxy", "--ip-family", "ipv4", *WORDS)
    assert "inet6 ::6/128" not in rules(box)
    koguma(box, "uninstall", "transparent-proxy")
    assert rules(box) == before


def test_queries_over_ipv6_are_redirected_too(machines):
    _, box = machines
    box.use_name_servers(HUB6)
    koguma(box, "install", "transparent-proxy", *WORDS)
    assert [box.resolve("a.name", uid=uid) for uid in (0, PROXY)] == ["192.0.2.2", "192.0.2.1"]
    koguma(box, "uninstall", "transparent-proxy")
    box.use_name_servers(HUB)


def test_a_port_that_the_service_has_just_used_does_not_lead_the_proxy_to_itself(machines, tmp_path):
    """The kernel would remember where it sent the query of the service that came from the same port."""
    _, box = machines
    script = Path(tmp_path) / "ask.py"
    script.write_text(
        "import socket, sys\n"
        "asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "asked.bind(('0.0.0.0', 33333))\n"
        "asked.settimeout(3)\n"
        "asked.connect((sys.argv[1], 53))\n"
        "asked.send(bytes.fromhex('000101000001000000000000016104' + b'name'.hex() + '0000010001'))\n"
        "print(socket.inet_ntoa(asked.recv(512)[-4:]))\n"
    )
    script.chmod(0o644)
    koguma(box, "install", "transparent-proxy", *WORDS)
    found = [box.run(sys.executable, str(script), HUB, uid=uid).stdout.strip() for uid in (0, PROXY, 0)]
    koguma(box, "uninstall", "transparent-proxy")
    assert found == ["192.0.2.2", "192.0.2.1", "192.0.2.2"]
