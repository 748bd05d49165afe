"""What a change touches of what Envoys get, and what the engine asks again for it."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from building import database, proxies, proxy, stored, watcher

from koguma.core import pipeline, world
from koguma.core.build import network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy.snapshot import Id, Snapshot
from koguma.model.resource import Resource
from tests import build

LINK = NodeMetadata(("feature-bind-outbounds", "feature-embedded-dns"), "/w", 9901)
SERVICES = ("a", "b", "c")


def service(name: str, number: int = 1, **more: Any) -> Resource:
    status = {"vips": [{"ip": f"241.0.0.{number}"}], "tls": {"status": "Ready"}, **more}
    port = build.port(name="http", targetPort=8080)
    return stored(build.mesh_service(name, port, labels={"app": name}, status=status))


def multi_zone(name: str, app: str) -> Resource:
    fields = {"status": {"vips": [{"ip": "243.0.0.1"}]}, "x-zone": ""}
    return stored(build.multi_zone_service(name, build.port(name="http"), labels={"app": app}, **fields))


def proxy_at(at: str, name: str, service: str, **inbound: Any) -> Resource:
    inbounds = [build.inbound(service, 8080, name="main", **inbound)]
    return stored(build.dataplane(name, address=at, inbound=inbounds))


def timeout(policy: str, seconds: int, **ref: str) -> Resource:
    conf = {"connectionTimeout": f"{seconds}s", "http": {"requestTimeout": f"{seconds}s"}}
    return stored(build.policy("MeshTimeout", policy, (ref or build.ANY, conf)))


def route(value: str) -> Resource:
    rule = build.http_rule(filters=[build.response_header("x-v", value)])
    return stored(build.http_route("r", rule, to="a"))


def mesh(mode: str = "STRICT") -> Resource:
    return stored(build.mesh(mtls=build.builtin_mtls(mode=mode)))


def generator() -> Resource:
    return stored(build.hostname_generator("all", "{{ .DisplayName }}.mesh"))


def running(n_each: int = 2) -> Db:
    """A mesh of three services, each called by everybody; every proxy is connected."""
    there = [mesh(), generator(), timeout("t", 5), route("1"), multi_zone("m", "a")]
    there += [service(name, number) for number, name in enumerate(SERVICES, start=1)]
    for number, name in enumerate(SERVICES):
        there += [proxy_at(f"10.0.{number}.{i + 1}", f"{name}-{i}", name) for i in range(n_each)]
    db = database(there)
    for key in proxies(db):
        connect(db, key)
    watcher(db).changed()
    db.reset_counts()
    return db


def connect(db: Db, key: Any) -> None:
    db.set(network.NODE_METADATA, key, LINK)
    watcher(db).add(key)


def touched(before: Snapshot | None, after: Snapshot | None) -> set[Id]:
    """What is new, gone or different."""
    old, new = ({resource.id: resource.version for resource in each or ()} for each in (before, after))
    return {id_ for id_ in old | new if old.get(id_) != new.get(id_)}


def after(db: Db, *written: Resource, gone: Iterable[Resource] = ()) -> dict[str, set[Id]]:
    """What a change touches, by connected proxy; all of them were told."""
    known = {key: snapshot.of(db, key) for key in network.NODE_METADATA.keys(db)}
    db.reset_counts()
    pipeline.take(db, written, [each.key for each in gone])
    told = set(watcher(db).changed())
    ran = dict(db.runs)
    found = {key: touched(known.get(key), snapshot.of(db, key)) for key in known}
    db.runs.clear()
    db.runs.update(ran)
    assert told == {key for key, ids in found.items() if ids}
    return {key.name: ids for key, ids in found.items() if ids}


def ran(db: Db, *starts: str) -> dict[str, int]:
    return {name: times for name, times in db.runs.items() if times and name.startswith(starts)}


ALL = ("a-0", "a-1", "b-0", "b-1", "c-0", "c-1")
OF_A = {("endpoints", "kri_msvc_default_east__a_http"), ("endpoints", "kri_mzsvc_default___m_http")}


@pytest.mark.parametrize(
    "moved",
    [
        proxy_at("10.9.9.9", "a-0", "a"),
        proxy_at("10.0.0.1", "a-0", "a", state="NotReady"),
        proxy_at("10.0.0.1", "a-0", "a", address="10.0.0.77"),
    ],
)
def test_a_moved_endpoint_touches_the_endpoints_of_its_services_and_nothing_else(moved: Resource):
    db = running()
    found = after(db, moved)
    own = found.pop("a-0")
    assert found == dict.fromkeys(("a-1", "b-0", "b-1", "c-0", "c-1"), OF_A)
    assert own >= OF_A
    assert {name for _, name in own - OF_A} <= {"kri_dp_default_east__a-0_main", "_kuma_envoy_admin"}
    assert not ran(db, "match.", "rules.", "outbound_listeners.listener", "overlays.outbound")


def test_a_proxy_that_comes_or_goes_touches_endpoints_only():
    db = running()
    new = proxy_at("10.0.0.99", "a-9", "a")
    assert after(db, new) == dict.fromkeys(ALL, OF_A)
    assert not ran(db, "outbound_listeners.listener")
    assert after(db, gone=[new]) == dict.fromkeys(ALL, OF_A)


def test_an_edited_limit_finds_no_selector_and_no_target_again():
    db = running()
    found = after(db, timeout("t", 6))
    types = {type_ for ids in found.values() for type_, _ in ids}
    assert types == {"cluster", "routes"}
    assert not ran(db, "match.matched", "match.traits", "match.mentioned", "rules.class_of", "rules.outbound")


def test_a_limit_for_one_service_touches_that_service_only():
    db = running()
    found = after(db, timeout("on-b", 9, kind="MeshService", name="b"))
    name = "kri_msvc_default_east__b_http"
    assert found == dict.fromkeys(ALL, frozenset({("cluster", name), ("routes", name)}))


def test_an_edited_route_touches_its_own_routes_and_no_listener_or_cluster():
    db = running()
    found = after(db, route("2"))
    assert set(map(frozenset, found.values())) == {frozenset({("routes", "kri_msvc_default_east__a_http")})}
    assert len(found) == 6
    assert not ran(db, "match.matched", "clusters.cluster", "overlays.")


def test_news_of_proxies_in_a_status_touch_nothing():
    db = running()
    assert after(db, service("a", 1, dataplaneProxies={"connected": 2, "healthy": 2, "total": 2})) == {}
    assert not ran(db, "snapshot.", "outbound_spec.", "outbound.resources")


def test_an_object_that_nobody_reads_runs_nothing():
    db = running()
    secret = stored({"type": "Secret", "mesh": "default", "name": "s", "data": "YWFh"})
    assert after(db, secret) == {}
    assert ran(db, "") == {}


def test_a_proxy_like_others_shares_what_it_calls_with_them():
    db = running()
    twin = proxy_at("10.0.1.99", "b-9", "b")
    pipeline.take(db, [twin])
    watcher(db).changed()
    db.reset_counts()
    connect(db, twin.key)
    assert not ran(
        db,
        "outbound.",
        "outbound_listeners.",
        "outbound_clusters.",
        "outbound_rules.",
        "clusters.",
        "overlays.outbound",
        "match.matched",
    )
    first, second = (snapshot.of(db, key) for key in (twin.key, proxy(db, "a-0")))
    assert first.bundles[0] is second.bundles[0]


def test_what_connects_later_gets_its_names_and_loses_them_when_it_goes():
    db = running()
    key = proxy(db, "a-0")
    before = snapshot.of(db, key)
    db.remove(network.NODE_METADATA, key)
    assert watcher(db).changed() == [key]
    gone = {id_ for _, id_ in touched(before, snapshot.of(db, key))}
    assert {"_kuma_dynamicconfig", "_kuma_envoy_admin", "kri_msvc_default_east__b_http"} <= gone
    db.set(network.NODE_METADATA, key, LINK)
    watcher(db).changed()
    assert snapshot.of(db, key) == before


def test_mtls_touches_listeners_and_clusters_and_leaves_endpoints_and_routes():
    db = running()
    types = {type_ for ids in after(db, mesh("PERMISSIVE")).values() for type_, _ in ids}
    assert types == {"listener"}  # every service is ready for mTLS, so nobody calls otherwise
    types = {
        type_ for ids in after(db, stored({"type": "Mesh", "name": "default"})).values() for type_, _ in ids
    }
    assert types == {"listener", "cluster", "extension"}


def test_a_label_that_nobody_asks_for_touches_nothing():
    db = running()
    known = world.RESOURCES.get(db, timeout("t", 5).key)
    assert after(db, msgspec.structs.replace(known, labels={**known.labels, "note": "x"})) == {}
    assert not ran(db, "snapshot.", "outbound_spec.", "overlays.")
