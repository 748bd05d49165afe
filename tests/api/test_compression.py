"""Large answers are compressed for clients that accept it; never watches, secrets and what web pages ask."""

import gzip
import json
import zlib

import pytest

from koguma.api.compression import SIZE_MIN
from tests.kube_client import CORE, KubeClient, accepted

pytestmark = pytest.mark.slow

GZIP = {"Accept_Encoding": "gzip, deflate"}
CORE_LIST = "/api/v1/namespaces/{}/configmaps"


@pytest.fixture(scope="module")
def large(plane):
    """A namespace with many large ConfigMaps, and one with a few."""
    for space, number in (("many-large", 100), ("few-large", 5)):
        config_maps = KubeClient(plane, space, CORE, "ConfigMap")
        for index in range(number):
            accepted(config_maps.create(f"c-{index:03}", data={"text": f"{index} " * 20_000}))


@pytest.mark.parametrize("space", ["many-large", "few-large"])
@pytest.mark.usefixtures("large")
def test_a_large_list_is_compressed_for_who_accepts_it(plane, space):
    plain = plane("GET", CORE_LIST.format(space))
    packed = plane("GET", CORE_LIST.format(space), **GZIP)
    assert "Content-Encoding" not in plain.headers
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert packed.headers["Content-Type"] == plain.headers["Content-Type"]
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 10


@pytest.mark.usefixtures("large")
def test_one_large_object_and_documents_are_compressed(plane):
    for path in ("/openapi/v2", "/openapi.json", "/openapi/v3/apis/kuma.io/v1alpha1"):
        packed = plane("GET", path, **GZIP)
        assert packed.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(packed.body)) == plane("GET", path).json
    name = CORE_LIST.format("few-large") + "/c-000"
    assert "Content-Encoding" not in plane("GET", name, **GZIP).headers  # 40 kB


def test_lists_of_the_plain_form_are_compressed_too(plane, mesh):
    labels = {f"label-{number}": "x" * 60 for number in range(30)}
    for index in range(60):
        spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]}
        document = {"type": "MeshTimeout", "name": f"t-{index}", "mesh": mesh, "labels": labels, "spec": spec}
        assert plane("PUT", f"/meshes/{mesh}/meshtimeouts/t-{index}", document).status == 201
    path = f"/meshes/{mesh}/meshtimeouts?size=100"
    packed = plane("GET", path, **GZIP)
    assert gzip.decompress(packed.body) == plane("GET", path).body
    assert len(plane("GET", path).body) > SIZE_MIN


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "headers",
    [
        {"Accept_Encoding": "identity"},
        {"Accept_Encoding": "br, gzip;q=0"},
        {"Accept_Encoding": ""},
        {**GZIP, "Sec_Fetch_Site": "cross-site"},
        {**GZIP, "Origin": "https://elsewhere.example"},
    ],
)
def test_who_does_not_accept_it_or_asks_for_another_site_gets_it_plain(plane, headers):
    answer = plane("GET", CORE_LIST.format("few-large"), **headers)
    assert "Content-Encoding" not in answer.headers
    assert answer.status in (200, 403)


def test_secrets_are_never_compressed(plane):
    secrets = KubeClient(plane, "few-large", CORE, "Secret")
    for name in ("a", "b"):
        accepted(secrets.create(name, stringData={"text": "x" * SIZE_MIN}))
    answer = secrets.send("GET", "", **GZIP)
    assert (len(answer.body) > SIZE_MIN, answer.headers.get("Content-Encoding")) == (True, None)
    meshes = plane("GET", "/meshes", **GZIP)  # their mTLS backends may have secrets of their own
    assert "Content-Encoding" not in meshes.headers


@pytest.mark.usefixtures("large")
def test_watches_are_never_compressed(plane):
    path = f"{CORE_LIST.format('many-large')}?watch=true&timeoutSeconds=1"
    answer = plane("GET", path, **GZIP)
    assert "Content-Encoding" not in answer.headers
    assert len(answer.body.splitlines()) == 100
    with pytest.raises(zlib.error):
        zlib.decompress(answer.body)
