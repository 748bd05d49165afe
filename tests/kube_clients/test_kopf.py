"""The real kopf runs an operator on ConfigMaps and widgets; others can still write what it leaves behind."""

import os
import sys
from pathlib import Path

import pytest

from koguma.cli import main
from tests.control_plane import LocalControlPlane
from tests.custom_resources import defined, version
from tests.kube_client import accepted, config_maps_in
from tests.live_mesh import Process
from tests.waiting import eventually, until

pytestmark = pytest.mark.slow
OPERATOR = Path(__file__).parent / "operator_for_kopf.py"
STRICT = {"fieldValidation": "Strict"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    folder = tmp_path_factory.mktemp("k")
    with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}") as plane:
        yield plane


@pytest.fixture
def operator(plane, tmp_path):
    """kopf over TLS with a token, as `koguma kubeconfig` sets it up."""
    file, data = tmp_path / "config", plane.data_dir
    words = ("kubeconfig", "-o", str(file), "--token-file", str(data / "admin-token"))
    assert main((*words, "--address", plane.address, "--ca-cert", str(data / "ca.pem"))) == 0
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(file)}
    command = [sys.executable, "-m", "kopf", "run", "--standalone", "-n", "shop", "--verbose", str(OPERATOR)]
    process = Process("kopf", command, tmp_path / "kopf.log", environment)
    yield process
    process.kill()


def test_what_kopf_patches_can_be_written_by_others(plane, operator):
    config_maps = config_maps_in(plane, "shop")
    accepted(config_maps.create("a", metadata={"labels": {"greet": "yes"}}, data={"name": "ann"}))
    operator.wait_for_output("'status': {'greet': 'hello'}")  # which no ConfigMap has
    eventually(lambda: greeted(config_maps), "ann")
    until(lambda: renamed(config_maps), "it is replaced while kopf does not write")
    eventually(lambda: greeted(config_maps), "ben")


def greeted(config_maps):
    return config_maps.get("a")["metadata"]["labels"].get("greeted")


def renamed(config_maps):
    document = config_maps.get("a")
    assert "status" not in document
    document["data"]["name"] = "ben"
    answer = config_maps.replace(document, query=STRICT)
    assert answer.status in (200, 409), answer.body  # kopf writes as well
    return answer.status == 200


def test_kopf_follows_a_custom_resource_that_comes_at_run_time(plane, operator):
    operator.wait_for_output("Unresolved resources cannot be served")  # there are no widgets yet
    widgets = defined(plane, version(subresources={"status": {}}), group="example.com", namespace="shop")
    accepted(widgets.create("a", spec={"size": 5}))
    eventually(lambda: phase(widgets), "size 5")
    accepted(widgets.patch("a", {"spec": {"size": 6}}))
    eventually(lambda: phase(widgets), "size 6")
    assert widgets.get("a")["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
    assert widgets.delete("a").status == 200
    until(lambda: not widgets.exists("a"))


def phase(widgets):
    return (widgets.get("a").get("status") or {}).get("phase")
