"""`koguma dp run --gateway` on real processes: registration, readiness, limits of connections, its end."""

import contextlib
import json

import pytest

from tests.http_client import call
from tests.kuma_dp import KumaDp
from tests.live_mesh import LiveMesh
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

GATEWAY = {
    "type": "MeshGateway",
    "name": "edge",
    "selectors": [{"match": {"kuma.io/service": "edge"}}],
}
FILE = """
type: Dataplane
mesh: {{ mesh }}
name: edge-file
networking:
  address: 127.0.0.1
  gateway: {type: BUILTIN, tags: {kuma.io/service: edge, team: front}}
"""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    with LiveMesh(tmp_path_factory.mktemp("gw"), "shop") as live:
        live.apply({"type": "Mesh", "name": "shop"})
        yield live


def limits(gateway):
    """The limits of listeners that a gateway's Envoy has now."""
    entries = json.loads(gateway.admin("/runtime"))["entries"]
    prefix, suffix = "envoy.resource_limits.listener.", ".connection_limit"
    return {
        name.removeprefix(prefix).removesuffix(suffix): entry["final_value"]
        for name, entry in entries.items()
        if name.startswith(prefix)
    }


def test_a_gateway_registers_itself_and_is_ready_before_there_is_a_mesh_gateway(mesh):
    gateway = mesh.gateway()
    assert "warning: no MeshGateway selects the tags kuma.io/service=edge" in gateway.output
    stored = mesh.request("GET", "/meshes/shop/dataplanes/edge-1").json
    assert stored["networking"] == {
        "address": "127.0.0.1",
        "gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}},
    }
    assert limits(gateway) == {}
    assert gateway.stop() == 0
    until(
        lambda: mesh.request("GET", "/meshes/shop/dataplanes/edge-1").status == 404, "its Dataplane is gone"
    )


def listener(port, limit=None, **fields):
    resources = {"resources": {"connectionLimit": limit}} if limit else {}
    return {"port": port, "protocol": "HTTP", **resources, **fields}


@pytest.mark.parametrize("variant", ["DELTA_GRPC", "GRPC"])
def test_kumas_agent_runs_a_gateway_too(mesh, variant):
    port = free_port()
    direct = {"type": "DirectResponse", "directResponse": {"status": 418}}
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "default": {"filters": [direct]}}
    to = {"targetRef": {"kind": "Mesh"}, "rules": [rule]}
    top = {"kind": "MeshGateway", "name": "edge"}
    mesh.apply(
        {**GATEWAY, "conf": {"listeners": [listener(port, 9)]}},
        {"type": "MeshHTTPRoute", "name": "teapot", "spec": {"targetRef": top, "to": [to]}},
    )
    document = {
        "type": "Dataplane",
        "name": f"kuma-{variant.lower().replace('_', '-')}",
        "networking": {
            "address": "127.0.0.1",
            "admin": {"port": free_port()},
            "gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}},
        },
        "envoy": {"xdsTransportProtocolVariant": variant},
    }
    with contextlib.closing(KumaDp(mesh, document)) as kuma:
        kuma.wait()
        until(lambda: call(port).status == 418, "the gateway answers")
        entries = kuma.admin("/runtime").json["entries"]
        limit = f"envoy.resource_limits.listener.kri_mgw_shop_default__edge_{port}.connection_limit"
        assert entries[limit]["final_value"] == "9"
    mesh.delete("meshhttproutes", "teapot")
    mesh.delete("meshgateways", "edge")


def test_limits_of_all_listeners_come_as_one_resource_and_change_without_a_restart(mesh, tmp_path):
    file = tmp_path / "edge.yaml"
    file.write_text(FILE)
    flags = ("--dataplane-file", str(file), "--dataplane-var", "mesh=shop")
    gateway = mesh.gateway("edge-file", "edge", flags=flags, team="front")
    name = "kri_mgw_shop_default__edge_"
    first, second, third = (free_port() for _ in range(3))
    listeners = [listener(first, 3), listener(second), listener(third, 7, protocol="TCP")]
    mesh.apply_and_wait({**GATEWAY, "conf": {"listeners": listeners}})
    assert limits(gateway) == {f"{name}{first}": "3", f"{name}{third}": "7"}
    mesh.apply_and_wait({**GATEWAY, "conf": {"listeners": [listener(first, 5), listener(third)]}})
    assert limits(gateway) == {f"{name}{first}": "5"}
    mesh.delete_and_wait("meshgateways", "edge")
    assert limits(gateway) == {}
    assert gateway.stop() == 0
