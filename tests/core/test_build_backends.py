"""Where a route's requests go: which port of which service a reference means, and what leads nowhere."""

from typing import Any

import pytest
from building import database, stored

from koguma.core import world
from koguma.core.build import backends
from koguma.core.build.backends import BackendPort, OriginalDestination
from koguma.envoy.routes import Backend
from koguma.model.resource import Key
from tests import build


def service(name: str, *ports: tuple[str, int, str], zone: str = "east", **more: Any) -> Any:
    listed = [build.port(number, protocol, name=port) for port, number, protocol in ports]
    return stored(build.mesh_service(name, *listed, **{"x-zone": zone, **more}))


def key(name: str, zone: str = "east", kind: str = "MeshService") -> Key:
    return Key(kind, "default", zone, "", name)


ONE = ("http", 80, "http")
TWO = (("http", 80, "http"), ("admin", 81, "http2"))
SERVICES = (
    service("original", *TWO),
    service("one", ONE),
    service("two", *TWO),
    service("other-ports", ("a", 1, "http"), ("b", 2, "http")),
    service("bytes", ("tcp", 80, "tcp")),
    service("one", ONE, zone="west"),
    service("far", ONE, zone="west", labels={"app": "far"}),
    service("near", ONE, labels={"app": "far"}),
)
ORIGINAL = OriginalDestination(key("original"), "admin")
ROUTE = key("route", kind="MeshHTTPRoute")


def resolved(
    ref: Any,
    origin: Key = ROUTE,
    original: OriginalDestination = ORIGINAL,
    services: tuple[Any, ...] = SERVICES,
) -> BackendPort | None:
    return backends.resolved(database(services), {"kind": "MeshService", **ref}, origin, original)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ({"name": "one"}, ("one", "http")),
        ({"name": "one", "port": 80}, ("one", "http")),
        ({"name": "two", "port": 81}, ("two", "admin")),
        ({"name": "two", "port": "admin"}, ("two", "admin")),
        ({"name": "two", "sectionName": "http"}, ("two", "http")),
        ({"name": "two"}, ("two", "admin")),  # the port that the request was addressed to
        ({"name": "one", "port": 81}, None),
        ({"name": "other-ports"}, None),
        ({"name": "nobody"}, None),
        ({"name": "far"}, None),  # a name means the own zone's
        ({"name": "bytes"}, None),  # who expects bytes does not get requests
        ({"kind": "MeshMultiZoneService", "name": "one"}, None),
        ({"kind": "MeshServiceSubset", "name": "one"}, ("one", "http")),
    ],
)
def test_a_reference_means_a_port_or_nothing(ref: Any, expected: tuple[str, str] | None):
    assert resolved(ref) == (BackendPort(key(expected[0]), expected[1]) if expected else None)


def test_connections_may_go_wherever_bytes_are_taken():
    original = OriginalDestination(key("original"), "http", is_http=False)
    assert resolved({"name": "bytes"}, original=original) == BackendPort(key("bytes"), "tcp")
    assert resolved({"name": "one"}, original=original) == BackendPort(key("one"), "http")


def test_tags_choose_some_endpoints_and_the_service_is_none_of_them():
    ref = {
        "kind": "MeshServiceSubset",
        "name": "one",
        "tags": {"version": "v1", "kuma.io/service": "one", "env": "dev"},
    }
    assert resolved(ref) == BackendPort(key("one"), "http", (("env", "dev"), ("version", "v1")))


def test_a_route_of_global_means_the_service_of_the_zone_that_requests_were_going_to():
    of_global = ROUTE._replace(zone="")
    assert resolved({"name": "one"}, origin=of_global) == BackendPort(key("one"), "http")
    west = OriginalDestination(key("one", "west"), "http")
    assert resolved({"name": "one"}, origin=of_global, original=west) == BackendPort(
        key("one", "west"), "http"
    )


def test_of_several_services_with_the_labels_it_is_the_nearest():
    ref = {"labels": {"app": "far"}}
    assert resolved(ref) == BackendPort(key("near"), "http")
    assert resolved(ref, original=OriginalDestination(key("one", "west"), "http")) == BackendPort(
        key("far", "west"), "http"
    )


def test_a_route_of_another_namespace_may_name_the_service_that_it_is_about():
    elsewhere = ROUTE._replace(namespace="elsewhere")
    assert resolved({"name": "original"}, origin=elsewhere) == BackendPort(key("original"), "admin")
    assert resolved({"name": "one"}, origin=elsewhere) is None


def test_a_service_that_has_no_identifier_is_nothing():
    old = service("old", ONE, **{"x-name": "old_one"})
    assert resolved({"name": "old_one"}, services=(*SERVICES, old)) is None


def test_kubernetes_words_for_protocols_mean_http():
    named = service("named", ("h2c", 80, "kubernetes.io/h2c"), ("ws", 81, "kubernetes.io/ws"))
    db = database((*SERVICES, named))
    assert [world.port(db, key("named"), each).protocol for each in ("h2c", "ws")] == ["http2", "http"]
    assert resolved({"name": "named", "port": 81}, services=(*SERVICES, named)) == BackendPort(
        key("named"), "ws"
    )


def test_a_backend_with_a_filter_that_is_only_for_whole_rules_keeps_its_weight():
    headers = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-a"]}}
    rewrite = {"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}}
    found = split(ref("one", filters=[headers]), ref("two", weight=3, filters=[headers, rewrite]))
    assert found == ({"one": 1}, 3, ["one"])


def split(*refs: Any) -> Any:
    found, needed = backends.split(database(SERVICES), list(refs) or None, ROUTE, ORIGINAL)
    shares = {each.cluster.split("_")[5]: each.weight for each in found.backends}
    return shares, found.unresolved, sorted(each.destination.name for each in needed)


def ref(name: str, **more: Any) -> Any:
    return {"kind": "MeshService", "name": name, **more}


def test_without_backends_requests_go_where_they_were_going():
    assert split() == ({"original": 1}, 0, ["original"])


def test_a_weight_is_one_unless_written_and_zero_is_no_backend():
    assert split(ref("one"), ref("two", weight=3), ref("original", weight=0)) == (
        {"one": 1, "two": 3},
        0,
        ["one", "two"],
    )


def test_what_leads_nowhere_keeps_its_weight():
    found = split(ref("one", weight=2), ref("nobody", weight=3), ref("bytes"), ref("no", weight=0))
    assert found == ({"one": 2}, 4, ["one"])


def test_if_nothing_has_a_weight_nothing_is_reached():
    found, needed = backends.split(database(SERVICES), [ref("one", weight=0)], ROUTE, ORIGINAL)
    assert (found.backends, found.unresolved_share, needed) == ((), 1, ())


def test_only_calls_to_the_outside_get_the_servers_own_host_name():
    spec = {"match": {"type": "HostnameGenerator", "port": 443, "protocol": "http"}}
    outside = stored(
        {
            "type": "MeshExternalService",
            "mesh": "default",
            "name": "out",
            "spec": {**spec, "endpoints": [{"address": "1.1.1.1", "port": 443}]},
        }
    )
    refs = [{"kind": "MeshExternalService", "name": "out"}, ref("one")]
    found, _ = backends.split(database((*SERVICES, outside)), refs, ROUTE, ORIGINAL)
    assert found.backends == (
        Backend("kri_extsvc_default_east__out_443", 1, (), auto_host_rewrite=True),
        Backend("kri_msvc_default_east__one_http", 1),
    )
