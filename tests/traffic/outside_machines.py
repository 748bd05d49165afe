"""A machine with a transparent proxy, and one with a control plane and all servers of the outside.

    web ──── hub

The mesh lets nothing out but what MeshExternalServices match. A program on web knows nothing of all that: it
calls addresses, and names hosts.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.core.external_servers import AUTHORITY, STRANGER, Pair, made
from tests.hub_mesh import HUB, PROXY, HubMesh
from tests.live_mesh import KOGUMA
from tests.netns import Namespace, Network
from tests.traffic.outside_table import LEGAL, PROTOCOLS, endpoint, external_service

HERE = Path(__file__).parent
CLOSED = {"networking": {"outbound": {"passthrough": False}}}


class Certified(NamedTuple):
    """A server with TLS, and what comes of calls to it by a service that trusts the CA of the test."""

    certificate: Pair
    status: int = 200
    server: Mapping[str, Any] = MappingProxyType({})
    tls: Mapping[str, Any] = MappingProxyType({})


CLIENT = made("client", (), AUTHORITY)
OWN_CERTIFICATE = {
    "clientCert": {"inlineString": CLIENT.pem},
    "clientKey": {"inlineString": CLIENT.key_pem},
}
GOOD = made("good", (HUB, "good.outside.test"), AUTHORITY)
CERTIFIED = {
    "good": Certified(GOOD),
    "by-name": Certified(GOOD, tls={"verification": {"subjectAltNames": ["good.outside.test"]}}),
    "wrong-name": Certified(made("wrong", ("wrong.outside.test",), AUTHORITY), 503),
    "wrong-name-skipped": Certified(
        made("wrong", ("wrong.outside.test",), AUTHORITY), tls={"verification": {"skip": True}}
    ),
    "strange-ca": Certified(made("strange", (HUB,), STRANGER), 503),
    "strange-ca-names-skipped": Certified(
        made("strange", (HUB,), STRANGER), 503, tls={"verification": {"skip": True}}
    ),
    "expired": Certified(made("expired", (HUB,), AUTHORITY, is_expired=True), 503),
    "asks": Certified(GOOD, server={"asks": True}, tls=OWN_CERTIFICATE),
    "asks-in-vain": Certified(GOOD, 503, {"asks": True}),
    "only-1-2": Certified(GOOD, server={"version": "1.2"}),
    "only-1-3": Certified(GOOD, server={"version": "1.3"}),
    "only-1-3-too-new": Certified(GOOD, 503, {"version": "1.3"}, {"version": {"max": "TLSv1_2"}}),
}


def certified_port(name: str) -> int:
    return 24000 + list(CERTIFIED).index(name)


def servers(socket: Path) -> list[dict[str, Any]]:
    """All servers of the outside."""
    found = [
        {"name": case.answered_by, "protocol": case.protocol, "port": case.port}
        for case in LEGAL
        if case.destination == "passthrough"
    ]
    for destination in ("regular", "secure"):
        for protocol in PROTOCOLS:
            port = endpoint(destination, protocol)
            found.append({"name": f"{destination}-{protocol}", "protocol": protocol, "port": port})
    for each in found:
        if each["protocol"] == "tls" or each["name"].startswith("secure-"):
            each["certificate"] = "good.pem"
    found += [
        {
            "name": name,
            "protocol": "http",
            "port": certified_port(name),
            "certificate": f"{name}.pem",
            **each.server,
        }
        for name, each in CERTIFIED.items()
    ]
    found.append({"name": "kafka", "protocol": "tls", "port": 9092, "certificate": "good.pem"})
    found.append({"name": "outside", "protocol": "http", "port": 80})
    found.append({"name": "second", "protocol": "http", "port": 8000})
    found.append({"name": "on-a-socket", "protocol": "http", "path": str(socket)})
    return found


class Machines:
    """A machine with a proxy, one with all of the outside, and the mesh."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.hub, self.web = network.namespace("hub"), network.namespace("web")
        network.connect(self.hub, self.web, "10.9.1", "fd09:1")
        for number in range(1, 4):  # brokers of a many-host service
            self.hub.run("ip", "address", "add", f"10.9.7.{number}/32", "dev", "lo")
        self.socket = network.home(PROXY) / "outside.sock"
        outside = directory.parent / "outside"
        outside.mkdir()
        (outside / "ca.pem").write_text(AUTHORITY.pem)
        for name, each in CERTIFIED.items():
            (outside / f"{name}.pem").write_text(each.certificate.pem + each.certificate.key_pem)
        (outside / "servers.json").write_text(json.dumps(servers(self.socket)))
        script = str(HERE / "outside_servers.py")
        self.hub.start("outside", sys.executable, script, str(outside), until_output="serves")
        self.hub.start_name_server("outside.test", HUB, HUB)
        self.web.use_name_servers(HUB)
        self.mesh = HubMesh(directory, network, self.hub)
        self.mesh.start_control_plane()
        self.mesh.apply({"type": "Mesh", "name": "default", **CLOSED})
        self.web.run(KOGUMA, "dp", "install", "transparent-proxy", "--uid", str(PROXY))
        self.logs = network.home(PROXY)
        self.start_proxy()

    def start_proxy(self) -> None:
        web = ("--service", "web", "--address", "10.9.1.2", "--user", str(PROXY))
        web += ("--access-log-dir", str(self.logs))
        self.proxy = self.mesh.proxy(self.web, "web-1", *web, uid=0)
        self.proxy.wait_for_output("is ready")

    def restart_proxy(self) -> None:
        """Another Envoy, which has nothing yet."""
        self.proxy.stop()
        self.start_proxy()

    def calls(self, *calls: dict[str, Any], on: Namespace | None = None) -> list[Any]:
        """What programs get, on web unless told otherwise."""
        words = (sys.executable, str(HERE / "outside_callers.py"))
        return json.loads((on or self.web).run(*words, stdin=json.dumps(calls)).stdout)

    def call(self, **call: Any) -> Any:
        (answer,) = self.calls({"protocol": "http", "port": 80, "host": "", "address": HUB, **call})
        return answer


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Machines]:
    """The machines while the block runs."""
    with Network(directory) as network:
        yield Machines(network, directory / "mesh")


def on_domain(name: str, port: int = 80, protocol: str = "http", **destination: Any) -> dict[str, Any]:
    """A service that takes calls to a domain, and sends them to the second server unless told otherwise."""
    match = {"type": "Domain", "value": f"{name}.outside.test", "port": port, "protocol": protocol}
    regular = {"type": "Regular", "endpoints": [{"address": HUB, "port": 8000}]}
    return external_service(name, {"match": [match], "destination": destination or regular})


def policy(kind: str, service: str, conf: dict[str, Any], **spec: Any) -> dict[str, Any]:
    to = {"targetRef": {"kind": "MeshExternalService", "name": service}}
    to |= {"rules": conf["rules"]} if "rules" in conf else {"default": conf}
    return {
        "type": kind,
        "mesh": "default",
        "name": f"{kind}-{service}".lower(),
        "spec": {**spec, "to": [to]},
    }
