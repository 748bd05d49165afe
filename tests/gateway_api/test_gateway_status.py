"""Statuses of GatewayClasses, Gateways and ListenerSets, by the names of the conformance tests."""

import base64
import itertools
import re
from pathlib import Path

import pytest

from koguma.model.gateway_api.features import SUPPORTED
from tests.control_plane import LocalControlPlane
from tests.kube_client import CORE, KubeClient
from tests.proxy_connections import connect, web_token
from tests.tls_certificates import certificate, ecdsa_key, pem
from tests.waiting import eventually, until

pytestmark = pytest.mark.slow

V1 = "gateway.networking.k8s.io/v1"
GROUP = "gateway.networking.k8s.io"
HTTP = {"name": "http", "port": 80, "protocol": "HTTP"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("gateways")) as running:
        yield running


@pytest.fixture
def gateways(plane):
    return KubeClient(plane, f"gateways{next(_numbers)}", V1, "Gateway")


def made(client, name, spec, **fields):
    answer = client.create(name, spec=spec, **fields)
    assert answer.status == 201, answer.body
    return answer.json


def conditions(part):
    return {each["type"]: (each["status"], each["reason"]) for each in part.get("conditions") or ()}


def listener(client, name="http", gateway="edge"):
    """The conditions of a listener; none before they are written."""
    listed = client.get(gateway)["status"].get("listeners") or []
    return next((conditions(each) for each in listed if each["name"] == name), {})


def gateway(client, *listeners, name="edge", **fields):
    spec = {"gatewayClassName": "koguma", "listeners": list(listeners) or [HTTP], **fields}
    made(client, name, spec)
    return until(lambda: client.get(name)["status"].get("listeners") and client.get(name), "a status")


def secret(client, name="cert", namespace=None, **data):
    pair = data or {"tls.crt": certificate(ecdsa_key(), "a.lan"), "tls.key": pem(ecdsa_key())}
    encoded = {each: base64.b64encode(text.encode()).decode() for each, text in pair.items()}
    made(client.other(CORE, "Secret", namespace), name, None, type="kubernetes.io/tls", data=encoded)


def https(**ref):
    return {
        **HTTP,
        "name": "http",
        "protocol": "HTTPS",
        "tls": {"certificateRefs": [{"name": "cert", **ref}]},
    }


def test_the_class_is_there_accepted_and_comes_back(plane):
    classes = KubeClient(plane, "", V1, "GatewayClass")
    expected = {"Accepted": ("True", "Accepted"), "SupportedVersion": ("True", "SupportedVersion")}
    eventually(lambda: conditions(classes.get("koguma")["status"]), expected)
    names = [each["name"] for each in classes.get("koguma")["status"]["supportedFeatures"]]
    assert names == sorted(names)
    assert "HTTPRoute" in names
    assert classes.delete("koguma").status == 200
    until(lambda: classes.exists("koguma"))


