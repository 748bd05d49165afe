"""Zone proxies and the control plane: who is let in as an egress, what is registered, and what is shown."""

import base64
import http.client
import json
import ssl
from contextlib import closing
from urllib.parse import quote

import pytest

from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.main import all_kinds
from koguma.model.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from koguma.model.labels import REGISTERED_BY
from koguma.proof import from_scratch
from tests import build
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role, create_role
from tests.proxy_connections import connect, next_offer, web_token
from tests.waiting import until

EGRESS = {"dataplane.proxyType": "egress"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("z")) as running:
        yield running


def zone_token(plane, **claims):
    answer = plane("POST", "/tokens/zone", {"zone": "default", "scope": ["egress"], **claims})
    assert answer.status == 200, answer.text
    return answer.text


def egress(name="egress-1", port=10002, **fields):
    return {
        "type": "ZoneEgress",
        "name": name,
        "networking": {"address": "127.0.0.1", "port": port},
        **fields,
    }


def bring(plane, name="egress-1", shown=None, document=None, **metadata):
    shown = zone_token(plane) if shown is None else shown
    document = egress(name) if document is None else document
    return connect(plane, document, name, mesh="", shown=shown, **{**EGRESS, "workdir": "/w", **metadata})


def stored(plane, name="egress-1"):
    return plane.plane.store.state.named("ZoneEgress", "", name)


def test_an_egress_brings_its_object_and_gets_a_configuration(plane):
    connection = bring(plane)
    assert stored(plane).labels[REGISTERED_BY] == "proxy"
    assert stored(plane).zone == "default"
    assert plane.run(next_offer(connection)).snapshot.failures == ()
    (shown,) = plane("GET", "/_proxies").json["items"]
    assert (shown["name"], shown["mesh"], shown["kind"]) == ("egress-1", "", "ZoneEgress")
    assert shown["kri"] == "kri_ze__default__egress-1_"
    assert plane("GET", "/zoneegresses").json["items"][0]["name"] == "egress-1"
    plane.run(connection.close())


def test_an_egress_of_an_operator_is_taken_as_it_is(plane):
    assert plane("PUT", "/zoneegresses/stored-1", egress("stored-1")).status in (200, 201)
    assert connect(plane, None, "stored-1", mesh="", shown=zone_token(plane), **EGRESS).registered is False
    bring(plane, "stored-1")  # the same object, so nothing is written
    assert REGISTERED_BY not in stored(plane, "stored-1").labels
    with pytest.raises(Invalid, match="an operator wrote"):
        bring(plane, "stored-1", document=egress("stored-1", 10003))


@pytest.mark.parametrize(
    ("claims", "error", "text"),
    [
        ({"scope": ["ingress", "cp"]}, Forbidden, r"egress is out of token's scope: \[ingress cp\]"),
        ({"zone": "west"}, Forbidden, "zone from requestor: default is different than in token: west"),
    ],
)
def test_a_token_for_something_else_is_refused(plane, claims, error, text):
    with pytest.raises(error, match=text):
        bring(plane, shown=zone_token(plane, **claims))


@pytest.mark.parametrize("shown", ["", "rubbish"])
def test_nobody_is_an_egress_without_a_token(plane, shown):
    with pytest.raises(Unauthenticated, match="koguma token zone"):
        bring(plane, "nobody", shown=shown)
    with pytest.raises(Unauthenticated):
        connect(plane, None, "nobody", mesh="", shown=shown)  # as where its node was not read
    refused = {each["name"]: each for each in plane("GET", "/_proxies").json["refused"]}
    assert "koguma token zone" in refused["nobody"]["hint"]


def test_a_token_of_one_sort_is_no_token_of_another(plane):
    with pytest.raises(Unauthenticated, match="a zone token is needed here"):
        bring(plane, shown=web_token(plane))
    with pytest.raises(Unauthenticated, match="a dataplane token is needed here"):
        connect(plane, dataplane(), shown=zone_token(plane))


def test_an_egress_in_another_zone_needs_a_token_for_it(plane):
    elsewhere = egress("far-1", labels={"kuma.io/zone": "west"})
    with pytest.raises((Forbidden, Invalid)):
        bring(plane, "far-1", document=elsewhere)
    assert stored(plane, "far-1") is None


