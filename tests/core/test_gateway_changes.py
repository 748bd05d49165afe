"""What a change touches of what gateways get: proxies share, and one route builds one virtual host."""

from typing import Any

import msgspec
from building import bodies, database, decoded, proxy, stored, watcher

from koguma.core import world
from koguma.core.build import snapshot
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, LISTENER, Snapshot
from koguma.model.resource import Resource
from tests import build

N_ROUTES = 40
GATEWAYS = ("edge-1", "edge-2")


def gateway_proxy(name: str, address: str) -> Resource:
    gateway = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}
    return stored(build.document("Dataplane", name, networking={"address": address, "gateway": gateway}))


def mesh_gateway(*listeners: Any) -> Resource:
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    conf = {"listeners": list(listeners) or [{"port": 80, "protocol": "HTTP"}]}
    return stored(build.document("MeshGateway", "edge", selectors=selectors, conf=conf))


def route(number: int, path: str = "/", service: str = "a", **top: Any) -> Resource:
    rule = build.http_rule(path, backends=[build.service_ref(service)])
    to = {"targetRef": {"kind": "Mesh"}, "hostnames": [f"h{number}.lan"], "rules": [rule]}
    ref = {"kind": "MeshGateway", "name": "edge", **top}
    return stored(build.document("MeshHTTPRoute", f"r{number}", spec={"targetRef": ref, "to": [to]}))


def running() -> Db:
    """Two proxies of one gateway, both connected."""
    objects = [stored(build.mesh(mtls=build.builtin_mtls())), mesh_gateway()]
    objects += [gateway_proxy(name, f"10.0.0.{number}") for number, name in enumerate(GATEWAYS, start=1)]
    objects += [stored(build.mesh_service(name, build.port())) for name in ("a", "b")]
    db = database([*objects, *(route(number) for number in range(N_ROUTES))])
    for name in GATEWAYS:
        watcher(db).add(proxy(db, name))
    watcher(db).changed()
    db.reset_counts()
    return db


def of(db: Db, name: str) -> Snapshot:
    found = watcher(db).of(proxy(db, name))
    assert found is not None
    return found


def changed(db: Db, *resources: Resource) -> dict[str, int]:
    """Take changes; how often each question of the build ran for them."""
    db.reset_counts()
    for resource in resources:
        db.set(world.RESOURCES, resource.key, resource)
    assert {key.name for key in watcher(db).changed()} == set(GATEWAYS)
    return dict(db.runs)


def runs(counts: dict[str, int], ending: str) -> int:
    return sum(count for name, count in counts.items() if name.endswith(ending))


def from_scratch(db: Db) -> Db:
    return database(resource for _, resource in world.RESOURCES.items(db))


def test_proxies_of_a_gateway_share_all_but_their_listeners():
    db = running()
    first, second = (of(db, name) for name in GATEWAYS)
    assert [a is b for a, b in zip(first.bundles, second.bundles, strict=True)].count(True) >= 3
    differing = {a.id for a in first if second.get(a.id) != a}
    assert differing == {(LISTENER, "kri_mgw_default_east__edge_80")}


def test_a_changed_rule_builds_one_virtual_host():
    db = running()
    counts = changed(db, route(7, "/other"))
    assert runs(counts, "virtual_host") == 1
    assert runs(counts, "gateway_listeners.listener") == runs(counts, "clusters.cluster") == 0


def test_a_new_route_builds_one_virtual_host():
    db = running()
    counts = changed(db, route(N_ROUTES))
    assert runs(counts, "virtual_host") == runs(counts, "gateways._ranked") == 1


def test_a_route_that_goes_builds_nothing_for_whom_nobody_is_there():
    db = running()
    db.remove(world.RESOURCES, route(7).key)
    assert {key.name for key in watcher(db).changed()} == set(GATEWAYS)
    assert runs(dict(db.runs), "virtual_host") <= 1  # its own, before it is gone
    assert runs(dict(db.runs), "gateway.shared") <= 2  # as it was, and as it is
    assert runs(dict(db.runs), "gateways._ranked") <= 2


def test_a_backend_that_comes_and_goes_changes_the_hosts_that_name_it():
    db = running()
    assert runs(changed(db, route(7, service="b")), "virtual_host") == 1
    assert of(db, "edge-1").get((CLUSTER, "kri_msvc_default_east__b_80")) is not None
    changed(db, route(7))
    assert of(db, "edge-1").get((CLUSTER, "kri_msvc_default_east__b_80")) is None


def test_what_is_built_in_steps_equals_what_is_built_at_once():
    db = running()
    tls = {"mode": "PASSTHROUGH"}
    changed(
        db,
        mesh_gateway(
            {"port": 80, "protocol": "HTTP", "hostname": "*.lan", "name": "wide"},
            {"port": 80, "protocol": "HTTP", "hostname": "h3.lan"},
            {"port": 81, "protocol": "TLS", "hostname": "h4.lan", "tls": tls},
        ),
    )
    changed(db, route(5, sectionName="wide"), route(6, "/a/b"))
    scratch = from_scratch(db)
    for name in GATEWAYS:
        assert bodies(of(db, name)) == bodies(snapshot.of(scratch, proxy(scratch, name)))


def test_a_stored_route_that_cannot_be_encoded_answers_with_an_error_and_hurts_no_other():
    whole = route(7)
    entry = whole.spec["to"][0]
    half = {"name": "x", "value": "\ud800"}  # of a pair of surrogates, which is no text
    spoiled = build.http_rule("/spoiled", filters=[build.response_header(**half)])
    rules = [{**spoiled, "default": {**spoiled["default"], **entry["rules"][0]["default"]}}, *entry["rules"]]
    db = running()
    before = of(db, "edge-1")
    changed(db, msgspec.structs.replace(whole, spec={**whole.spec, "to": [{**entry, "rules": rules}]}))
    after = of(db, "edge-1")
    assert {each.id for each in before} == {each.id for each in after}
    assert {each.name for each in after.failures} == {"kri_mhttpr_default_east__r7_"}
    (host,) = [each for each in hosts(after) if each["domains"] == ["h7.lan"]]
    answers = {str(each["match"]): each.get("direct_response", {}).get("status") for each in host["routes"]}
    assert answers == {"{'path': '/spoiled'}": 500, "{'prefix': '/spoiled/'}": 500, "{'prefix': '/'}": None}


def hosts(of_proxy: Snapshot) -> list[dict[str, Any]]:
    """The virtual hosts of a gateway, wherever they are sent."""
    every = [decoded(each) for each in of_proxy]
    inside = [host for each in every for host in each.get("virtual_hosts") or ()]
    return inside + [each for each in every if "domains" in each]
