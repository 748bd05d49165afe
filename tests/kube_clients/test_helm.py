"""Helm on a chart of our resources: install, upgrade, a refused upgrade, rollback and uninstall."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from koguma.cli import main
from tests.build import mesh
from tests.control_plane import LocalControlPlane
from tests.custom_resources import definition_spec, definitions_of
from tests.kube_client import CORE, KOGUMA, KUMA, KubeClient, accepted

pytestmark = pytest.mark.slow

CHART = Path(__file__).parent.parent.parent / "examples" / "helm" / "team-policies"
HELM = Path(sys.executable).parent / "helm"  # of the package helm-binary
NAMESPACE = "team-web"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    folder = tmp_path_factory.mktemp("helm")
    with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}") as plane:
        assert plane("PUT", "/meshes/shop", mesh("shop")).status == 201
        yield plane


@pytest.fixture(scope="module")
def helm(plane, tmp_path_factory):
    """Runs helm as the administrator; gives how it ended."""
    home = tmp_path_factory.mktemp("home")
    file, authority = home / "kubeconfig", plane.data_dir / "ca.pem"
    token = ("--token-file", str(plane.data_dir / "admin-token"))
    where = ("--address", f"https://127.0.0.1:{plane.tls_port}", "--ca-file", str(authority))
    assert main(("kubeconfig", "-o", str(file), *token, *where)) == 0
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(file)}

    def run(*words):
        return subprocess.run(
            [HELM, "--namespace", NAMESPACE, *words],
            env=variables,
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def works(done):
    assert done.returncode == 0, (done.args, done.stdout, done.stderr)
    return done.stdout


def test_a_chart_of_policies_lives_its_life(plane, helm):
    timeouts, retries = (KubeClient(plane, NAMESPACE, KUMA, kind) for kind in ("MeshTimeout", "MeshRetry"))
    records = KubeClient(plane, NAMESPACE, CORE, "Secret")

    def request_timeout():
        return timeouts.get("ours")["spec"]["to"][0]["default"]["http"]["requestTimeout"]

    assert "STATUS: deployed" in works(helm("install", "ours", str(CHART), "--create-namespace", "--wait"))
    assert request_timeout() == "15s"
    assert retries.other(KOGUMA).get("ours")["spec"]["to"][0]["default"]["http"]["numRetries"] == 2
    assert timeouts.get("ours")["metadata"]["annotations"]["meta.helm.sh/release-name"] == "ours"
    uid = timeouts.get("ours")["metadata"]["uid"]

    settings = ("--set", "requestTimeout=5s,retries=0")
    works(helm("upgrade", "ours", str(CHART), *settings))
    assert (request_timeout(), retries.exists("ours")) == ("5s", False)

    refused = helm("upgrade", "ours", str(CHART), "--set", "requestTimeout=soon")
    assert refused.returncode != 0
    assert "spec.to[0].default.http.requestTimeout: must be a duration" in refused.stderr
    assert request_timeout() == "5s"

    works(helm("rollback", "ours", "1", "--wait"))
    assert (request_timeout(), retries.exists("ours")) == ("15s", True)
    assert timeouts.get("ours")["metadata"]["uid"] == uid

    accepted(timeouts.patch("ours", {"metadata": {"labels": {"team": "web"}}}))  # somebody else's label stays
    works(helm("upgrade", "ours", str(CHART), "--atomic", "--wait", "--set", "requestTimeout=7s"))
    assert (request_timeout(), timeouts.get("ours")["metadata"]["labels"]["team"]) == ("7s", "web")

    history = json.loads(works(helm("history", "ours", "-o", "json")))
    states = [entry["status"] for entry in history]
    assert states == ["superseded", "superseded", "failed", "superseded", "deployed"]
    assert len(records.list().json["items"]) == 5

    assert [release["name"] for release in json.loads(works(helm("list", "-o", "json")))] == ["ours"]
    works(helm("uninstall", "ours", "--wait"))
    assert not timeouts.exists("ours")
    assert not retries.exists("ours")
    assert records.list().json["items"] == []


def test_a_dry_run_on_the_server_stores_nothing(plane, helm):
    timeouts = KubeClient(plane, NAMESPACE, KUMA, "MeshTimeout")
    shown = works(helm("install", "trial", str(CHART), "--dry-run=server", "--create-namespace"))
    assert "kind: MeshTimeout" in shown
    assert not timeouts.exists("trial")


def test_a_chart_brings_a_custom_resource_and_objects_of_it(plane, helm, tmp_path):
    widget = {"apiVersion": "helm.example.com/v1", "kind": "Widget", "metadata": {"name": "brought"}}
    spec = definition_spec(group="helm.example.com")
    definition = definitions_of(plane).document("widgets.helm.example.com", spec=spec)
    files = {
        "Chart.yaml": {"apiVersion": "v2", "name": "widgets", "version": "1.0.0"},
        "crds/widgets.yaml": definition,
        "templates/widget.yaml": {**widget, "spec": {"size": 5}},
    }
    for name, document in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document))
    works(helm("install", "widgets", str(tmp_path), "--create-namespace", "--wait"))
    widgets = KubeClient(plane, NAMESPACE, "helm.example.com/v1", "Widget")
    assert widgets.get("brought")["spec"] == {"size": 5, "color": "red", "replicas": 1}
    (tmp_path / "templates/widget.yaml").write_text(json.dumps({**widget, "spec": {"size": 6}}))
    works(helm("upgrade", "widgets", str(tmp_path), "--wait"))
    assert widgets.get("brought")["spec"]["size"] == 6
    works(helm("uninstall", "widgets", "--wait"))
    assert not widgets.exists("brought")
    assert definitions_of(plane).exists("widgets.helm.example.com"), "Helm leaves definitions in place"
