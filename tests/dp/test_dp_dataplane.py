"""The Dataplane that flags or a file make."""

from typing import Any

import pytest

from koguma.core import admission, world
from koguma.dp import dataplane, gateway, zone_proxy
from koguma.dp.dataplane import BadDataplane, DataplaneFlags, Outbound
from koguma.identity.proxy_types import EGRESS, INGRESS
from koguma.kinds import KINDS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds


def inbound(**flags: Any) -> Any:
    (proxy,) = dataplane.from_flags(DataplaneFlags(name="web-1", service="web", **flags)).networking[
        "inbound"
    ]
    return proxy


@pytest.mark.parametrize(
    ("text", "document", "expected_ref"),
    [
        (
            "backend:9001",
            {"port": 9001, "tags": {"kuma.io/service": "backend"}},
            world.DestinationRef("MeshService", "backend"),
        ),
        (
            "backend:80:9001",
            {"port": 9001, "backendRef": {"kind": "MeshService", "name": "backend", "port": 80}},
            world.DestinationRef("MeshService", "backend", port=80),
        ),
        (
            "extsvc/httpbin:9002",
            {"port": 9002, "backendRef": {"kind": "MeshExternalService", "name": "httpbin"}},
            world.DestinationRef("MeshExternalService", "httpbin"),
        ),
        (
            "MeshMultiZoneService/cart:80:9003",
            {"port": 9003, "backendRef": {"kind": "MeshMultiZoneService", "name": "cart", "port": 80}},
            world.DestinationRef("MeshMultiZoneService", "cart", port=80),
        ),
    ],
)
def test_an_outbound_is_written_as_the_engine_reads_it(text, document, expected_ref):
    proxy = dataplane.outbound(text)
    assert proxy.document == document
    assert world.outbound_ref(proxy.document) == expected_ref


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("backend", "must be NAME:LOCALPORT"),
        (":9001", "must be NAME:LOCALPORT"),
        ("backend:", "must be NAME:LOCALPORT"),
        ("backend:0", "ports from 1 to 65535"),
        ("backend:65536", "ports from 1 to 65535"),
        ("backend:http:9001", "ports from 1 to 65535"),
        ("backend:80:81:82", "must be NAME:LOCALPORT"),
        ("pod/backend:9001", 'begins with "pod", which is no kind of service; there are extsvc,'),
        ("mzsvc/cart:9003", "needs the port of the MeshMultiZoneService too"),
    ],
)
def test_an_outbound_that_cannot_be_read_says_how_to_write_one(text, words):
    with pytest.raises(BadDataplane, match=words):
        dataplane.outbound(text)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"port": 8080, "service_port": 18080},
            {"port": 8080, "servicePort": 18080, "tags": {"kuma.io/service": "web"}},
        ),
        (
            {"port": 8080, "address": "10.0.0.7"},
            {"port": 8080, "serviceAddress": "127.0.0.1", "tags": {"kuma.io/service": "web"}},
        ),
        (
            {"port": 8080, "service_port": 18080, "service_probe": True},
            {
                "port": 8080,
                "servicePort": 18080,
                "serviceProbe": {"tcp": {}},
                "tags": {"kuma.io/service": "web"},
            },
        ),
        (
            {"port": 8080, "service_port": 18080, "protocol": "http", "tags": {"version": "v2"}},
            {
                "port": 8080,
                "servicePort": 18080,
                "tags": {"kuma.io/service": "web", "kuma.io/protocol": "http", "version": "v2"},
            },
        ),
    ],
)
def test_flags_make_an_inbound_whose_service_is_on_this_machine(flags, expected):
    assert inbound(**flags) == expected


def test_a_service_that_only_calls_is_known_by_its_labels():
    proxy = dataplane.from_flags(DataplaneFlags(name="job-1", service="job", labels={"team": "blue"}))
    assert "inbound" not in proxy.networking
    assert proxy.resource["labels"] == {"kuma.io/service": "job", "kuma.io/workload": "job", "team": "blue"}
    assert not proxy.accepts_traffic


def test_a_name_alone_means_a_dataplane_that_is_stored():
    proxy = dataplane.from_flags(DataplaneFlags(name="web-1", mesh="shop"))
    assert (proxy.mesh, proxy.name, proxy.resource) == ("shop", "web-1", None)
    assert proxy.accepts_traffic


