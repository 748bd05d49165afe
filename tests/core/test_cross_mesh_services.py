"""How other meshes call a gateway: what is derived for them, when that changes, and how it leads back."""

import ipaddress

import build
import building
import pytest
from building import HERE, KINDS, database, of, plain, stored

from koguma.core import (
    cross_mesh_services,
    hostnames,
    inspect,
    loading,
    pipeline,
    problems,
    statuses,
    vips,
    world,
)
from koguma.core.build import what_if
from koguma.core.incremental import Db
from koguma.model import ip_range
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.proof import from_scratch

MTLS = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}
INTERNAL = "internal.edge.shop.mesh"
SERVICE = Key("MeshExternalService", "default", "east", "", INTERNAL)


def mesh(name: str, *, mtls: bool = True) -> Resource:
    return stored({"type": "Mesh", "name": name, **({"mtls": MTLS} if mtls else {})})


def gateway(*listeners: dict, mesh: str = "shop", name: str = "edge", service: str = "edge") -> Resource:
    written = [{"protocol": "HTTP", "crossMesh": True, **each} for each in listeners or ({"port": 80},)]
    selectors = [{"match": {"kuma.io/service": service}}]
    return stored(
        {
            "type": "MeshGateway",
            "mesh": mesh,
            "name": name,
            "selectors": selectors,
            "conf": {"listeners": written},
        }
    )


def gateway_proxy(name: str = "edge-1", address: str = "10.1.0.1", **tags: str) -> Resource:
    own = {"kuma.io/service": "edge", **tags}
    networking = {"address": address, "gateway": {"type": "BUILTIN", "tags": own}}
    return stored({"type": "Dataplane", "mesh": "shop", "name": name, "networking": networking})


def external(name: str, value: str, mesh: str = "default") -> Resource:
    spec = {
        "match": [{"type": "InternalVIP", "value": value, "port": 80, "protocol": "http"}],
        "destination": {"type": "Regular", "endpoints": [{"address": "10.0.0.1"}]},
    }
    return stored({"type": "MeshExternalService", "mesh": mesh, "name": name, "spec": spec})


MESHES = (mesh("default"), mesh("shop"))


def loaded(*resources: Resource) -> Db:
    return loading.load(KINDS, HERE, (*MESHES, *resources))


def derived(db: Db) -> list[Key]:
    return [key for key, each in world.RESOURCES.items(db) if isinstance(each, DerivedResource)]


def test_every_other_mesh_with_mtls_can_call_a_gateway_and_no_other() -> None:
    db = loaded(mesh("office"), mesh("plain", mtls=False), gateway({"port": 80}, {"port": 81}))
    assert derived(db) == [SERVICE, SERVICE._replace(mesh="office")]
    target = world.destination(db, SERVICE)
    assert target is not None
    assert [(port.number, port.protocol) for port in target.ports] == [(80, "http"), (81, "http")]


def test_a_gateway_is_called_by_the_host_of_its_listener() -> None:
    listeners = [
        {"port": 80, "hostname": "Pay.Shop.lan"},
        {"port": 80, "hostname": "*.shop.lan"},
        {"port": 81, "crossMesh": False},
    ]
    assert [key.name for key in derived(loaded(gateway(*listeners)))] == [INTERNAL, "pay.shop.lan"]


def test_what_is_derived_follows_every_change() -> None:
    db = loaded()
    assert derived(db) == []
    pipeline.take(db, [gateway()])
    assert derived(db) == [SERVICE]
    for lost in (mesh("default", mtls=False), mesh("shop", mtls=False)):
        pipeline.take(db, [lost])
        assert derived(db) == []
        pipeline.take(db, MESHES)
        assert derived(db) == [SERVICE]
    pipeline.take(db, [gateway({"port": 80, "hostname": "pay.lan"})])
    assert [key.name for key in derived(db)] == ["pay.lan"]
    pipeline.take(db, [], [gateway().key])
    assert derived(db) == []


def test_a_change_of_proxies_derives_nothing() -> None:
    db = loaded(gateway())
    db.reset_counts()
    pipeline.take(db, [gateway_proxy(), stored(build.dataplane())])
    assert not db.runs


def test_what_is_stored_goes_first_and_comes_to_no_harm() -> None:
    db = loaded(gateway())
    own = external(INTERNAL, "something.else")
    assert own.key == SERVICE
    pipeline.take(db, [own])
    assert world.RESOURCES.get(db, SERVICE) == own
    pipeline.take(db, [gateway({"port": 99})])
    pipeline.take(db, [], [gateway().key])
    assert world.RESOURCES.get(db, SERVICE) == own
    pipeline.take(db, [gateway()])
    pipeline.take(db, [], [SERVICE])
    assert derived(db) == [SERVICE]


def test_of_two_gateways_with_one_host_the_older_has_it_and_the_other_takes_over() -> None:
    pay = {"port": 80, "hostname": "pay.lan"}
    first, second = gateway(pay, mesh="shop"), gateway({**pay, "port": 81}, mesh="office")
    db = loaded(mesh("office"), first, second)
    service = SERVICE._replace(name="pay.lan")
    # Of one age, the first by key.
    assert [(key.mesh, cross_mesh_services.gateway(db, key)) for key in derived(db)] == [
        ("default", second.key),
        ("shop", second.key),
    ]
    pipeline.take(db, [], [second.key])
    assert cross_mesh_services.gateway(db, service) == first.key
    pipeline.take(db, [second])
    assert cross_mesh_services.gateway(db, service) == second.key


