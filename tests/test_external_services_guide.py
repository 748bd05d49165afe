"""The guide to external services, run as it is written: on a machine behind a real proxy, and on that of the
control plane, where everything outside of the mesh is too.

    web ──── hub
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.external_servers import AUTHORITY, made
from tests.hub_mesh import HUB, PROXY, HubMesh
from tests.live_mesh import BIN, KOGUMA
from tests.netns import Namespace, Network
from tests.test_kubectl_guide import BLOCKS
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "external-services.md"
SERVERS = ROOT / "tests" / "traffic" / "outside_servers.py"
SOCKET = "/run/vault/agent.sock"
BROKERS = ("b-1.eu-west-3.kafka.example", "b-2.eu-west-3.kafka.example")
CERTIFICATE = made("outside", ("api.partner.example", *BROKERS, "elsewhere.example"), AUTHORITY)
KEY, SECRET = "AKIDTHUMBNAILS", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
ARN = "arn:aws:lambda:us-west-2:123456789012:function:thumbnails"
LAMBDA = f"""
import threading
from tests.lambda_service import LambdaService
service = LambdaService({{"{KEY}": "{SECRET}"}}, None, ("{HUB}", 4566))
def answer(event):
    return 200, {{"statusCode": 200, "body": "the thumbnail of " + event["raw_path"]}}
service.functions = {{"{ARN}": answer}}
print("serves", flush=True)
threading.Event().wait()
"""


class Reader:
    """Somebody with the guide, on both machines."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.hub, self.web = network.namespace("hub"), network.namespace("web")
        self.directory = directory / "reader"
        self.directory.mkdir()
        network.connect(self.hub, self.web, "10.9.1", "fd09:1")
        for address in ("203.0.113.10/32", "203.0.113.11/32"):
            self.hub.run("ip", "address", "add", address, "dev", "lo")
        self.socket = network.home(PROXY) / "vault.sock"
        self._start_outside(directory / "outside")
        self.mesh = HubMesh(directory / "mesh", network, self.hub)
        self.mesh.start_control_plane()
        self.web.run(KOGUMA, "dp", "install", "transparent-proxy", "--uid", str(PROXY))
        web = ("--service", "web", "--address", "10.9.1.2", "--user", str(PROXY))
        proxy = self.mesh.proxy(self.web, "web-1", *web, uid=0)
        proxy.wait_for_output("is ready")

    def _start_outside(self, outside: Path) -> None:
        outside.mkdir()
        servers = [
            {"name": "partner", "protocol": "http", "port": 443, "certificate": "outside.pem"},
            {"name": "ledger", "protocol": "tcp", "port": 5432},
            {"name": "kafka", "protocol": "http", "port": 9092, "certificate": "outside.pem"},
            {"name": "vault-agent", "protocol": "http", "path": str(self.socket)},
        ]
        (outside / "servers.json").write_text(json.dumps(servers))
        (outside / "outside.pem").write_text(CERTIFICATE.pem + CERTIFICATE.key_pem)
        for name in ("partner-ca.pem", "kafka-ca.pem"):
            (self.directory / name).write_text(AUTHORITY.pem)
        keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        (self.directory / "credentials").write_text(f"[default]\n{keys}")
        self.hub.start("outside", sys.executable, str(SERVERS), str(outside), until_output="serves")
        self.hub.start("lambda", sys.executable, "-c", LAMBDA, until_output="serves")
        names = {"localstack.example": HUB, "elsewhere.example": HUB, **dict.fromkeys(BROKERS, HUB)}
        self.hub.start_name_server("api.partner.example", HUB, HUB, **names)
        self.web.use_name_servers(HUB)

    def run(self, machine: Namespace, command: str) -> subprocess.CompletedProcess[str]:
        """Type a command."""
        environment = {**self.mesh.environment, "PATH": f"{BIN}:{os.environ['PATH']}"}
        return subprocess.run(
            machine.within("bash", "-o", "pipefail", "-c", command),
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def follow(self, machine: str, command: str, shown: str) -> None:
        """Type a command until it does what the guide says: what was applied reaches proxies a bit later."""
        done: list[subprocess.CompletedProcess[str]] = []

        def works() -> bool:
            done.append(self.run(self.web if machine == "web" else self.hub, command))
            return done[-1].returncode == 0 and is_printed(shown, done[-1].stdout + done[-1].stderr)

        try:
            until(works, command)
        except AssertionError as error:
            raise AssertionError(done[-1]) from error


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    directory = tmp_path_factory.mktemp("guide")
    with Network(directory) as network:
        yield Reader(network, directory)


def steps() -> Iterator[tuple[str, str, str]]:
    """All of the guide in order: a machine, a command and what it prints; or a file to write."""
    for language, text in BLOCKS.findall(GUIDE.read_text()):
        if language == "yaml":
            yield "", text.partition("\n")[0].removeprefix("# "), text
        for machine, command, printed in re.findall(
            r"^(\w*)\$ (.*)\n((?:(?!\w*\$ ).*\n)*)", text, re.MULTILINE
        ):
            yield machine or "hub", command, printed


def is_printed(shown: str, printed: str) -> bool:
    """Whether all lines that the guide shows are printed, in order; dots stand for anything."""
    lines = iter(printed.splitlines())
    patterns = (re.escape(line).replace(r"\.\.\.", ".*") for line in shown.splitlines() if line.strip())
    return all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns)


def test_every_block_of_the_guide_does_what_it_says(reader: Reader):
    calls = []
    for machine, command, text in steps():
        if not machine:
            (reader.directory / command).write_text(text.replace(SOCKET, str(reader.socket)))
            continue
        calls.append(machine)
        reader.follow(machine, command, text)
    assert (calls.count("hub"), calls.count("web")) == (11, 7)
