"""Plugins of external services in the API: the Kubernetes form, dry runs, and who may not see what."""

import pytest

from tests import build
from tests.control_plane import LocalControlPlane

ARN = "arn:aws:lambda:us-west-2:123456789012:function:my-function"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshexternalservices"
V1 = "/apis/koguma.io/v1/namespaces/mesh-default/meshexternalservices"
AT = "spec.destination.extension.config"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("d")) as plane:
        assert plane("PUT", "/meshes/default/secrets/aws", build.secret("aws")).status == 201
        yield plane


def service(name, group="kuma.io/v1alpha1", **config):
    match = {"type": "InternalVIP", "value": f"{name}.test", "port": 80, "protocol": "http"}
    destination = {"type": "Extension", "extension": {"type": "Lambda", "config": config}}
    return {
        "apiVersion": group,
        "kind": "MeshExternalService",
        "metadata": {"name": name, "namespace": "mesh-default"},
        "spec": {"match": [match], "destination": destination},
    }


def causes(response):
    return [(cause["field"], cause["message"]) for cause in response.json["details"]["causes"]]


def test_a_wrong_configuration_is_refused_through_every_door(plane):
    wrong = service("wrong", arn="no")
    message = "must be arn:aws:lambda:REGION:ACCOUNT:function:NAME, and perhaps :VERSION"
    for path in (KUBE, f"{KUBE}?dryRun=All", V1):
        refused = plane("POST", path, {**wrong, "apiVersion": path.split("/namespaces")[0][6:]})
        assert refused.status == 422, refused.body
        assert causes(refused) == [(f"{AT}.arn", message)]
    right = service("right", arn=ARN)
    assert plane("POST", KUBE, right).status == 201
    patch = {"spec": {"destination": {"extension": {"config": {"arn": "no"}}}}}
    for kind, body in (
        ("application/merge-patch+json", patch),
        (
            "application/json-patch+json",
            [{"op": "replace", "path": f"/{AT.replace('.', '/')}/arn", "value": "no"}],
        ),
    ):
        refused = plane("PATCH", f"{KUBE}/right", body, Content_Type=kind)
        assert refused.status == 422, refused.body
        assert causes(refused) == [(f"{AT}.arn", message)]
    applied = plane(
        "PATCH",
        f"{KUBE}/right?fieldManager=test&force=true",
        service("right", arn="no"),
        Content_Type="application/apply-patch+yaml",
    )
    assert (applied.status, causes(applied)) == (422, [(f"{AT}.arn", message)])


@pytest.mark.parametrize("mode", ["Strict", "Warn", "Ignore"])
def test_unknown_fields_of_a_configuration_are_the_plugins_to_refuse(plane, mode):
    """The schema of the object has no fields there, so nothing is pruned, as before a webhook."""
    refused = plane(
        "POST", f"{KUBE}?fieldValidation={mode}", service("unknown", arn=ARN, payloadPasstrough=True)
    )
    assert refused.status == 422, refused.body
    message = 'unknown field "payloadPasstrough"; did you mean "payloadPassthrough"?'
    assert causes(refused) == [(f"{AT}.payloadPasstrough", message)]


def test_what_is_written_is_what_is_read_back_in_both_versions_and_shapes(plane):
    config = {"arn": ARN, "credentials": {"secret": "aws"}, "invocationMode": "Asynchronous"}
    assert plane("POST", KUBE, service("same", **config)).status == 201
    for path in (KUBE, V1):
        assert plane("GET", f"{path}/same").json["spec"]["destination"]["extension"]["config"] == config
    released = {"match": {"port": 80, "protocol": "http"}, "extension": {"type": "Lambda", "config": config}}
    document = build.document("MeshExternalService", "released", spec=released)
    assert plane("PUT", "/meshes/default/meshexternalservices/released", document).status == 201
    assert plane("GET", "/meshes/default/meshexternalservices/released").json["spec"] == released


def test_a_plugin_that_is_not_installed_is_a_warning_and_a_condition(plane):
    document = service("queue")
    document["spec"]["destination"]["extension"] = {"type": "Queue", "config": {"any": 1}}
    for query in ("?dryRun=All", ""):
        made = plane("POST", f"{KUBE}{query}", document)
        assert made.status == 201, made.body
        assert [text for text in made.warnings if "(KG019)" in text]
