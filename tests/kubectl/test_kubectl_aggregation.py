"""An aggregated server with the real kubectl: its objects are found, and its end harms nobody."""

import json

import pytest

from tests import aggregated
from tests.aggregated import API_SERVICES, NAME, available
from tests.aggregated_server import GROUP, VERSION
from tests.control_plane import LocalControlPlane
from tests.kubectl.tool import Kube, on_path, packaged
from tests.waiting import until

pytestmark = pytest.mark.slow

_CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap"}


@pytest.fixture
def server(tmp_path):
    server = aggregated.new(tmp_path / "server")
    yield server
    server.stop()


def test_kubectl_reaches_its_objects_and_outlives_its_end(tmp_path, server, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with LocalControlPlane(tmp_path / "cp", **aggregated.settings(server.port)) as plane:
        assert plane("POST", API_SERVICES, server.document()).status == 201
        server.start(plane)
        kube = Kube(on_path() or packaged(), plane, tmp_path, tmp_path / "home", "team-notes")
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Note"}
        kube(
            "create", "-f", "-", "--validate=false", stdin=json.dumps({**kind, "metadata": {"name": "first"}})
        )
        assert kube("get", "notes", "-o", "name") == f"note.{GROUP}/first"
        assert kube("get", "nt", "first", "-o", "jsonpath={.metadata.annotations.author}")
        assert "True" in kube("get", "apiservices")
        kube("wait", "--for=condition=Available", f"apiservice/{NAME}", "--timeout=20s")
        server.stop()
        until(lambda: available(plane, asks=True) == "False")
        assert "FailedDiscoveryCheck" in kube("get", "apiservice", NAME)
        kube("get", "meshes")
        kube("apply", "-f", "-", stdin=json.dumps({**_CONFIG_MAP, "metadata": {"name": "settings"}}))
        assert kube.run("get", "notes").code != 0
