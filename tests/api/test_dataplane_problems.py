"""What is odd about Dataplanes is told to who writes them, to who inspects them, and by the check."""

import pytest

from tests import build
from tests.control_plane import LocalControlPlane


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """One of its own: Dataplanes of other tests would be in the way."""
    with LocalControlPlane(tmp_path_factory.mktemp("plane")) as running:
        yield running


def on_one_machine(mesh, name, port=0, outbound=(), **tags):
    inbound = [build.inbound(name, port, protocol="", tags=tags)] if port else []
    return build.dataplane(name, mesh=mesh, address="10.77.0.1", inbound=inbound, outbound=list(outbound))


@pytest.fixture
def put(plane, mesh):
    """Writes Dataplanes, and takes them away after the test; what the writer was warned of."""
    written = []

    def write(name, **more):
        path = f"/meshes/{mesh}/dataplanes/{name}"
        answer = plane("PUT", path, on_one_machine(mesh, name, **more))
        assert answer.status in (200, 201), answer.body
        written.append(path)
        return answer.json.get("warnings", [])

    yield write
    for path in written:
        plane("DELETE", path)


def checks(plane):
    found = plane("GET", "/_check").json["checks"]
    return [(each["status"], each["message"]) for each in found if each["name"] == "dataplanes"]


def test_two_dataplanes_at_one_address_and_port_are_told_everywhere(plane, mesh, put):
    assert put("api", port=8080) == []
    (warning,) = put("other", port=8080)
    assert "are both reached at 10.77.0.1:8080" in warning
    assert warning.endswith("(KG013)")
    layout = plane("GET", f"/meshes/{mesh}/dataplanes/api/_layout").json
    assert [text.partition(":")[0] for text in layout["warnings"]] == ["networking.inbound[0]"]
    ((status, message),) = checks(plane)
    assert (status, "10.77.0.1:8080" in message) == ("error", True)
    put("other", port=8081)
    assert "warnings" not in plane("GET", f"/meshes/{mesh}/dataplanes/api/_layout").json
    assert checks(plane) == []


def test_an_outbound_that_leads_nowhere_is_told_everywhere_with_the_nearest_name(plane, mesh, put):
    assert put("backend", port=8080, version="v1") == []
    outbound = [
        {"port": 9001, "tags": {"kuma.io/service": "bakend"}},
        {"port": 9002, "tags": {"kuma.io/service": "backend", "version": "v2"}},
        {"port": 9003, "tags": {"kuma.io/service": "backend", "version": "v1"}},
    ]
    warnings = put("web", outbound=outbound)
    assert [text.partition(": ")[0] for text in warnings] == [
        "networking.outbound[0]",
        "networking.outbound[1]",
    ]
    assert 'there is no MeshService "bakend"; did you mean "backend"? (KG014)' in warnings[0]
    assert 'no proxy of "backend" has the tags version=v2; there is only version=v1' in warnings[1]
    assert plane("GET", f"/meshes/{mesh}/dataplanes/web/_layout").json["warnings"] == warnings
    assert [status for status, _ in checks(plane)] == ["warning", "warning"]


def test_a_transaction_tells_of_both_dataplanes_once(plane, mesh, put):
    put("api", port=8080)
    objects = [on_one_machine(mesh, "one", 8082), on_one_machine(mesh, "two", 8082)]
    results = plane("POST", "/_apply", objects).json["results"]
    assert [len(each.get("warnings") or ()) for each in results] == [1, 0]
    for name in ("one", "two"):
        plane("DELETE", f"/meshes/{mesh}/dataplanes/{name}")
