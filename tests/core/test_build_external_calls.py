"""What comes of calls to external services: one real Envoy, and real servers with certificates of all sorts.

Every case is a server, what a MeshExternalService says about it, and what the server then saw of the caller.
"""

import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from external_servers import AUTHORITY, STRANGER, Envoy, Server, Serving, made
from external_services import ENCODER, ENVOY, built, regular, released, tls

from koguma.envoy.snapshot import CLUSTER

pytestmark = pytest.mark.slow

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
CLIENT = made("client", (), AUTHORITY)
CA = {"inlineString": AUTHORITY.pem}
# Why Envoy refuses a server, in its own words, and a server that hangs up without any.
WRONG_NAME, UNKNOWN_CA, WRONG_VERSION = "SAN_matcher", "unable_to_get_local_issuer", "ALERT_PROTOCOL_VERSION"
HUNG_UP = ""


class Case(NamedTuple):
    """A server, a service, and what the server saw; or why the call does not get there."""

    serving: Serving
    spec: Callable[[Server], Any]
    seen: dict[str, Any] | str


def by(address: str, **said: Any) -> Callable[[Server], Any]:
    """A service with TLS that is called by this address."""
    return lambda server: regular(
        {"enabled": True, **said}, endpoints=[{"address": address, "port": server.port}]
    )


def kumas(**verification: Any) -> Callable[[Server], Any]:
    """The same in Kuma's shape, called by its IP."""
    return lambda server: released(
        tls(**verification), endpoints=[{"address": server.address, "port": server.port}], protocol="http"
    )


def on_unix(**said: Any) -> Callable[[Server], Any]:
    return lambda server: regular(said, endpoints=[{"address": server.address}])


def speaking(protocol: str) -> Callable[[Server], Any]:
    return lambda server: {
        **by(IP, caCert=CA)(server),
        "match": [{"type": "IP", "value": IP, "port": 80, "protocol": protocol}],
    }


def names(*sans: Any) -> dict[str, Any]:
    return {"subjectAltNames": list(sans)}


IP = "127.0.0.1"
LOCALHOST, ADDRESSED = Serving(("localhost",)), Serving((IP,))
API = Serving(("*.example.com", "spiffe://shop/api"))
STRANGE = Serving((IP,), authority=STRANGER)
CAREFUL = Serving((IP,), asks=True)
NEW, OLD = Serving((IP,), version=ssl.TLSVersion.TLSv1_3), Serving((IP,), version=ssl.TLSVersion.TLSv1_1)
OWN_PAIR = {"clientCert": {"secret": "cert"}, "clientKey": {"secret": "key"}}
PREFIX = {"type": "Prefix", "value": "spiffe://shop/"}

CASES = {
    "domain": Case(LOCALHOST, by("localhost", caCert=CA), {"sni": "localhost", "host": "localhost"}),
    "domain-that-proves-another": Case(ADDRESSED, by("localhost", caCert=CA), WRONG_NAME),
    "ip": Case(ADDRESSED, by(IP, caCert=CA), {"sni": None, "host": IP, "client": None}),
    "ip-that-proves-a-domain": Case(LOCALHOST, by(IP, caCert=CA), WRONG_NAME),
    "name": Case(API, by(IP, caCert=CA, verification=names("api.example.com")), {"sni": "api.example.com"}),
    "name-among-others": Case(
        API, by("localhost", caCert=CA, verification=names("a.com", "api.example.com")), {"sni": "localhost"}
    ),
    "name-that-is-a-uri": Case(
        API, by(IP, caCert=CA, verification=names("spiffe://shop/api")), {"sni": None}
    ),
    "wrong-names": Case(API, by(IP, caCert=CA, verification=names("a.com", "spiffe://shop/ap")), WRONG_NAME),
    "prefix": Case(API, kumas(**names(PREFIX), caCert=CA), {}),
    "prefix-as-a-whole-name": Case(API, kumas(**names({"value": "spiffe://shop/"}), caCert=CA), WRONG_NAME),
    "server-name": Case(API, kumas(serverName="api.example.com", caCert=CA), {"sni": "api.example.com"}),
    "wrong-server-name": Case(API, kumas(serverName="example.com", caCert=CA), WRONG_NAME),
    "private-ca-unknown": Case(ADDRESSED, by(IP), UNKNOWN_CA),
    "ca-of-another": Case(STRANGE, by(IP, caCert=CA), UNKNOWN_CA),
    "skip": Case(LOCALHOST, by(IP, caCert=CA, verification={"skip": True}), {}),
    "skip-keeps-the-ca": Case(STRANGE, by(IP, caCert=CA, verification={"skip": True}), UNKNOWN_CA),
    "skip-keeps-the-systems-cas": Case(ADDRESSED, by(IP, verification={"skip": True}), UNKNOWN_CA),
    "skip-san": Case(LOCALHOST, kumas(mode="SkipSAN", caCert=CA), {}),
    "skip-san-keeps-the-ca": Case(STRANGE, kumas(mode="SkipSAN", caCert=CA), UNKNOWN_CA),
    "skip-ca": Case(STRANGE, kumas(mode="SkipCA", caCert=CA), {}),
    "skip-all": Case(STRANGE, kumas(mode="SkipAll"), {}),
    "client": Case(CAREFUL, by(IP, caCert=CA, **OWN_PAIR), {"client": "client"}),
    "client-without-certificate": Case(CAREFUL, by(IP, caCert=CA), HUNG_UP),
    "newest-version": Case(NEW, by(IP, caCert=CA), {"version": "TLSv1.3"}),
    "newest-version-not-wanted": Case(NEW, by(IP, caCert=CA, version={"max": "TLSv1_2"}), WRONG_VERSION),
    "old-version": Case(OLD, by(IP, caCert=CA, version={"min": "TLSv1_0"}), {"version": "TLSv1.1"}),
    "old-version-not-wanted": Case(OLD, by(IP, caCert=CA), WRONG_VERSION),
    "unix": Case(Serving(is_unix=True), on_unix(), {"host": "caller"}),
    "unix-with-tls": Case(
        API._replace(is_unix=True),
        on_unix(enabled=True, caCert=CA, verification=names("api.example.com")),
        {"sni": "api.example.com"},
    ),
    "http": Case(ADDRESSED, by(IP, caCert=CA), {"alpn": "http/1.1"}),
    "http2": Case(ADDRESSED, speaking("http2"), {"alpn": "h2"}),
    "grpc": Case(ADDRESSED, speaking("grpc"), {"alpn": "h2"}),
    "plain": Case(Serving(), by(IP, enabled=False), {"host": IP}),
}
PAIRS = {
    "domain-and-ip": (LOCALHOST, ADDRESSED),
    "unix-and-ip": (ADDRESSED._replace(is_unix=True), ADDRESSED),
    "first-and-second": (Serving(), Serving()),
}