def test_an_egress_that_is_not_stored_and_brings_nothing_is_refused(plane):
    with pytest.raises(NotFound, match='there is no ZoneEgress "none-1"'):
        connect(plane, None, "none-1", mesh="", shown=zone_token(plane), **EGRESS)


def test_what_an_egress_brings_is_validated_and_is_its_own(plane):
    with pytest.raises(Invalid) as error:
        bring(plane, document=egress(port=0))
    assert [violation.field for violation in error.value.violations] == ["networking.port"]
    with pytest.raises(Invalid, match='is "egress-1", but'):
        bring(plane, "egress-2", document=egress("egress-1"))


def test_a_revoked_zone_token_ends_the_connection(plane):
    token = zone_token(plane)
    connection = bring(plane, "short-1", shown=token)
    connection.check_access()
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    revocations = {
        "type": "GlobalSecret",
        "name": "zone-token-revocations",
        "data": base64.b64encode(claims["jti"].encode()).decode(),
    }
    assert plane("PUT", "/globalsecrets/zone-token-revocations", revocations).status in (200, 201)
    with pytest.raises(Unauthenticated, match="revoked"):
        connection.check_access()
    plane.run(connection.close())


def test_an_egress_that_leaves_is_removed(plane, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.05)
    connection = bring(plane, "gone-1")
    assert stored(plane, "gone-1") is not None
    plane.run(connection.close())
    until(lambda: stored(plane, "gone-1") is None, "it is removed")


def test_a_later_run_keeps_the_place_of_an_earlier_one(plane):
    first = bring(plane, "twice-1", workdir="/one")
    second = bring(plane, "twice-1", workdir="/two")
    with pytest.raises(Conflict, match="later run"):
        bring(plane, "twice-1", workdir="/one")
    for each in (first, second):
        plane.run(each.close())


@pytest.fixture(scope="module")
def serving(plane):
    """A mesh with mTLS and an external service, with policies on the egress and on callers."""
    builtin = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}
    endpoints = {"type": "Regular", "endpoints": [{"address": "192.0.2.1", "port": 80}]}
    match = [{"type": "InternalVIP", "value": "api.ext", "port": 80, "protocol": "http"}]
    breaker = {"connectionLimits": {"maxConnections": 7}}
    documents = [
        {"type": "Mesh", "name": "shop", "mtls": builtin, "skipCreatingInitialPolicies": ["*"]},
        build.document("MeshExternalService", "api", "shop", spec={"match": match, "destination": endpoints}),
        build.policy("MeshCircuitBreaker", "cb", (build.ANY, breaker), mesh="shop"),
        build.policy("MeshRetry", "retry", (build.ANY, {"http": {"numRetries": 2}}), mesh="shop"),
        build.document(
            "MeshTrafficPermission",
            "web",
            "shop",
            spec={
                "rules": [
                    {"default": {"allow": [{"spiffeID": {"type": "Exact", "value": "spiffe://shop/web"}}]}}
                ]
            },
        ),
    ]
    answer = plane("POST", "/_apply", documents)
    assert answer.status == 200, answer.text
    assert plane("PUT", "/zoneegresses/shown-1", egress("shown-1")).status in (200, 201)
    return plane


def test_what_an_egress_gets_can_be_read(serving):
    shown = serving("GET", "/zoneegresses/shown-1/_config").json["xds"]
    clusters = shown["type.googleapis.com/envoy.config.cluster.v3.Cluster"]
    assert "kri_extsvc_shop_default__api_80" in clusters
    assert serving("GET", "/zoneegresses/none/_config").status == 404
    assert serving("GET", "/zoneingresses/none/_config").status == 404


def test_the_policies_that_act_on_an_egress_are_shown_by_service(serving):
    (service,) = serving("GET", "/zoneegresses/shown-1/_policies").json["services"]
    assert service["kri"] == "kri_extsvc_shop_default__api_80"
    assert service["sni"] == "sni.extsvc.shop.default.api.80"
    assert [each["kind"] for each in service["inbound"]] == ["MeshTrafficPermission"]
    assert [each["kind"] for each in service["outbound"]] == ["MeshCircuitBreaker"]  # retries act on callers
    assert service["outbound"][0]["conf"] == [{"connectionLimits": {"maxConnections": 7}}]


def explained(plane, path="", at="", kind="zoneegresses", name="shown-1", **headers):
    return plane("GET", f"/{kind}/{name}/_explain?path={quote(path, safe='')}{at}", **headers)


