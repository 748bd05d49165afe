"""A Secret that a gateway presents is not replaced by one that it could not present, through no door."""

import base64

import pytest

from tests import build
from tests.control_plane import LocalControlPlane
from tests.tls_certificates import ecdsa_key, rsa_key, server

GOOD = server("shop.lan")
PATH = "/meshes/default/secrets/shop"
KUBE = "/apis/koguma.io/v1/namespaces/mesh-default/secrets/shop"
MERGE = "application/merge-patch+json"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(text: str):
    return build.document("Secret", "shop", data=encoded(text))


def gateway():
    tls = {"mode": "TERMINATE", "certificates": [{"secret": "shop"}]}
    listener = {"port": 443, "protocol": "HTTPS", "hostname": "shop.lan", "tls": tls}
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    return build.document("MeshGateway", "edge", selectors=selectors, conf={"listeners": [listener]})


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("pc")) as plane:
        assert plane("POST", "/_apply", [secret(GOOD), gateway()]).status == 200
        yield plane


DOORS = {
    "put": lambda text: ("PUT", PATH, secret(text), {}),
    "apply": lambda text: ("POST", "/_apply", [secret(text)], {}),
    "merge patch": lambda text: ("PATCH", PATH, {"data": encoded(text)}, {"Content_Type": MERGE}),
    "kube merge patch": lambda text: (
        "PATCH",
        KUBE,
        {"spec": {"data": encoded(text)}},
        {"Content_Type": MERGE},
    ),
}


@pytest.mark.parametrize("query", ["", "?dryRun=All"])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_a_bad_one_in(plane, door, query):
    method, path, body, headers = DOORS[door]("nothing")
    answer = plane(method, f"{path}{query}", body, **headers)
    assert answer.status in (400, 422), answer.body
    assert 'listener 443:shop.lan of MeshGateway \\"edge\\"' in answer.text
    assert "missing server certificate; it keeps the stored one" in answer.text
    assert plane("GET", PATH).json["data"] == encoded(GOOD)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_another_good_one(plane, door):
    text = server("shop.lan", key=ecdsa_key(1) if "kube" in door else rsa_key())
    method, path, body, headers = DOORS[door](text)
    assert plane(method, path, body, **headers).status == 200
    assert plane("GET", PATH).json["data"] == encoded(text)
    assert plane("PUT", PATH, secret(GOOD)).status == 200


def test_what_no_gateway_presents_or_was_not_good_may_become_anything(plane):
    for name in ("other", "later"):
        path = f"/meshes/default/secrets/{name}"
        texts = ("nothing", GOOD) if name == "later" else (GOOD, "nothing")
        for text in texts:
            assert plane("PUT", path, {**secret(text), "name": name}).status in (200, 201)