def of_pair(name: str, one: Server, other: Server) -> Any:
    """A service with two endpoints."""
    near, far = ({"address": each.address, "port": each.port} for each in (one, other))
    match name:
        case "domain-and-ip":
            return regular({"enabled": True, "caCert": CA}, endpoints=[{**near, "address": "localhost"}, far])
        case "unix-and-ip":
            return regular({"enabled": True, "caCert": CA}, endpoints=[{"address": one.address}, far])
    endpoints = [{**far, "priority": 9}, {**near, "priority": 3}]
    return released(endpoints=endpoints, protocol="http")


@pytest.fixture(scope="module")
def envoy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("external")
    servers = {name: Server(directory, name, case.serving) for name, case in CASES.items()}
    specs = {name: case.spec(servers[name]) for name, case in CASES.items()}
    for name, pair in PAIRS.items():
        both = [Server(directory, f"{name}-{n}", serving) for n, serving in enumerate(pair)]
        servers |= {f"{name}-{n}": server for n, server in enumerate(both)}
        specs[name] = of_pair(name, *both)
    found = {n: built(spec, name=n, cert=CLIENT.pem, key=CLIENT.key_pem) for n, spec in specs.items()}
    secrets = [ENCODER.decoded(resource) for each in found.values() for resource in each.secrets]
    running = Envoy(ENVOY, directory, {n: encoded(each) for n, each in found.items()}, secrets)
    try:
        running.wait()
        yield running
    finally:
        running.close()
        for server in servers.values():
            server.close()


def encoded(found):
    """The cluster as Envoy gets it."""
    assert found.problem == ""
    data = dict(found.parts["cluster"])
    if "http_options" in found.parts:
        typed = {"@type": f"type.googleapis.com/{HTTP_OPTIONS}", **found.parts["http_options"]}
        data["typed_extension_protocol_options"] = {HTTP_OPTIONS: typed}
    return ENCODER.decoded(ENCODER.resource(CLUSTER, data["name"], data))


@pytest.mark.parametrize("name", CASES)
def test_a_service_is_called_as_it_says_or_not_at_all(envoy, name):
    status, seen = envoy.call(name)
    expected = CASES[name].seen
    if isinstance(expected, str):
        assert status == 503
        assert expected in seen
    else:
        assert status == 200, seen
        assert {field: seen[field] for field in expected} == expected
        assert seen["server"] == name


def called(envoy, name, times=6):
    """Which servers answered, and what they saw."""
    answers = [envoy.call(name) for _ in range(times)]
    assert {status for status, _ in answers} == {200}
    return {(seen["server"], seen["host"], seen.get("sni")) for _, seen in answers}


def test_a_domain_and_an_ip_of_one_service_each_prove_what_they_are(envoy):
    assert called(envoy, "domain-and-ip") == {
        ("domain-and-ip-0", "localhost", "localhost"),
        ("domain-and-ip-1", IP, None),
    }


def test_a_unix_socket_and_an_ip_of_one_service_are_both_called(envoy):
    assert called(envoy, "unix-and-ip") == {("unix-and-ip-0", "caller", None), ("unix-and-ip-1", IP, None)}


def test_only_the_lowest_priority_is_called_while_it_is_up(envoy):
    assert called(envoy, "first-and-second") == {("first-and-second-0", IP, None)}
