"""Listeners of Gateways and ListenerSets: which are served, and why others are not."""

import base64

import gateway_api_objects as gateway_api
import pytest
from building import HERE, KINDS, database

from koguma.core import loading, match, world
from koguma.core.build import gateway_certificates
from koguma.core.gateway_api import gateways, listeners, objects
from koguma.core.incremental import Db
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from tests.tls_certificates import certificate, ecdsa_key, pem

EDGE = Key(objects.GATEWAY, "", "", "shop", "edge")
MESH_GATEWAY = Key("MeshGateway", "default", "east", "shop", "Gateway/shop/edge")
TLS = {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]}


def loaded(*resources: Resource) -> Db:
    return database((gateway_api.gateway_class(), *resources))


def edge(*of: dict[str, object], **fields: object) -> Resource:
    return gateway_api.gateway("edge", *of, **fields)


def listener_set(name: str, *of: dict[str, object], namespace: str = "shop", created: str = "1") -> Resource:
    spec = {"parentRef": {"name": "edge", "namespace": "shop"}, "listeners": list(of)}
    return gateway_api.stored(objects.LISTENER_SET, name, spec, namespace, creation_time=created)


@pytest.fixture(scope="module")
def pair() -> dict[str, str]:
    return {"tls.crt": certificate(ecdsa_key(), "a.lan"), "tls.key": pem(ecdsa_key())}


def secret(data: dict[str, str], name: str = "cert", namespace: str = "shop") -> Resource:
    encoded = {each: base64.b64encode(text.encode()).decode() for each, text in data.items()}
    return gateway_api.stored("Secret.core", name, {"type": "kubernetes.io/tls", "data": encoded}, namespace)


def conflicts(db: Db) -> dict[str, str]:
    return {each.section: each.conflict.reason for each in listeners.of(db, EDGE) if each.conflict}


def refusals(db: Db) -> dict[str, str]:
    return {each.name: each.refused.reason for each in listeners.of(db, EDGE) if each.refused}


def unresolved(db: Db) -> str:
    (found,) = listeners.of(db, EDGE)
    return found.unresolved.reason if found.unresolved else ""


def test_a_gateway_becomes_a_mesh_gateway_of_its_own_proxies() -> None:
    db = loaded(
        edge(gateway_api.listener("web", 80, hostname="a.lan"), gateway_api.listener("raw", 90, "TCP"))
    )
    found = world.RESOURCES.get(db, MESH_GATEWAY)
    assert isinstance(found, DerivedResource)
    assert found.spec == {
        "selectors": [{"match": {"kuma.io/service": "edge_shop_svc"}}],
        "conf": {
            "listeners": [
                {"name": "web", "port": 80, "protocol": "HTTP", "hostname": "a.lan"},
                {"name": "raw", "port": 90, "protocol": "TCP", "hostname": "*"},
            ]
        },
    }
    assert found.source_path("conf.listeners[1].port") == "spec.listeners[1].port"
    tags = (("kuma.io/service", "edge_shop_svc"),)
    assert match.gateway_of(db, "default", "east", tags) == MESH_GATEWAY


def test_a_gateway_of_another_controller_or_without_a_class_is_left_alone() -> None:
    foreign = gateway_api.gateway_class("foreign", "example.com/other")
    gateway = gateway_api.gateway("edge", gatewayClassName="foreign")
    db = loading.load(KINDS, HERE, (foreign, gateway))
    assert gateways.derived(db, EDGE) == ()
    assert gateways.derived(loading.load(KINDS, HERE, (edge(),)), EDGE) == ()


def test_listeners_of_one_port_share_a_protocol_and_differ_in_host_names() -> None:
    db = loaded(
        edge(
            gateway_api.listener("a", 80, hostname="a.lan"),
            gateway_api.listener("b", 80, "TCP"),
            gateway_api.listener("c", 81, hostname="a.lan"),
            gateway_api.listener("d", 81),
            gateway_api.listener("e", 82, "UDP"),
            gateway_api.listener("f", 82, "TCP"),
        )
    )
    assert conflicts(db) == {"a": "ProtocolConflict", "b": "ProtocolConflict"}
    assert refusals(db) == {"e": "UnsupportedProtocol"}
    served = [each["name"] for each in gateways.derived(db, EDGE)[0].spec["conf"]["listeners"]]
    assert served == ["c", "d", "f"]