LIMIT = "clusters[kri_extsvc_shop_default__api_80].circuit_breakers.thresholds[0].max_connections"


def test_who_set_a_field_of_an_egress(serving):
    (field,) = explained(serving, LIMIT).json["fields"]
    (origin,) = field["origins"]
    assert (field["value"], origin["kri"]) == (7, "kri_mcb_shop_default__cb_")
    assert origin["path"] == "spec.to[0].default.connectionLimits.maxConnections"
    listed = explained(serving).json["resources"]
    assert {LIMIT.partition(".")[0], "listeners[kri_ze__default__shown-1_]"} <= set(listed)
    wrong = explained(serving, LIMIT.replace("max_connections", "max_conections"))
    assert (wrong.status, "the nearest are" in wrong.text) == (400, True)
    assert explained(serving, name="none").status == 404
    assert explained(serving, kind="zoneingresses", name="none").status == 404


def test_who_had_set_a_field_of_an_egress(serving):
    before = serving("GET", "/zoneegresses").headers["Koguma-Revision"]
    breaker = {"connectionLimits": {"maxConnections": 8}}
    policy = build.policy("MeshCircuitBreaker", "cb", (build.ANY, breaker), mesh="shop")
    assert serving("PUT", "/meshes/shop/meshcircuitbreakers/cb", policy).status == 200
    answers = [explained(serving, LIMIT, at) for at in ("", f"&at={before}")]
    assert [answer.json["fields"][0]["value"] for answer in answers] == [8, 7]
    breaker["connectionLimits"]["maxConnections"] = 7
    assert serving("PUT", "/meshes/shop/meshcircuitbreakers/cb", policy).status == 200


def test_who_set_a_field_of_an_ingress(serving):
    service = {"selector": {"dataplaneTags": {"kuma.io/service": "own"}}, "ports": [{"port": 80}]}
    assert serving(
        "PUT", "/meshes/shop/meshservices/own", build.document("MeshService", "own", "shop", spec=service)
    ).status in (200, 201)
    ingress = {"type": "ZoneIngress", "name": "in-1", "networking": {"address": "127.0.0.1", "port": 10001}}
    assert serving("PUT", "/zoneingresses/in-1", ingress).status in (200, 201)
    path = "listeners[kri_zi__default__in-1_]"
    fields = explained(serving, path, kind="zoneingresses", name="in-1").json["fields"]
    (port,) = [each for each in fields if each["path"].endswith("port_value")]
    (origin,) = port["origins"]
    assert (origin["kri"], origin["path"]) == ("kri_zi__default__in-1_", "networking.port")


def test_who_may_ask_who_set_what_a_zone_proxy_has(serving):
    group = {"verbs": ["get", "list"], "apiGroups": ["rest.koguma.io"]}
    create_role(serving, "explain-zone", {**group, "resources": ["zoneegresses", "zoneingresses"]})
    create_role(serving, "explain-services", {**group, "resources": ["meshexternalservices"]})
    bind_role(serving, "zoe", "explain-zone")
    assert explained(serving, LIMIT, Impersonate_User="mallory").status == 403
    for path in ("", LIMIT, "listeners"):
        assert explained(serving, path, Impersonate_User="zoe").status == 403
    assert explained(serving, LIMIT, "&at=1h", Impersonate_User="zoe").status in (400, 403, 404)
    bind_role(serving, "zoe", "explain-services")
    assert explained(serving, LIMIT, Impersonate_User="zoe").status == 200
    assert serving("GET", "/zoneegresses/shown-1/_config", Impersonate_User="zoe").status == 200


def test_a_reader_of_egresses_sees_no_policies_of_other_meshes(serving):
    rule = {"verbs": ["get", "list"], "apiGroups": ["rest.koguma.io"], "resources": ["zoneegresses"]}
    create_role(serving, "egress-reader", rule)
    bind_role(serving, "eve", "egress-reader")
    for user, status, services in (("eve", 200, []), ("mallory", 403, None)):
        answer = serving("GET", "/zoneegresses/shown-1/_policies", Impersonate_User=user)
        assert (answer.status, answer.json.get("services")) == (status, services)
        assert serving("GET", "/zoneegresses/shown-1/_config", Impersonate_User=user).status == 403
        shown = serving("GET", "/_proxies", Impersonate_User=user).json["items"]
        assert all(each["kind"] == "ZoneEgress" for each in shown)
        assert bool(shown) is (user == "eve")