def test_the_page_lists_what_the_class_claims():
    page = (Path(__file__).parents[2] / "docs" / "gateway-api.md").read_text()
    (listed,) = re.findall(r"lists what can be done:\n\n(.*?)\n\n", page, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", listed)) == SUPPORTED


def test_gatewayclass_observed_generation_bump(plane):
    classes = KubeClient(plane, "", V1, "GatewayClass")
    made(classes, "mine", {"controllerName": "koguma.io/gateway-controller"})
    classes.patch("mine", {"spec": {"description": "new"}})
    until(
        lambda: (
            {each.get("observedGeneration") for each in classes.get("mine")["status"]["conditions"]} == {2}
        )
    )


def test_a_class_with_parameters_is_not_accepted_and_others_are_left_alone(plane):
    classes = KubeClient(plane, "", V1, "GatewayClass")
    made(classes, "foreign", {"controllerName": "example.com/other"})
    ref = {"group": "", "kind": "ConfigMap", "name": "p", "namespace": "default"}
    made(classes, "odd", {"controllerName": "koguma.io/gateway-controller", "parametersRef": ref})
    eventually(lambda: conditions(classes.get("odd")["status"])["Accepted"], ("False", "InvalidParameters"))
    assert conditions(classes.get("foreign")["status"]) == {"Accepted": ("Unknown", "Pending")}


def test_gateway_without_proxies_says_how_to_start_one(gateways):
    status = gateway(gateways)["status"]
    assert conditions(status) == {
        "Accepted": ("True", "Accepted"),
        "Programmed": ("False", "NoResources"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
    }
    message = next(each["message"] for each in status["conditions"] if each["type"] == "Programmed")
    assert f"--tag kuma.io/service=edge_{gateways.namespace}_svc" in message
    assert listener(gateways) == {
        "Accepted": ("True", "Accepted"),
        "Conflicted": ("False", "NoConflicts"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Programmed": ("False", "Pending"),
    }
    (only,) = status["listeners"]
    kinds = [{"group": GROUP, "kind": "HTTPRoute"}, {"group": GROUP, "kind": "GRPCRoute"}]
    assert (only["supportedKinds"], only["attachedRoutes"]) == (kinds, 0)
    revision = gateways.get("edge")["metadata"]["resourceVersion"]
    gateway(gateways, name="other")
    assert gateways.get("edge")["metadata"]["resourceVersion"] == revision, "written again"


def test_gateway_observed_generation_bump_and_modify_listeners(gateways):
    gateway(gateways)
    two = [HTTP, {**HTTP, "name": "more", "port": 81}]
    gateways.patch("edge", {"spec": {"listeners": two}})
    until(lambda: len(gateways.get("edge")["status"]["listeners"]) == 2)
    document = gateways.get("edge")
    parts = [document["status"], *document["status"]["listeners"]]
    assert {each["observedGeneration"] for part in parts for each in part["conditions"]} == {2}
    gateways.patch("edge", {"spec": {"listeners": two[1:]}})
    until(lambda: [each["name"] for each in gateways.get("edge")["status"]["listeners"]] == ["more"])


def test_gateway_invalid_listeners_unsupported_protocol(gateways):
    gateway(gateways, {**HTTP, "protocol": "UDP"}, {**HTTP, "name": "good", "port": 81})
    assert listener(gateways)["Accepted"] == ("False", "UnsupportedProtocol")
    assert listener(gateways)["Programmed"] == ("False", "Invalid")
    assert conditions(gateways.get("edge")["status"])["Accepted"] == ("True", "ListenersNotValid")
    alone = gateway(gateways, {**HTTP, "protocol": "example.com/x"}, name="alone")
    assert conditions(alone["status"])["Accepted"] == ("False", "ListenersNotValid")


def test_gateway_invalid_route_kind(gateways):
    kinds = {"allowedRoutes": {"kinds": [{"kind": "HTTPRoute"}, {"kind": "Odd"}]}}
    status = gateway(gateways, {**HTTP, **kinds})["status"]
    assert listener(gateways)["ResolvedRefs"] == ("False", "InvalidRouteKinds")
    assert status["listeners"][0]["supportedKinds"] == [{"group": GROUP, "kind": "HTTPRoute"}]
    assert conditions(status)["ResolvedRefs"] == ("False", "ListenersNotResolved")


def test_gateway_invalid_tls_configuration_and_its_repair(gateways):
    gateway(gateways, https())
    assert listener(gateways)["ResolvedRefs"] == ("False", "InvalidCertificateRef")
    assert listener(gateways)["Programmed"] == ("False", "Invalid")
    secret(gateways)
    eventually(lambda: listener(gateways)["ResolvedRefs"], ("True", "ResolvedRefs"))
    secret(gateways, "bad", **{"tls.crt": "Hello", "tls.key": "world"})
    gateways.patch("edge", {"spec": {"listeners": [https(name="bad")]}})
    eventually(lambda: listener(gateways)["ResolvedRefs"], ("False", "InvalidCertificateRef"))
    gateways.patch("edge", {"spec": {"listeners": [https(kind="ConfigMap")]}})
    eventually(lambda: listener(gateways)["Programmed"], ("False", "Invalid"))


def test_gateway_secret_reference_grants(gateways):
    there = f"{gateways.namespace}-certs"
    secret(gateways, namespace=there)
    gateway(gateways, https(namespace=there))
    assert listener(gateways)["ResolvedRefs"] == ("False", "RefNotPermitted")
    grants = gateways.other(V1, "ReferenceGrant", there)
    who = {"group": GROUP, "kind": "Gateway", "namespace": gateways.namespace}
    made(grants, "odd", {"from": [{**who, "kind": "HTTPRoute"}], "to": [{"group": "", "kind": "Secret"}]})
    made(grants, "other", {"from": [who], "to": [{"group": "", "kind": "Secret", "name": "other"}]})
    made(grants, "specific", {"from": [who], "to": [{"group": "", "kind": "Secret", "name": "cert"}]})
    eventually(lambda: listener(gateways)["ResolvedRefs"], ("True", "ResolvedRefs"))
    grants.delete("specific")
    eventually(lambda: listener(gateways)["ResolvedRefs"], ("False", "RefNotPermitted"))


def test_gateway_with_attached_routes(gateways):
    gateway(
        gateways, {**HTTP, "hostname": "*.a.lan"}, {**HTTP, "name": "odd", "protocol": "HTTPS", "port": 81}
    )
    routes = gateways.other(V1, "HTTPRoute")
    for name, host in (("one", "x.a.lan"), ("two", "y.a.lan"), ("none", "b.lan")):
        ref = {"name": "edge", "sectionName": "http"}
        made(routes, name, {"parentRefs": [ref], "hostnames": [host]})
    made(routes, "broken", {"parentRefs": [{"name": "edge", "sectionName": "odd"}]})

    def counts():
        return [each["attachedRoutes"] for each in gateways.get("edge")["status"]["listeners"]]

    eventually(counts, [2, 1])
    routes.delete("one")
    eventually(counts, [1, 1])


def test_gateway_static_addresses_and_parameters(gateways):
    odd = gateway(gateways, addresses=[{"type": "Hostname", "value": "a.lan"}])
    assert conditions(odd["status"])["Accepted"] == ("False", "UnsupportedAddress")
    parameters = {"parametersRef": {"group": "", "kind": "ConfigMap", "name": "p"}}
    refused = gateway(gateways, name="second", infrastructure=parameters)
    assert conditions(refused["status"])["Accepted"] == ("False", "InvalidParameters")
    assert conditions(refused["status"])["Programmed"] == ("False", "Invalid")


def test_a_gateway_is_served_by_proxies_that_are_connected(plane, gateways):
    gateway(gateways)
    service = f"edge_{gateways.namespace}_svc"
    own = {"type": "BUILTIN", "tags": {"kuma.io/service": service}}
    proxy = {"type": "Dataplane", "mesh": "default", "name": f"proxy-of-{gateways.namespace}"}
    path = f"/meshes/default/dataplanes/{proxy['name']}"
    written = {**proxy, "networking": {"address": "192.0.2.7", "gateway": own}}
    assert plane("PUT", path, written).status == 201
    token = web_token(plane, tags={"kuma.io/service": [service]})
    connection = connect(plane, name=proxy["name"], shown=token)
    served = ("True", "Programmed")
    eventually(lambda: conditions(gateways.get("edge")["status"])["Programmed"], served)
    assert listener(gateways)["Programmed"] == served
    assert gateways.get("edge")["status"]["addresses"] == [{"type": "IPAddress", "value": "192.0.2.7"}]
    plane.run(connection.close())
    eventually(lambda: listener(gateways)["Programmed"], ("False", "Pending"))
    assert conditions(gateways.get("edge")["status"])["Programmed"] == ("False", "NoResources")
    assert "addresses" not in gateways.get("edge")["status"]


def test_overlapping_tls_is_said_only_while_it_is_true(gateways):
    secret(gateways)
    wide = {**https(), "name": "wide", "hostname": "*.a.lan"}
    gateway(gateways, {**https(), "hostname": "x.a.lan"}, wide)
    assert listener(gateways)["OverlappingTLSConfig"] == ("True", "OverlappingHostnames")
    gateways.patch("edge", {"spec": {"listeners": [wide]}})
    until(lambda: "OverlappingTLSConfig" not in listener(gateways, "wide"))


def test_conditions_of_others_stay(gateways):
    document = gateway(gateways)
    foreign = {
        "type": "example.com/Seen",
        "status": "True",
        "reason": "Seen",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    document["status"]["conditions"].append(foreign)
    assert gateways.replace(document, part="status").status == 200
    gateways.patch("edge", {"spec": {"listeners": [{**HTTP, "port": 81}]}})
    until(lambda: gateways.get("edge")["status"]["conditions"][0]["observedGeneration"] == 2)
    assert foreign in gateways.get("edge")["status"]["conditions"]


def test_listenerset_default_not_allowed_then_allowed_with_conflicts(gateways):
    gateway(gateways, {**HTTP, "hostname": "a.lan"})
    sets = gateways.other(V1, "ListenerSet")
    entries = [
        {**HTTP, "name": "same", "hostname": "a.lan"},
        {**HTTP, "name": "raw", "protocol": "TCP"},
        {**HTTP, "name": "new", "hostname": "b.lan"},
    ]
    made(sets, "more", {"parentRef": {"name": "edge"}, "listeners": entries})
    eventually(lambda: conditions(sets.get("more")["status"])["Accepted"], ("False", "NotAllowed"))
    gateways.patch("edge", {"spec": {"allowedListeners": {"namespaces": {"from": "Same"}}}})
    eventually(lambda: conditions(sets.get("more")["status"])["Accepted"], ("True", "ListenersNotValid"))
    assert listener(sets, "same", "more")["Conflicted"] == ("True", "HostnameConflict")
    assert listener(sets, "raw", "more")["Conflicted"] == ("True", "ProtocolConflict")
    assert listener(sets, "new", "more")["Accepted"] == ("True", "Accepted")
    assert listener(gateways)["Conflicted"] == ("False", "NoConflicts")
    eventually(lambda: gateways.get("edge")["status"]["attachedListenerSets"], 1)
    made(
        gateways.other(V1, "HTTPRoute"),
        "web",
        {"parentRefs": [{"kind": "ListenerSet", "name": "more", "sectionName": "new"}]},
    )

    def counts():
        return {each["name"]: each["attachedRoutes"] for each in sets.get("more")["status"]["listeners"]}

    eventually(counts, {"same": 0, "raw": 0, "new": 1})
    assert gateways.get("edge")["status"]["listeners"][0]["attachedRoutes"] == 0