@pytest.mark.parametrize(
    "flags",
    [
        DataplaneFlags(name="web-1", service="web", port=8080, service_port=18080, protocol="grpc"),
        DataplaneFlags(name="web-1", service="web", port=8080, address="10.0.0.7", tags={"version": "v2"}),
        DataplaneFlags(
            name="job-1", mesh="shop", service="job", outbounds=[Outbound("MeshService", "b", 80, 9001)]
        ),
        DataplaneFlags(
            name="job-1", service="job", outbounds=[Outbound("MeshExternalService", "b", 0, 9001)]
        ),
    ],
)
def test_what_flags_make_is_admitted_by_the_control_plane(flags):
    proxy = dataplane.from_flags(flags)
    stored = admission.admitted(forms.read(proxy.resource, Kinds(KINDS)), None, ControlPlaneInfo()).resource
    assert (stored.mesh, stored.core_name) == (proxy.mesh, proxy.name)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"service": "web", "port": 8080}, "the proxy listens on 127.0.0.1:8080 itself"),
        ({"service": "web", "port": 8080, "service_port": 8080}, "say with --service-port"),
        ({"port": 8080, "tags": {"a": "b"}}, "--port, --tag describes a new Dataplane"),
        ({"outbounds": [dataplane.outbound("backend:9001")]}, "--outbound describes a new Dataplane"),
        ({"address": "10.0.0.7"}, "--address describes a new Dataplane"),
        ({"service": "web", "service_probe": True}, "--service-probe describes a port that the service"),
        ({"service_probe": True}, "--service-probe describes a new Dataplane"),
        ({"service": "web", "protocol": "http"}, "--protocol describes a port that the service serves"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, words):
    with pytest.raises(BadDataplane, match=words):
        dataplane.from_flags(DataplaneFlags(name="web-1", **flags))


PLAIN = """
type: Dataplane
mesh: shop
name: {{ name }}
labels: {team: blue}
networking:
  address: {{address}}
  inbound: [{port: 8080, servicePort: 18080, tags: {kuma.io/service: web}}]
"""

KUBERNETES = """
apiVersion: kuma.io/v1alpha1
kind: Dataplane
mesh: shop
metadata: {name: web-1, namespace: front}
spec:
  networking: {address: 10.0.0.7, transparentProxying: {redirectPortInbound: 15006}}
"""


def test_a_plain_file_is_sent_with_its_variables_filled_in():
    proxy = dataplane.from_file(PLAIN, {"name": "web-1", "address": "10.0.0.7"}, "web.yaml")
    assert (proxy.mesh, proxy.name) == ("shop", "web-1")
    assert proxy.resource["labels"] == {"team": "blue"}
    assert proxy.networking["address"] == "10.0.0.7"
    assert proxy.accepts_traffic


def test_a_kubernetes_file_becomes_the_plain_form_of_the_same_object():
    proxy = dataplane.from_file(KUBERNETES, {}, "web.yaml")
    assert (proxy.mesh, proxy.name) == ("shop", "web-1.front")
    stored = admission.admitted(forms.read(proxy.resource, Kinds(KINDS)), None, ControlPlaneInfo()).resource
    assert (stored.namespace, stored.name, stored.core_name) == ("front", "web-1", "web-1.front")
    assert proxy.is_transparent


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN, r"web.yaml: has variables without a value; give --dataplane-var address=.*-var name=\.\.\."),
        ("type: Dataplane\n---\ntype: Dataplane", "must hold one Dataplane; there are 2 objects in it"),
        ("", "must hold one Dataplane; there are 0 objects in it"),
        ("type: Mesh\nname: shop", "must hold a Dataplane, not a Mesh"),
        ("type: Dataplan\nname: x", "web.yaml: type: "),
        ("type: Dataplane", "the Dataplane needs a name"),
        ("[1, 2]", "an object is needed"),
        ("apiVersion: kuma.io/v1alpha1\nkind: Dataplane\nmetadata: {name: x}\nspek: {}", "web.yaml: spek: "),
    ],
)
def test_a_file_that_is_no_dataplane_is_refused_with_its_name(text, words):
    with pytest.raises(BadDataplane, match=words):
        dataplane.from_file(text, {}, "web.yaml")