def ask_bootstrap(plane, path="/bootstrap", token="", **fields):
    """A request of Kuma's agent for a zone egress."""
    body = {
        "mesh": "default",  # of a flag that its user did not give
        "name": "kuma-1",
        "proxyType": "egress",
        "dataplaneToken": token,
        "dataplaneResource": json.dumps({**egress("kuma-1"), "mesh": "default"}),
        "version": {"kumaDp": {"version": "2.13.0"}, "envoy": {"version": "1.40.0"}},
        "caCert": "",
        "features": ["feature-tcp-accesslog-via-named-pipe", "feature-readiness-unix-socket"],
        "workdir": "/run/kuma-1",
        **fields,
    }
    trusted = ssl.create_default_context(cafile=str(plane.data_dir / "ca.pem"))
    connection = http.client.HTTPSConnection(
        "localhost", plane.plane.ports["dp"], timeout=20, context=trusted
    )
    with closing(connection):
        headers = {"Accept": "application/json", "Authorization": token}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_kumas_agent_gets_a_bootstrap_for_an_egress(plane):
    status, text = ask_bootstrap(plane, token=zone_token(plane))
    assert status == 200, text
    bootstrap = json.loads(base64.b64decode(json.loads(text)["bootstrap"]))
    assert (bootstrap["node"]["id"], bootstrap["node"]["cluster"]) == (".kuma-1", "egress")
    metadata = bootstrap["node"]["metadata"]
    assert metadata["dataplane.proxyType"] == "egress"
    assert json.loads(metadata["dataplane.resource"]) == egress("kuma-1")
    assert metadata["dataplane.admin.port"] == "9901"
    assert "hds_config" not in bootstrap
    assert stored(plane, "kuma-1") is None, "it is registered when it connects"


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"token": ""}, 422, "a zone proxy needs a zone token"),
        ({"token": "rubbish"}, 401, "authentication failed: could not parse token"),
        (
            {"proxyType": "router"},
            422,
            'proxyType: "router" is not served; there are dataplane, egress, ingress',
        ),
        ({"dataplaneResource": "{}"}, 422, 'name: is "", and the proxy asked as "kuma-1"'),
        ({"dataplaneResource": json.dumps(dataplane("kuma-1"))}, 422, 'type: is "Dataplane", and the proxy'),
        ({"dataplaneResource": json.dumps(egress("kuma-1", port=70000))}, 422, "networking.port"),
        ({"dataplaneResource": ""}, 404, ""),
    ],
)
def test_a_request_that_is_wrong_is_refused_with_the_reason(plane, fields, status, text):
    answer = ask_bootstrap(plane, **{"token": zone_token(plane), **fields})
    assert answer[0] == status
    assert text in answer[1]


def test_an_egress_says_farewell_with_its_token_only(plane):
    connection = bring(plane, "kuma-1")
    for token, status in (("", 401), (web_token(plane), 401), (zone_token(plane, scope=["ingress"]), 403)):
        assert ask_bootstrap(plane, "/deregister", token)[0] == status
    assert stored(plane, "kuma-1") is not None
    assert ask_bootstrap(plane, "/deregister", zone_token(plane))[0] == 204
    assert stored(plane, "kuma-1") is None
    plane.run(connection.close())


def test_the_proof_takes_an_egress_as_any_proxy(serving):
    connection = connect(serving, None, "shown-1", mesh="", shown=zone_token(serving), **EGRESS)
    offer = serving.run(next_offer(connection))
    assert "kri_ze__default__shown-1_" in offer.snapshot.of_type("listener")
    names = set(offer.snapshot.of_type("secret"))
    assert {"identity_cert:secret:shop", "mesh_ca:secret:shop"} <= names
    db = serving.run(serving.plane._proxies.fleet.context.database())
    envoy = str(schema.find_envoy())
    claimed = from_scratch.claim(
        db, serving.plane._proxies.fleet.context.control_plane, envoy, [connection.key]
    )
    encoder = Encoder(schema.load(schema.find_envoy()))
    assert list(from_scratch.differences(claimed, all_kinds(), encoder)) == []
    assert dict(claimed.digests)[connection.key]
    serving.run(connection.close())