def test_sets_add_listeners_if_allowed_and_the_earlier_one_wins() -> None:
    own = gateway_api.listener("web", 80, hostname="a.lan")
    first = listener_set("old", own, gateway_api.listener("web2", 80, hostname="b.lan"), created="1")
    second = listener_set("new", gateway_api.listener("x", 80, hostname="b.lan"), created="2")
    other = listener_set("far", gateway_api.listener("y", 85), namespace="other", created="3")
    assert len(listeners.of(loaded(edge(own), first), EDGE)) == 1, "none by default"
    allowed = {"allowedListeners": {"namespaces": {"from": "Same"}}}
    db = loaded(edge(own, **allowed), second, first, other)
    assert conflicts(db) == {"shop/old/web": "HostnameConflict", "shop/new/x": "HostnameConflict"}
    assert [each.section for each in listeners.of(db, EDGE)] == [
        "web",
        "shop/old/web",
        "shop/old/web2",
        "shop/new/x",
    ]


def test_a_certificate_is_a_secret_that_may_be_used(pair: dict[str, str]) -> None:
    https = gateway_api.listener("web", 443, "HTTPS", tls=TLS)
    db = loaded(edge(https), secret(pair))
    assert unresolved(db) == ""
    presented = gateway_certificates.presented(db, MESH_GATEWAY, "443:*")
    assert [(each.source, each.names) for each in presented] == [("Secret shop/cert", ("a.lan",))]
    (encoded,) = gateway_certificates.resources(db, MESH_GATEWAY, "443:*")
    assert encoded.name == "cert:secret:default:shop/cert"
    assert unresolved(loaded(edge(https))) == "InvalidCertificateRef"
    assert (
        unresolved(loaded(edge(https), secret({"tls.crt": "x", "tls.key": "y"}))) == "InvalidCertificateRef"
    )
    far = {"mode": "Terminate", "certificateRefs": [{"name": "cert", "namespace": "other"}]}
    https = gateway_api.listener("web", 443, "HTTPS", tls=far)
    there = secret(pair, namespace="other")
    assert unresolved(loaded(edge(https), there)) == "RefNotPermitted"
    grant = gateway_api.grant("Gateway", "shop", "Secret")
    assert unresolved(loaded(edge(https), there, grant)) == ""
    named = gateway_api.grant("Gateway", "shop", "Secret", "another")
    assert unresolved(loaded(edge(https), there, named)) == "RefNotPermitted"


def test_a_listener_takes_kinds_that_go_with_its_protocol() -> None:
    kinds = {"kinds": [{"kind": "TCPRoute"}, {"kind": "HTTPRoute"}, {"group": "a.b", "kind": "X"}]}
    db = loaded(edge(gateway_api.listener("web", 80, allowedRoutes=kinds)))
    (found,) = listeners.of(db, EDGE)
    assert (found.kinds, unresolved(db)) == ((objects.HTTP_ROUTE,), "InvalidRouteKinds")
    assert found.is_served


def test_what_cannot_be_done_is_not_served() -> None:
    validation = {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}}
    clients = {"tls": {"frontend": {"default": validation, "perPort": [{"port": 444, "tls": {}}]}}}
    both = (
        gateway_api.listener("a", 443, "HTTPS", tls=TLS),
        gateway_api.listener("b", 444, "HTTPS", tls=TLS),
    )
    assert refusals(loaded(edge(*both, **clients))) == {"a": "UnsupportedValue"}
    for fields, reason in (
        ({"infrastructure": {"parametersRef": {"group": "", "kind": "C", "name": "p"}}}, "InvalidParameters"),
        ({"addresses": [{"type": "Hostname", "value": "a.lan"}]}, "UnsupportedAddress"),
        ({"tls": {"backend": {"clientCertificateRef": {"name": "c"}}}}, "Invalid"),
    ):
        gateway = edge(**fields)
        refusal = gateways.refusal(gateway)
        assert refusal is not None
        assert refusal.reason == reason
        assert gateways.derived(loaded(gateway), EDGE) == ()


@pytest.mark.parametrize(
    "spec", [None, [], {"listeners": 3}, {"listeners": [None, {}, {"tls": 1, "port": "x"}]}]
)
def test_any_data_is_read(spec: object) -> None:
    fields = {"gatewayClassName": "koguma", **spec} if isinstance(spec, dict) else spec
    db = loaded(gateway_api.stored(objects.GATEWAY, "edge", fields), gateway_api.route())
    assert gateways.derived(db, EDGE) == ()
    assert world.UNREADABLE.get(db, EDGE) is None
