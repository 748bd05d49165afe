"""MeshProxyPatches on real traffic: what they change is seen from outside, and what they break is shown."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_client import Response
from tests.live_mesh import LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
HEADER_MUTATION = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
LUA = """
function envoy_on_response(handle)
  handle:headers():add("x-lua", "was here")
end
"""


class PatchedMesh(LiveMesh):
    """A mesh with a service, and one that calls it."""

    backend: Sidecar
    web: Sidecar

    def patched(self, *modifications: Any, name: str = "it", **top: Any) -> None:
        """Let a policy have these modifications, and wait until all proxies have them."""
        self.apply_and_wait(self.patch(name, *modifications, **top))
        assert not any(proxy["failures"] for proxy in self.proxies().values())

    def patch(self, name: str, *modifications: Any, **top: Any) -> dict[str, Any]:
        spec = {**top, "default": {"appendModifications": list(modifications)}}
        return {"type": "MeshProxyPatch", "name": name, "spec": spec}

    def get(self, path: str = "/") -> Response:
        return self.web.call("backend", path=path)

    def connections(self) -> int:
        """How many connections web has opened to backend so far."""
        (count,) = self.web.stats("^cluster.kri_msvc_.*_backend_.*.upstream_cx_total$").values()
        return count


@pytest.fixture(scope="module")
def patched_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PatchedMesh]:
    with PatchedMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        mesh.backend = mesh.sidecar("backend-1", "backend", wait=False)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend",), wait=False)
        for each in (mesh.backend, mesh.web):
            each.wait_for_output("is ready")
        until(lambda: mesh.get().status == 200, "web reaches backend")
        yield mesh


@pytest.fixture
def mesh(patched_mesh: PatchedMesh) -> Iterator[PatchedMesh]:
    """The workshop; it is left as it was found."""
    yield patched_mesh
    for item in patched_mesh.request("GET", "/meshes/default/meshproxypatches").json["items"]:
        patched_mesh.delete_and_wait("meshproxypatches", item["name"])


def typed(name: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/{name}", **fields}


def header(name: str, value: str) -> dict[str, Any]:
    return {"append": {"header": {"key": name, "value": value}}}


def test_a_patched_cluster_opens_a_connection_for_each_request_until_the_patch_goes(mesh: PatchedMesh):
    common = {"common_http_protocol_options": {"max_requests_per_connection": 1}}
    value = {"typed_extension_protocol_options": {OPTIONS: typed(OPTIONS, **common)}}
    before = mesh.connections()
    assert [mesh.get().status for _ in range(4)] == [200] * 4
    assert mesh.connections() - before <= 1
    mesh.patched({"cluster": {"operation": "Patch", "match": {"origin": "outbound"}, "value": value}})
    before = mesh.connections()
    assert [mesh.get().status for _ in range(4)] == [200] * 4
    assert mesh.connections() - before == 4
    mesh.delete_and_wait("meshproxypatches", "it")
    before = mesh.connections()
    assert [mesh.get().status for _ in range(4)] == [200] * 4
    assert mesh.connections() - before <= 1


def test_added_filters_leave_their_headers_and_a_more_important_policy_removes_one(mesh: PatchedMesh):
    mutation = typed(HEADER_MUTATION, mutations={"request_mutations": [header("x-mark", "in")]})
    script = typed("envoy.extensions.filters.http.lua.v3.Lua", default_source_code={"inline_string": LUA})
    router = {"name": "envoy.filters.http.router"}
    mark = {"name": "mark", "typed_config": mutation}
    lua = {"name": "script", "typedConfig": script}
    mesh.patched(
        {"httpFilter": {"operation": "AddFirst", "match": {"origin": "inbound"}, "value": mark}},
        {
            "httpFilter": {
                "operation": "AddBefore",
                "match": {**router, "origin": "outbound"},
                "value": json.dumps(lua),
            }
        },
    )
    assert mesh.get().headers["x-lua"] == "was here"
    # Connections from before stay with the listener that they came to, until it has drained.
    assert until(lambda: mesh.get().json["headers"].get("x-mark"), "backend sees the mark") == "in"
    removal = {"httpFilter": {"operation": "Remove", "match": {"name": "script"}}}
    mesh.patched(removal, name="no-lua", targetRef={"kind": "Dataplane", "name": "web-1"})
    answer = mesh.get()
    assert answer.json["headers"]["x-mark"] == "in"
    assert "x-lua" not in answer.headers


def test_an_added_listener_answers_by_itself(mesh: PatchedMesh):
    port = free_port()
    config = typed(
        "envoy.extensions.filters.network.direct_response.v3.Config", response={"inline_string": "hello"}
    )
    value = {
        "name": "greeter",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.direct_response", "typed_config": config}]}
        ],
    }
    only_web = {"targetRef": {"kind": "Dataplane", "name": "web-1"}}
    mesh.patched({"listener": {"operation": "Add", "value": value}}, **only_web)

    def greeting() -> bytes:
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            return connection.recv(100)

    assert until(greeting, "it listens") == b"hello"


def test_a_patched_virtual_host_answers_with_another_header_and_route(mesh: PatchedMesh):
    added = {"header": {"key": "x-host", "value": "patched"}}
    teapot = {"match": {"path": "/tea"}, "directResponse": {"status": 418}, "name": "tea"}
    mesh.patched(
        {
            "virtualHost": {
                "operation": "Patch",
                "match": {"origin": "outbound"},
                "value": {"response_headers_to_add": [added]},
            }
        },
        {
            "virtualHost": {
                "operation": "Patch",
                "match": {"origin": "outbound"},
                "jsonPatches": [{"op": "add", "path": "/routes/0", "value": teapot}],
            }
        },
    )
    answer = mesh.get()
    assert (answer.status, answer.headers["x-host"]) == (200, "patched")
    assert mesh.get("/tea").status == 418


@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_a_broken_modification_is_shown_and_leaves_traffic_and_the_other_modifications_alone(
    mesh: PatchedMesh,
):
    absent = [{"op": "replace", "path": "/cleanupInterval", "value": "1s"}]
    broken = {"cluster": {"operation": "Patch", "match": {"origin": "outbound"}, "jsonPatches": absent}}
    refused = {
        "cluster": {"operation": "Patch", "match": {"origin": "outbound"}, "value": {"connect_timeout": "0s"}}
    }
    added = {"header": {"key": "x-host", "value": "still"}}
    good = {
        "virtualHost": {
            "operation": "Patch",
            "match": {"origin": "outbound"},
            "value": {"response_headers_to_add": [added]},
        }
    }
    mesh.apply_and_wait(mesh.patch("wrong", broken, refused, good))
    assert mesh.get().headers["x-host"] == "still"
    shown = mesh.koguma("get", "proxies").stdout
    place = "spec.default.appendModifications"
    assert (
        f"{place}[0].cluster.jsonPatches[0]: cannot replace /cleanupInterval: there is no such place" in shown
    )
    assert f"{place}[1].cluster: Envoy would refuse the result: connect_timeout" in shown
    assert "kri_mpp_default_" in shown
    checked = mesh.koguma("check", check=False)
    assert checked.returncode == 1
    assert "cleanupInterval" in checked.stdout
    mesh.delete_and_wait("meshproxypatches", "wrong")
    assert "x-host" not in mesh.get().headers
    assert "appendModifications" not in mesh.koguma("get", "proxies").stdout
    assert "cleanupInterval" not in mesh.koguma("check", check=False).stdout
