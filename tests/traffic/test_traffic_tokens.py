"""A proxy's token is replaced on disk: its Envoy goes on, and comes back by itself where it was refused."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.live_mesh import LiveMesh, Sidecar
from tests.waiting import until

pytestmark = pytest.mark.slow


def revoke(mesh: LiveMesh, *tokens: str) -> None:
    """Put tokens on the list of the mesh's revoked ones."""
    ids = [json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["jti"] for token in tokens]
    data = base64.b64encode(",".join(ids).encode()).decode()
    name = f"dataplane-token-revocations-{mesh.name}"
    secret = {"type": "Secret", "name": name, "mesh": mesh.name, "data": data}
    assert mesh.request("PUT", f"/meshes/{mesh.name}/secrets/{name}", secret).status in (200, 201)


def restart_control_plane(mesh: LiveMesh) -> None:
    """All streams end, so that every proxy has to show its token again."""
    mesh.control_plane.stop()
    mesh.start_control_plane()


def of_processes(sidecar: Sidecar) -> str:
    """All that others can read about the agent and its Envoy: arguments, environment, and the log."""
    pids = (sidecar.pid, sidecar.envoy_pid())
    files = (Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ"))
    return sidecar.output + "".join(file.read_text() for file in files)


def is_connected(mesh: LiveMesh, name: str) -> Any:
    return mesh.proxies().get(name, {}).get("state") == "synced"


def swap(directory: Path, token: str, version: str) -> None:
    """Replace a mounted file as Kubernetes does: a new directory, and one rename of the link to it."""
    (directory / version).mkdir()
    (directory / version / "token").write_text(token + "\n")
    (directory / "..data_new").symlink_to(version)
    (directory / "..data_new").rename(directory / "..data")


def test_a_new_token_in_the_file_brings_a_refused_proxy_back_with_the_same_envoy(tmp_path):
    with LiveMesh(tmp_path) as mesh:
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        first, second, third = (mesh.service_token("web-1", "web") for _ in range(3))
        swap(mounted, first, "..1")
        (mounted / "token").symlink_to("..data/token")
        web = mesh.sidecar("web-1", "web", flags=("--dataplane-token-file", str(mounted / "token")))
        pid = web.envoy_pid()

        revoke(mesh, first)
        restart_control_plane(mesh)
        mesh.control_plane.wait_for_output("token is revoked")
        assert "web-1" not in mesh.proxies()
        refused = "web-1 (mesh default) from 127.0.0.1, "
        until(lambda: refused in mesh.koguma("get", "proxies").stdout, "its stream was refused, too")
        seen = mesh.koguma("get", "proxies").stdout
        assert "koguma token dataplane --mesh default --name web-1 --service SERVICE --valid-for 720h" in seen
        (refused,) = json.loads(mesh.koguma("get", "proxies", "-o", "json").stdout)["refused"]
        assert (refused["name"], refused["mesh"], refused["door"]) == ("web-1", "default", "xds")
        checked = mesh.koguma("check", check=False)
        assert (checked.returncode, "web-1 (mesh default, from 127.0.0.1) was refused" in checked.stdout) == (
            1,
            True,
        )
        swap(mounted, second, "..2")
        until(lambda: is_connected(mesh, "web-1"), "the proxy shows the token that was swapped in")
        assert "refused proxies" not in mesh.koguma("check").stdout
        assert mesh.control_plane.output.count('"proxy refused"') == 1, "once, however often it knocked"

        revoke(mesh, first, second)
        plain = tmp_path / "plain"
        plain.write_text(third)
        plain.replace(mounted / "token")
        web.wait_for_output("the token was replaced")
        restart_control_plane(mesh)
        until(lambda: is_connected(mesh, "web-1"), "the proxy shows the token that was written")
        assert web.envoy_pid() == pid
        shown = of_processes(web)
        assert not [token for token in (first, second, third) if token in shown]
        dump = web.admin("/config_dump?include_eds")
        assert not [token for token in (first, second, third) if token in dump]
