"""Virtual hosts apart from their routes, and put back into them."""

from koguma.envoy import virtual_hosts
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Snapshot, XdsResource, bundle
from tests.xds.fake_gate import schema

ADS = {"ads": {}, "resource_api_version": "V3"}


def encoder() -> Encoder:
    return Encoder(schema())


def routes(name: str, **more: object) -> XdsResource:
    return encoder().resource("routes", name, {"name": name, "ignore_port_in_host_matching": True, **more})


def host(name: str, cluster: str) -> XdsResource:
    route = {"match": {"prefix": "/"}, "route": {"cluster": cluster}}
    data = {"name": name, "domains": [name.rpartition("/")[2]], "routes": [route]}
    return encoder().resource("virtual_host", name, data, [("cluster", cluster)])


def test_routes_say_that_their_hosts_come_one_by_one():
    found = encoder().decoded(virtual_hosts.discovering(routes("r")))
    assert found == {"name": "r", "ignore_port_in_host_matching": True, "vhds": {"config_source": ADS}}


def test_hosts_are_put_back_into_their_routes():
    own = virtual_hosts.discovering(routes("r"))
    other = bundle([routes("q"), *(host(f"r/{name}", name) for name in ("b", "a"))])
    snapshot = Snapshot((bundle([own]), other, bundle([])))
    inlined = virtual_hosts.inlined(snapshot)
    assert [*inlined] == [*virtual_hosts.inlined(snapshot)]
    assert inlined.bundles[1] is virtual_hosts.inlined(snapshot).bundles[1]
    assert inlined.bundles[2] is snapshot.bundles[2]
    assert {each.id for each in inlined} == {("routes", "q"), ("routes", "r")}
    found = inlined.get(("routes", "r"))
    assert found is not None
    assert found.needs == (("cluster", "a"), ("cluster", "b"))
    data = encoder().decoded(found)
    assert [each["name"] for each in data["virtual_hosts"]] == ["r/a", "r/b"]
    assert "vhds" not in data
    hosts = [encoder().decoded(host(f"r/{name}", name)) for name in ("a", "b")]
    assert data == encoder().decoded(routes("r", virtual_hosts=hosts))
    changed = Snapshot((snapshot.bundles[0], bundle([host("r/a", "c")]), snapshot.bundles[2]))
    assert virtual_hosts.inlined(changed).get(("routes", "r")) != found


def test_a_snapshot_without_such_hosts_stays_as_it_is():
    snapshot = Snapshot((bundle([routes("r")]),))
    assert virtual_hosts.inlined(snapshot) is snapshot