def test_an_address_follows_from_the_name_and_is_the_same_in_all_meshes() -> None:
    db = loaded(mesh("office"), gateway())
    found = {vips.of(db, key) for key in derived(db)}
    ((address,),) = found
    assert ipaddress.ip_address(address) in ip_range.CROSS_MESH
    assert hostnames.records(db, (SERVICE,)) == ((INTERNAL, (address,)),)
    pipeline.take(db, [gateway(name="another", service="another"), external("c", "c.lan")])
    assert vips.of(db, SERVICE) == (address,)


def test_names_with_one_hash_have_different_addresses() -> None:
    small = ipaddress.IPv4Network("10.0.0.0/29")
    names = [f"{letter}.lan" for letter in "abcdef"]
    found = cross_mesh_services.addresses(names, small)
    assert sorted(found.values()) == [f"10.0.0.{number}" for number in range(1, 7)]
    assert cross_mesh_services.addresses(reversed(names), small) == found
    assert len(cross_mesh_services.addresses([*names, "g.lan", "h.lan"], small)) == 6


def test_endpoints_are_the_ready_proxies_of_the_gateway() -> None:
    caller = stored(
        build.dataplane(
            outbound=[{"port": 9000, "backendRef": {"kind": "MeshExternalService", "name": INTERNAL}}]
        )
    )
    registered = {"koguma.io/registered-by": "somebody"}
    starting = gateway_proxy("edge-2", "10.1.0.2")
    starting = building.msgspec.structs.replace(starting, labels={**starting.labels, **registered})
    db = database((*MESHES, gateway(), gateway_proxy(), starting, caller))
    cluster = "kri_extsvc_default_east__internal.edge.shop.mesh_80"

    def addresses() -> list[str]:
        (locality,) = plain(of(db, caller.name))["endpoints"][cluster]["endpoints"]
        sockets = (
            each["endpoint"]["address"]["socket_address"]["address"] for each in locality["lb_endpoints"]
        )
        return list(sockets)

    assert addresses() == ["10.1.0.1"]
    pipeline.take(db, [gateway_proxy("edge-3", "10.1.0.3")])
    assert addresses() == ["10.1.0.1", "10.1.0.3"]
    needs = of(db, caller.name).get(("cluster", cluster)).needs
    assert ("secret", "mesh_ca:secret:shop") in needs
    assert ("secret", "identity_cert:secret:default") in needs


def test_nobody_writes_a_status_of_what_is_derived() -> None:
    db = loaded(gateway(), external("c", "c.lan"))
    assert list(statuses.served(db, "default")) == [Key("MeshExternalService", "default", "east", "", "c")]


def test_it_is_shown_as_what_is_called_and_not_as_stored() -> None:
    redirection = {"redirectPortInbound": 15006, "redirectPortOutbound": 15001}
    caller = stored(build.dataplane(transparentProxying=redirection))
    db = database((*MESHES, gateway(), gateway_proxy(), caller))
    shown = inspect.layout(db, caller.key)["outbounds"]
    assert "kri_extsvc_default_east__internal.edge.shop.mesh_80" in {each["kri"] for each in shown}
    assert SERVICE not in {each.key for each in from_scratch.claim(db, HERE, "", ()).resources}
    other = what_if.with_objects(db, "default", ())
    assert derived(other) == [SERVICE]
    there = plain(of(other, caller.name))["endpoints"]
    assert there == plain(of(db, caller.name))["endpoints"] != {}


def test_a_problem_of_it_is_one_of_the_listener() -> None:
    db = loaded(gateway({"port": 80, "hostname": "pay.lan"}), external("pay", "pay.lan"))
    (problem,) = [each for each in problems.of_object(db, gateway().key) if each.code == "KG020"]
    assert set(problem.objects) == {gateway().key, external("pay", "pay.lan").key}
    assert (
        problem.path
        == {
            "MeshGateway": "conf.listeners[0].hostname",
            "MeshExternalService": "spec.match[0].value",
        }[problem.objects[0].kind]
    )


def test_a_gateway_says_which_mesh_has_no_mtls_and_who_has_its_host() -> None:
    pay = {"port": 80, "hostname": "pay.lan"}
    second = gateway(pay, mesh="shop")
    caller = stored(build.dataplane(mesh="plain"))
    db = loaded(mesh("plain", mtls=False), caller, gateway(pay, mesh="default"), second)
    found = {each.code: each for each in problems.of_object(db, second.key)}
    assert 'proxies of mesh "plain" cannot call' in found["KG029"].message
    assert found["KG020"].objects == (second.key, gateway(pay, mesh="default").key)
    assert found["KG020"].path == "conf.listeners[0].hostname"
    pipeline.take(db, [mesh("shop", mtls=False)])
    (problem,) = [each for each in problems.of_object(db, second.key) if each.code == "KG029"]
    assert 'no other mesh can call MeshGateway "edge"' in problem.message
    assert 'mesh "shop" has no mTLS' in problem.message


@pytest.mark.parametrize("listeners", [None, {}, [None], [{"crossMesh": True, "protocol": "HTTP"}], 7])
def test_any_data_is_read(listeners: object) -> None:
    odd = building.msgspec.structs.replace(gateway(), spec={"conf": {"listeners": listeners}})
    assert loaded(odd) is not None
