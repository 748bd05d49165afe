"""No primary is there: what goes on meanwhile, what waits, and that everything goes on afterwards by itself.

Real processes: a primary with a synchronous standby, a control plane that names both, and Envoys.
"""

import base64
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.build import allow_all, dataplane, timeout
from tests.control_plane import WatchStream
from tests.live_mesh import LiveMesh, Sidecar
from tests.pgbouncer import PgBouncer
from tests.ports import free_port
from tests.postgres import Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.expected_errors("Envoy was ended by SIGKILL")]
URL = "/meshes/default/meshtimeouts"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MTLS = {
    "type": "Mesh",
    "name": "default",
    "mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]},
}
REFUSED = "nothing was written: retry later"


class Outage:
    """A mesh on a database that fails over."""

    def __init__(self, mesh: LiveMesh, primary: Server, standby: Server) -> None:
        self.mesh, self.primary, self.standby = mesh, primary, standby

    def begin(self) -> None:
        """The primary dies."""
        self._n_lines = len(self.mesh.control_plane.output.splitlines())
        self.primary.stop(at_once=True)
        until(lambda: self.mesh.request("PUT", f"{URL}/x", timeout("x")).status == 503, "refused writes")

    def refuses(self, method: str, path: str, body: object = None) -> None:
        """A write is refused: nothing happened, and when to try again."""
        answer = self.mesh.request(method, path, body)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert REFUSED in answer.text

    def events(self) -> Counter[str]:
        """What the control plane has logged since, and how often."""
        lines = self.mesh.control_plane.output.splitlines()[self._n_lines :]
        return Counter(json.loads(line)["event"] for line in lines if line.startswith("{"))

    def check_log(self) -> None:
        """Every sort of trouble is logged when it begins, and not with each attempt."""
        time.sleep(2.5)  # longer than any pause between attempts
        troubles = {event: n for event, n in self.events().items() if " store" in f" {event}"}
        assert troubles["store lost"] == troubles["store lost while writing"] == 1
        assert set(troubles.values()) == {1}, troubles


@pytest.fixture(scope="module", params=["direct", pytest.param("pooled", marks=pytest.mark.soak)])
def outage(request, tmp_path_factory):
    """Everything runs, and then the primary dies."""
    folder = tmp_path_factory.mktemp("o")
    servers: list[Server] = []
    poolers: list[PgBouncer] = []
    try:
        servers.append(primary := Server())
        primary.start()
        url = primary.database()
        servers.append(standby := Server(standby_of=primary))
        standby.start()
        primary.wait_for_standbys(needed=True)
        hosts = [primary.host, standby.host]
        if request.param == "pooled":
            poolers = [PgBouncer(server.url, pool_size=6) for server in servers]
            for pooler in poolers:
                pooler.start()
            hosts = [pooler.host for pooler in poolers]
        keys = folder / "keys"
        keys.touch(0o600)
        keys.write_text(base64.b64encode(b"a key of thirty-two bytes, known").decode())
        store = url.replace(primary.host, ",".join(hosts))
        with LiveMesh(folder, store=store, store_key_file=str(keys)) as mesh:
            yield Outage(mesh, primary, standby)
    finally:
        for each in (*poolers, *servers):
            each.remove()


def test_what_goes_on_and_what_waits(outage, tmp_path) -> None:
    mesh = outage.mesh
    known = dataplane("known", service="known", port=free_port())
    mesh.apply(MTLS, timeout("before"), allow_all(), known)
    backend = mesh.sidecar("backend-1", service="backend")
    web = mesh.sidecar("web-1", service="web", outbounds=["backend"])
    until(lambda: web.call("backend").status == 200, "traffic")
    outage.begin()
    new = mesh.sidecar("new-1", service="new", wait=False)
    with WatchStream(mesh.api, f"{URL}?watch=true", {}) as watch:
        assert "before" in [event["object"]["name"] for event in watch.until("BOOKMARK")]
        check_proxies(mesh, backend, web)
        check_reads(mesh)
        check_writes(outage, tmp_path / "x.yaml")
        new.wait_for_output("takes no writes, as a standby does")
        outage.check_log()

        outage.standby.promote()
        until(lambda: mesh.request("PUT", f"{URL}/x", timeout("x")).status in (200, 201), "writes")
        while (event := watch.next())["type"] == "BOOKMARK":
            pass
        assert event["object"]["name"] == "x"
    new.wait_for_output("is ready")
    until(lambda: web.call("backend").status == 200, "traffic")
    mesh.wait_until_synced()
    assert set(mesh.proxies()) >= {"backend-1", "known", "new-1", "web-1"}
    assert mesh.request("GET", f"{URL}/before").json["spec"] == timeout("before")["spec"]
    until(lambda: "store is back" in outage.events(), "the end of the outage in the log")
    assert outage.events()["store is back"] == outage.events()["store takes writes again"] == 1


def check_proxies(mesh: LiveMesh, backend: Sidecar, web: Sidecar) -> None:
    """Those that connect again, and that an operator has stored before."""
    known = mesh._proxy("known", mesh.service_token("known", "known"), "--name", "known", "--no-dns")
    envoy = backend.envoy_pid()
    os.kill(envoy, signal.SIGKILL)
    until(lambda: backend.children() and backend.envoy_pid() != envoy, "another Envoy")
    until(lambda: web.call("backend").status == 200, "traffic through the new Envoy")
    known.wait_for_output("is ready")


def check_reads(mesh: LiveMesh) -> None:
    """In both forms, and with a token that is verified."""
    assert mesh.request("GET", f"{URL}/before").status == 200
    assert mesh.request("GET", f"{CONFIG_MAPS}?limit=1").status == 200
    admin = (mesh.directory / "cp" / "admin-token").read_text()
    assert mesh.request("GET", "/who-am-i", Authorization=f"Bearer {admin}").status == 200
    assert mesh.request("GET", "/ready").status == 200
    assert mesh.request("GET", "/_export").status == 200
    assert "koguma_store_unwritable 1" in mesh.request("GET", "/metrics").text


def check_writes(outage: Outage, file: Path) -> None:
    """In both forms and by the command, which has words for it."""
    outage.refuses("PUT", f"{URL}/x", timeout("x"))
    outage.refuses("PUT", f"{URL}/before", timeout("before", idle="7s"))
    outage.refuses("DELETE", f"{URL}/before")
    outage.refuses("POST", "/_apply", [timeout("x")])
    outage.refuses("POST", CONFIG_MAPS, {"metadata": {"name": "x"}})
    outage.refuses("DELETE", "/apis/kuma.io/v1alpha1/meshes/default")
    file.write_text(json.dumps(timeout("x")))
    applied = outage.mesh.koguma("apply", "-f", str(file), check=False)
    assert applied.returncode
    assert "takes no writes, as a standby does" in applied.stderr
    assert REFUSED in applied.stderr
    assert "takes no writes" in outage.mesh.koguma("check", check=False).stdout
