"""Virtual hosts of a gateway are built and sent one by one."""

from typing import Any

from building import database, decoded, proxy, stored

from koguma.core import pipeline
from koguma.core.build import snapshot
from koguma.core.incremental import Db
from koguma.xds.protocol import bundle_diff

ROUTES = "kri_mgw_default_east__edge_8080"
MESH = (
    {"type": "Mesh", "name": "default"},
    {
        "type": "Dataplane",
        "mesh": "default",
        "name": "edge-1",
        "networking": {
            "address": "127.0.0.1",
            "gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}},
        },
    },
    {
        "type": "MeshGateway",
        "mesh": "default",
        "name": "edge",
        "selectors": [{"match": {"kuma.io/service": "edge"}}],
        "conf": {"listeners": [{"port": 8080, "protocol": "HTTP"}]},
    },
    {
        "type": "MeshService",
        "mesh": "default",
        "name": "shop",
        "spec": {
            "selector": {"dataplaneTags": {"kuma.io/service": "shop"}},
            "ports": [{"port": 80, "targetPort": 80, "appProtocol": "http"}],
        },
    },
)


def route(number: int, path: str = "/") -> dict[str, Any]:
    backend = {"kind": "MeshService", "name": "shop", "port": 80}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "default": {"backendRefs": [backend]},
    }
    entry = {"targetRef": {"kind": "Mesh"}, "hostnames": [f"h{number}.lan"], "rules": [rule]}
    spec = {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "to": [entry]}
    return {"type": "MeshHTTPRoute", "mesh": "default", "name": f"r{number}", "spec": spec}


def mesh(n_routes: int) -> Db:
    return database(map(stored, (*MESH, *map(route, range(n_routes)))))


def patch(value: dict[str, Any], **match: str) -> dict[str, Any]:
    modification = {"virtualHost": {"operation": "Patch", "match": match, "value": value}}
    spec = {
        "targetRef": {"kind": "Mesh"},
        "default": {"appendModifications": [modification]},
    }
    return {"type": "MeshProxyPatch", "mesh": "default", "name": "patch", "spec": spec}


def test_a_changed_route_touches_its_own_virtual_host_only():
    db = mesh(200)
    before = snapshot.of(db, proxy(db, "edge-1"))
    spec = snapshot.own(db, proxy(db, "edge-1")).shared_spec
    db.watch(snapshot.shared, spec)
    runs = dict(db.runs)
    pipeline.take(db, [stored(route(7, "/new"))])
    db.changed()
    ran = {name: count - runs.get(name, 0) for name, count in db.runs.items() if count != runs.get(name, 0)}
    after = snapshot.of(db, proxy(db, "edge-1"))
    assert [*bundle_diff.changed_ids(before, after)] == [("virtual_host", f"{ROUTES}/h7.lan")]
    assert bundle_diff.content_diff(before, after).type == "virtual_host"
    assert max(ran.values()) == 1, ran  # no question ran for two of anything
    assert len(after.of_type("virtual_host")) == 201  # and one for hosts that have none


def test_the_routes_of_a_gateway_do_not_change_with_their_hosts():
    one, many = (snapshot.of(db, proxy(db, "edge-1")) for db in (mesh(1), mesh(3)))
    assert one.get(("routes", ROUTES)) == many.get(("routes", ROUTES))


def test_patches_reach_virtual_hosts_that_are_sent_apart():
    db = mesh(2)
    value = {"require_tls": "ALL"}
    for match in ({"name": "h1.lan"}, {"name": f"{ROUTES}/h1.lan", "routeConfigurationName": ROUTES}):
        pipeline.take(db, [stored(patch(value, **match))])
        made = snapshot.of(db, proxy(db, "edge-1"))
        patched = {
            name.rpartition("/")[2]: decoded(host).get("require_tls")
            for name, host in made.of_type("virtual_host").items()
        }
        assert patched == {"h0.lan": None, "h1.lan": "ALL", "*": None}, match
        assert made.failures == ()
