"""What proxies of a gateway are offered, by the variant of xDS that they speak."""

import pytest

from koguma.envoy.snapshot import ROUTES, VIRTUAL_HOST
from koguma.xds.contract import ProxyStatus, Rejection
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer, web_token

EDGE = "kri_mgw_default_default__edge_8080"
GATEWAY = {
    "type": "MeshGateway",
    "mesh": "default",
    "name": "edge",
    "selectors": [{"match": {"kuma.io/service": "web"}}],
    "conf": {"listeners": [{"port": 8080, "protocol": "HTTP", "hostname": "shop.lan"}]},
}


def dataplane(name: str) -> dict[str, object]:
    gateway = {"type": "BUILTIN", "tags": {"kuma.io/service": "web"}}
    networking = {"address": "127.0.0.1", "gateway": gateway}
    return {"type": "Dataplane", "mesh": "default", "name": name, "networking": networking}


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        assert running("PUT", "/meshes/default/meshgateways/edge", GATEWAY).status == 201
        yield running


def test_virtual_hosts_are_apart_or_inside_their_routes(plane):
    token = web_token(plane)
    apart = connect(plane, dataplane("edge-1"), name="edge-1", shown=token)
    inside = connect(plane, dataplane("edge-2"), name="edge-2", shown=token, is_delta=False)
    hosts = {f"{EDGE}/shop.lan", f"{EDGE}/_kuma_route_not_found"}
    one, other = (plane.run(next_offer(each)).snapshot for each in (apart, inside))
    assert set(one.of_type(VIRTUAL_HOST)) == hosts
    assert set(other.of_type(VIRTUAL_HOST)) == set()
    whole = other.of_type(ROUTES)[EDGE]
    assert all(host.body in whole.body for host in one.of_type(VIRTUAL_HOST).values())

    # What the older variant refuses is the routes as it got them, and they are held as such.
    refused = Rejection(ROUTES, (EDGE,), "boom", _revision(inside), (whole.version,))
    inside.report(ProxyStatus("nack", 1, 0, (refused,)))
    held = plane.plane._proxies.fleet.quarantine.of(inside.key)
    assert held[ROUTES, EDGE].version == whole.version


def _revision(connection) -> int:
    return connection._offer.revision
