"""A mesh whose control plane runs on a machine of its own, for proxies on other machines (`tests.netns`)."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.http_client import Response
from tests.live_mesh import KOGUMA, LiveMesh, Process, Sidecar
from tests.netns import Namespace, Network, readable_by_others

PROXY = 5678
HUB = "10.9.1.1"


class HubMesh(LiveMesh):
    """A mesh whose control plane runs on hub."""

    def __init__(self, directory: Path, network: Network, hub: Namespace) -> None:
        super().__init__(directory)
        self._network, self._hub = network, hub

    def start_control_plane(self) -> None:
        words = (
            *("--api-port", str(self.api), "--api-tls-port", str(self.tls), "--log-format", "json"),
            *("--dp-port", str(self.dp), "--xds-port", str(self.xds)),
            *("--dp-host", "0.0.0.0", "--hostnames", HUB),
        )
        command = self._hub.within(KOGUMA, "cp", "run", *words)
        self.control_plane: Process = self._network.start_process("cp", command, self.environment)
        self.control_plane.wait_for_output("is ready: ")

    def request(self, method: str, path: str, body: Any = None, **_: str) -> Response:
        text = "" if body is None else json.dumps(body)
        answer = self._hub.call(method, "127.0.0.1", self.api, path, text)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status, headers, answer.text.encode())

    def koguma_on_hub(self, *words: str) -> str:
        """What a command of the operator prints on hub."""
        environment = [f"{name}={self.environment[name]}" for name in ("KOGUMA_ADDRESS", "KOGUMA_DATA_DIR")]
        return self._hub.run("env", *environment, KOGUMA, *words, check=False).stdout

    def egress_on_hub(self) -> Sidecar:
        """Run a zone egress on hub."""
        answer = self.request("POST", "/tokens/zone", {"zone": "default", "scope": ["egress"]})
        home = self._network.home(0)
        (home / "token").touch(0o600)
        (home / "token").write_text(answer.text)
        words = (
            *("--proxy-type", "egress", "--name", "egress-1", "--address", HUB, "--port", "10002"),
            *(
                "--cp-address",
                f"https://{HUB}:{self.dp}",
                "--ca-cert-file",
                str(self.directory / "cp" / "ca.pem"),
            ),
            *("--dataplane-token-file", str(home / "token"), "--workdir", str(home / "w")),
            *("--concurrency", "1", "--drain-time", "5s"),
        )
        command = self._hub.within(KOGUMA, "dp", "run", *words)
        egress = self._network.start_process("egress-1", command, self.environment, Sidecar)
        egress.workdir = home / "w"
        egress.wait_for_output("is ready")
        return egress

    def proxy(
        self, machine: Namespace, name: str, *flags: str, uid: int = PROXY, transparent: bool = True
    ) -> Sidecar:
        """Run a proxy on a machine, as a user of its own unless it becomes one."""
        home = self._network.home(PROXY)
        (home / "token").write_text(self.service_token(name, *_service(flags)))
        shutil.copy(self.directory / "cp" / "ca.pem", home)
        for each in home.iterdir():
            each.chmod(0o600)
            shutil.chown(each, PROXY, PROXY)
        words = (
            *(("--transparent-proxy",) if transparent else ()),
            *("--name", name, "--cp-address", f"https://{HUB}:{self.dp}"),
            *("--ca-cert-file", str(home / "ca.pem"), "--dataplane-token-file", str(home / "token")),
            *("--workdir", str(home / "w"), "--concurrency", "1", "--drain-time", "5s"),
        )
        first = () if uid else readable_by_others(self.directory)
        command = machine.within(*first, KOGUMA, "dp", "run", *words, *flags, uid=uid)
        sidecar = self._network.start_process(name, command, self.environment, Sidecar)
        sidecar.workdir = home / "w"
        return sidecar


def _service(flags: tuple[str, ...]) -> tuple[str, ...]:
    """What flags say after --service."""
    return flags[flags.index("--service") + 1 :][:1] if "--service" in flags else ()
