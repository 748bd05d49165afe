"""The guide to HTTPS from outside, run as it is written; with other ports, since others may use these."""

import os
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane import LocalControlPlane
from tests.debian import program
from tests.kubectl import tool
from tests.ports import free_port
from tests.test_kubectl_guide import see, steps
from tests.traffic.gateway_clients import is_whole
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "https-from-outside.md"
PORTS = re.compile(r"\b(8000|8001|8080|8443|9443)\b")
# In a container there may be nobody but root; and one guide needs no second core.
FLAGS = "--concurrency 1 --drain-time 1s" + (" --user root" if os.geteuid() == 0 else "")


class HttpsReader:
    """Somebody with the guide and a shell of his own."""

    def __init__(self, plane: LocalControlPlane, home: Path) -> None:
        self.home = home
        self._ports = {}
        self._started = []
        bin_ = home / "bin"
        bin_.mkdir()
        (bin_ / "kubectl").symlink_to(tool.on_path() or tool.packaged())
        (bin_ / "openssl").symlink_to(program("openssl", "openssl"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KOGUMA_", "KUBE"))}
        self._variables = {
            **kept,
            "PATH": f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
            "KOGUMA_ADDRESS": plane.address,
            "KOGUMA_DATA_DIR": str(plane.data_dir),
            "KOGUMA_CP_ADDRESS": f"https://127.0.0.1:{plane.plane.ports['dp']}",
        }

    def other_ports(self, text: str) -> str:
        return PORTS.sub(lambda found: str(self._ports.setdefault(found[1], free_port())), text)

    def run(self, command: str, shown: str) -> None:
        """Do what a line of the guide says."""
        if command.endswith(" &"):
            self.start(command.removesuffix(" &"))
        elif command.startswith("curl "):
            printed = until(lambda: self.curl(command), command)
            see(shown, printed, (command, printed))
        else:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=self.home,
                env=self._variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            said = (command, done.stdout, done.stderr)
            assert done.returncode == 0, said
            assert "warning" not in done.stderr, said
            see(shown, done.stdout + done.stderr, said)

    def start(self, command: str) -> None:
        """Start something in the background; a proxy says when it is ready."""
        log = self.home / f"{len(self._started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", "exec " + command.replace("dp run", f"dp run {FLAGS}")],
                cwd=self.home,
                env=self._variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        if "dp run" in command:
            until(lambda: "is ready" in log.read_text() or process.poll() is not None, command)
        assert process.poll() is None, log.read_text()

    def curl(self, command: str) -> str:
        """What a reader's curl prints; this machine may have none. Empty while nobody answers."""
        scheme, host, port = re.search(r"(https?)://([^:/]+):(\d+)/", command).groups()
        try:
            with self._connected(command, scheme, host, int(port)) as connection:
                connection.sendall(f"GET / HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
                received = b""
                while not is_whole(received) and (data := connection.recv(65536)):
                    received += data
        except OSError:
            return ""
        head, _, body = received.decode().partition("\r\n\r\n")
        if head.startswith("HTTP/1.1 503"):
            return ""  # endpoints come a moment after the listener
        return f"{head}\n\n{body}" if "curl -si" in command else body

    def _connected(self, command: str, scheme: str, host: str, port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), 60)
        if scheme == "http":
            return connection
        trusted = self.home / re.search(r"--cacert (\S+)", command)[1]
        with connection:  # closed where the handshake fails; else it is the secured one's
            context = ssl.create_default_context(cafile=trusted)
            return context.wrap_socket(connection, server_hostname=host)

    def end(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(60)


def test_every_step_of_the_guide_does_what_it_says(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("c")) as plane:
        reader = HttpsReader(plane, tmp_path_factory.mktemp("h"))
        n_commands = 0
        try:
            for name, text in steps(GUIDE):
                if name.startswith("$ "):
                    n_commands += 1
                    reader.run(reader.other_ports(name[2:]), reader.other_ports(text))
                else:
                    (reader.home / name).write_text(reader.other_ports(text))
        finally:
            reader.end()
    assert n_commands > 20
