"""A control plane with an aggregated server beside it, for tests: a process that they start and stop."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

from koguma.reconcile.front_proxy import TRUST_CONFIG_MAP, TRUST_NAMESPACE
from tests.aggregated_server import GROUP, VERSION
from tests.authority import Authority
from tests.control_plane import LocalControlPlane
from tests.live_mesh import Process
from tests.ports import free_port
from tests.waiting import until

API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME = f"{VERSION}.{GROUP}"


class AggregatedServer:
    """The server, its certificate, and its APIService at a control plane."""

    def __init__(self, folder: Path, port: int) -> None:
        self.authority = Authority()
        self.port = port
        self._folder = folder
        self._process: Process | None = None

    def document(self, **spec: Any) -> Any:
        """Its APIService."""
        bundle = base64.b64encode(self.authority.pem[0].encode()).decode()
        usual = {
            "group": GROUP,
            "version": VERSION,
            "service": {"namespace": "outside", "name": "notes", "port": 8443},
            "caBundle": bundle,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
        }
        kind = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
        return {**kind, "metadata": {"name": NAME}, "spec": {**usual, **spec}}

    def start(self, plane: LocalControlPlane) -> None:
        """Start it, trusting the control plane, and wait until it is available."""
        path = f"/api/v1/namespaces/{TRUST_NAMESPACE}/configmaps/{TRUST_CONFIG_MAP}"
        trust = until(lambda: (answer := plane("GET", path)).status == 200 and answer.json["data"])
        client_ca = self._folder / "client-ca.pem"
        client_ca.write_text(trust["requestheader-client-ca-file"])
        self.authority.server(self._folder, "notes.outside.svc")
        pem = str(self._folder / "server.pem")
        command = [sys.executable, "-m", "tests.aggregated_server", str(self.port), pem, pem, str(client_ca)]
        log = self._folder / "aggregated-server.log"
        self._process = Process("aggregated server", command, log, os.environ, Path.cwd())
        until(lambda: available(plane, asks=True) == "True", "the server is available")

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def available(plane: LocalControlPlane, *, asks: bool = False) -> str:
    """The condition of the APIService; `asks` lets the control plane look now."""
    if asks:
        patch = {"metadata": {"annotations": {"asked": os.urandom(4).hex()}}}
        plane("PATCH", f"{API_SERVICES}/{NAME}", patch, Content_Type="application/merge-patch+json")
    status = plane("GET", f"{API_SERVICES}/{NAME}").json.get("status") or {}
    return "".join(each["status"] for each in status.get("conditions") or ())


def settings(port: int) -> dict[str, Any]:
    """What the operator allows, so that the server can be reached."""
    return {"outgoing_services": (f"outside/notes=127.0.0.1:{port}",)}


def new(folder: Path) -> AggregatedServer:
    """A server that does not run yet."""
    folder.mkdir(exist_ok=True)
    return AggregatedServer(folder, free_port())