def egress(**flags: Any) -> dataplane.DataplaneProxy:
    return zone_proxy.from_flags(EGRESS, zone_proxy.ZoneProxyFlags(name="egress-1", **flags))


def test_flags_make_a_zone_egress_that_the_control_plane_admits():
    proxy = egress(address="10.0.0.3", port=10002, admin_port=9901, labels={"team": "edge"})
    assert proxy.resource == {
        "type": "ZoneEgress",
        "name": "egress-1",
        "labels": {"team": "edge"},
        "networking": {"address": "10.0.0.3", "port": 10002, "admin": {"port": 9901}},
    }
    draft = forms.read(proxy.resource, Kinds(KINDS))
    assert admission.admitted(draft, None, ControlPlaneInfo()).resource.key.kind == "ZoneEgress"
    assert (proxy.mesh, proxy.place, proxy.accepts_traffic) == ("", "zone egress", True)
    assert proxy.may_be_transparent is False


def test_a_name_alone_means_a_zone_egress_that_is_stored():
    assert egress().resource is None
    with pytest.raises(BadDataplane, match="--address, --admin-port describes a new ZoneEgress"):
        egress(address="10.0.0.3", admin_port=9901)


def test_a_zone_egress_comes_from_a_file_too():
    text = "type: ZoneEgress\nname: egress-1\nnetworking: {address: '{{ ip }}', port: 10002}\n"
    proxy = dataplane.from_file(text, {"ip": "10.0.0.3"}, "egress.yaml", EGRESS)
    assert proxy.resource["networking"] == {"address": "10.0.0.3", "port": 10002}
    with pytest.raises(BadDataplane, match="not a ZoneEgress; it is for --proxy-type egress"):
        dataplane.from_file(text, {"ip": "10.0.0.3"}, "egress.yaml")


def test_flags_make_a_builtin_gateway_that_the_control_plane_admits():
    own = {"kuma.io/service": "edge", "team": "front"}
    flags = gateway.GatewayFlags(name="edge-1", mesh="shop", tags=own, address="10.0.0.4", admin_port=9901)
    proxy = gateway.from_flags(flags)
    assert proxy.networking == {
        "address": "10.0.0.4",
        "admin": {"port": 9901},
        "gateway": {"type": "BUILTIN", "tags": own},
    }
    draft = forms.read(proxy.resource, Kinds(KINDS))
    assert admission.admitted(draft, None, ControlPlaneInfo()).resource.key.kind == "Dataplane"
    assert (proxy.place, proxy.services, proxy.accepts_traffic) == ("mesh shop", ("edge",), True)
    assert proxy.is_builtin_gateway
    assert not proxy.may_be_transparent


def test_the_service_of_a_gateway_is_a_tag_or_a_flag():
    proxy = gateway.from_flags(gateway.GatewayFlags(name="edge-1", service="edge", labels={"team": "front"}))
    assert proxy.services == ("edge",)
    assert proxy.resource["labels"] == {"team": "front"}
    both = gateway.GatewayFlags(name="edge-1", service="edge", tags={"kuma.io/service": "edge"})
    assert gateway.from_flags(both).services == ("edge",)
    with pytest.raises(BadDataplane, match="name two services"):
        gateway.from_flags(gateway.GatewayFlags(name="e", service="edge", tags={"kuma.io/service": "web"}))
    with pytest.raises(BadDataplane, match=r"--gateway needs --tag kuma\.io/service=NAME"):
        gateway.from_flags(gateway.GatewayFlags(name="edge-1", tags={"team": "front"}))


@pytest.mark.parametrize(
    ("flags", "advertised"),
    [
        ({}, ("10.0.0.2", 10001)),
        ({"advertised_address": "192.0.2.1", "advertised_port": 443}, ("192.0.2.1", 443)),
    ],
)
def test_an_ingress_is_advertised_where_it_listens_unless_flags_say_otherwise(flags, advertised):
    described = zone_proxy.ZoneProxyFlags(name="ingress-1", address="10.0.0.2", port=10001, **flags)
    proxy = zone_proxy.from_flags(INGRESS, described)
    networking = proxy.resource["networking"]
    assert (proxy.resource["type"], networking["port"]) == ("ZoneIngress", 10001)
    assert (networking["advertisedAddress"], networking["advertisedPort"]) == advertised
