"""Routes of the Gateway API on real Envoys, by the names of conformance features: a gateway and a sidecar.

outside ──▶ Gateway edge ──▶ one, two        web ──▶ Service one, with routes of the mesh
"""

import contextlib
import http.client
import json
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_client import Response, joined_headers
from tests.https_server import HttpsServer
from tests.live_mesh import LiveMesh, Sidecar, TcpEcho, echoed_bytes
from tests.ports import free_port
from tests.waiting import eventually, until

pytestmark = pytest.mark.slow
GROUP = "gateway.networking.k8s.io"
V1 = f"/apis/{GROUP}/v1"
NAMESPACE = "mesh-default"  # where services without a namespace are
ROUTES = f"{V1}/namespaces/{NAMESPACE}/httproutes"


class EdgeMesh(LiveMesh):
    """A mesh with two services, a caller, and a Gateway in front of them."""

    http: int
    tcp: int
    tls: int
    vault: HttpsServer
    one: Sidecar
    two: Sidecar
    web: Sidecar
    edge: Sidecar

    def create(self, plural: str, kind: str, name: str, spec: Any, version: str = "v1") -> None:
        path = f"/apis/{GROUP}/{version}/namespaces/{NAMESPACE}/{plural}"
        document = {
            "apiVersion": f"{GROUP}/{version}",
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        answer = self.request("POST", path, document)
        assert answer.status == 201, answer.text

    def route(self, name: str, *rules: Any, parent: Any = None, **spec: Any) -> None:
        ref = parent or {"name": "edge", "sectionName": "http"}
        self.create("httproutes", "HTTPRoute", name, {"parentRefs": [ref], "rules": list(rules), **spec})

    def backend(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "port": getattr(self, name).inbound, **fields}

    def ask(self, path: str = "/", host: str = "shop.test", method: str = "GET", **headers: str) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        with contextlib.closing(connection):
            sent = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, path, headers=sent)
            response = connection.getresponse()
            return Response(response.status, joined_headers(response.getheaders()), response.read())


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeMesh]:
    tcp = TcpEcho()
    vault = HttpsServer(tmp_path_factory.mktemp("v"), "vault.test")
    with vault, EdgeMesh(tmp_path_factory.mktemp("g")) as mesh:
        mesh.http, mesh.tcp, mesh.tls, mesh.vault = free_port(), free_port(), free_port(), vault
        mesh.one = mesh.sidecar("one-1", "one", wait=False)
        mesh.two = mesh.sidecar("two-1", "two", wait=False)
        streams = mesh.sidecar("streams-1", "streams", protocol="tcp", target=tcp.port, wait=False)
        secret = mesh.sidecar("vault-1", "vault", protocol="tcp", target=vault.port, wait=False)
        mesh.web = mesh.sidecar("web-1", "web", outbounds=["one"], wait=False)
        listeners = [
            {"name": "http", "port": mesh.http, "protocol": "HTTP"},
            {"name": "tcp", "port": mesh.tcp, "protocol": "TCP"},
            {"name": "tls", "port": mesh.tls, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
        ]
        spec = {"gatewayClassName": "koguma", "listeners": listeners}
        mesh.create("gateways", "Gateway", "edge", spec)
        mesh.edge = mesh.gateway(service=f"edge_{NAMESPACE}_svc", wait=False)
        for proxy in (mesh.one, mesh.two, streams, secret, mesh.web, mesh.edge):
            proxy.wait_for_output("is ready")
        rules = [{"backendRefs": [{"name": "streams", "port": streams.inbound}]}]
        ref = {"name": "edge", "sectionName": "tcp"}
        mesh.create("tcproutes", "TCPRoute", "streams", {"parentRefs": [ref], "rules": rules})
        rules = [{"backendRefs": [{"name": "vault", "port": secret.inbound}]}]
        spec = {"parentRefs": [{"name": "edge", "sectionName": "tls"}], "hostnames": ["vault.test"]}
        mesh.create("tlsroutes", "TLSRoute", "vault", {**spec, "rules": rules})
        mesh.route("all", *rules_of(mesh), hostnames=["shop.test"])
        for path in ("/", "/two"):  # of two services, each generated on its own
            until(lambda path=path: mesh.ask(path).status == 200, f"the gateway answers {path}")
        yield mesh
    tcp.stop()


def match(path: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"path": {"type": "PathPrefix", "value": path}, **fields}]


def changed(side: str, **change: Any) -> dict[str, Any]:
    return {"type": f"{side}HeaderModifier", f"{side.lower()}HeaderModifier": change}


def rules_of(mesh: EdgeMesh) -> list[dict[str, Any]]:
    one, two = [mesh.backend("one")], [mesh.backend("two")]
    header = [{"name": "x-two", "value": "yes"}]
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": mesh.backend("two")}}
    rewrite = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch"}}}
    rewrite["urlRewrite"]["path"]["replacePrefixMatch"] = "/new"  # type: ignore[index]
    redirect = {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301}}
    extension = {"type": "ExtensionRef", "extensionRef": {"group": "x.test", "kind": "Odd", "name": "a"}}
    added = {"set": [{"name": "x-added", "value": "yes"}]}
    return [
        {"backendRefs": one},
        {"matches": match("/two"), "backendRefs": two},
        {"matches": match("/", headers=header), "backendRefs": two},
        {"matches": match("/method", method="POST"), "backendRefs": two},
        {"matches": match("/query", queryParams=[{"name": "a", "value": "1"}]), "backendRefs": two},
        {"matches": match("/split"), "backendRefs": [{**one[0], "weight": 1}, {**two[0], "weight": 1}]},
        {"matches": match("/half"), "backendRefs": [one[0], {"name": "nobody", "port": 80}]},
        {"matches": match("/nowhere"), "backendRefs": [{"name": "nobody", "port": 80}]},
        {"matches": match("/changed"), "filters": [changed("Request", **added)], "backendRefs": one},
        {"matches": match("/answer"), "filters": [changed("Response", **added)], "backendRefs": one},
        {
            "matches": match("/of-backend"),
            "backendRefs": [{**one[0], "filters": [changed("Request", **added)]}],
        },
        {"matches": match("/mirror"), "filters": [mirror], "backendRefs": one},
        {"matches": match("/old"), "filters": [rewrite], "backendRefs": one},
        {"matches": match("/secure"), "filters": [redirect]},
        {"matches": match("/odd"), "filters": [extension], "backendRefs": one},
        {"matches": match("/sleep"), "timeouts": {"request": "200ms"}, "backendRefs": one},
    ]


def served_by(answer: Response) -> str:
    return answer.json["service"] if answer.status == 200 else str(answer.status)


MATCHING: dict[str, tuple[dict[str, Any], str]] = {
    "HTTPRoute": ({}, "one"),
    "HTTPRouteMatching prefix": ({"path": "/two/x"}, "two"),
    "HTTPRouteMatching no prefix of a word": ({"path": "/twofold"}, "one"),
    "HTTPRouteHeaderMatching": ({"x_two": "yes"}, "two"),
    "HTTPRouteMethodMatching": ({"path": "/method", "method": "POST"}, "two"),
    "HTTPRouteMethodMatching another": ({"path": "/method"}, "one"),
    "HTTPRouteQueryParamMatching": ({"path": "/query?a=1"}, "two"),
    "HTTPRouteQueryParamMatching another": ({"path": "/query?a=2"}, "one"),
    "HTTPRouteHostnameIntersection": ({"host": "other.test"}, "404"),
    "HTTPRouteInvalidNonExistentBackendRef": ({"path": "/nowhere"}, "500"),
    "ExtensionRef that is not known": ({"path": "/odd"}, "500"),
    "HTTPRouteRequestTimeout": ({"path": "/sleep/5"}, "504"),
}


def test_requests_reach_what_their_rule_names(mesh: EdgeMesh) -> None:
    answers = {feature: served_by(mesh.ask(**request)) for feature, (request, _) in MATCHING.items()}
    assert answers == {feature: expected for feature, (_, expected) in MATCHING.items()}


def test_filters_act(mesh: EdgeMesh) -> None:
    assert mesh.ask("/changed").json["headers"]["x-added"] == "yes"  # RequestHeaderModification
    assert mesh.ask("/of-backend").json["headers"]["x-added"] == "yes"  # BackendRequestHeaderModification
    assert mesh.ask("/answer").headers["x-added"] == "yes"  # ResponseHeaderModification
    assert mesh.ask("/old/x").json["path"] == "/new/x"  # PathRewrite
    redirected = mesh.ask("/secure")  # SchemeRedirect
    assert (redirected.status, redirected.headers["location"]) == (301, "https://shop.test/secure")
    assert served_by(mesh.ask("/mirror")) == "one"  # RequestMirror
    until(lambda: any(each["path"] == "/mirror" for each in mesh.two.service.seen), "the copy arrives")


def test_shares_are_those_of_the_weights(mesh: EdgeMesh) -> None:
    split = Counter(served_by(mesh.ask("/split")) for _ in range(60))
    assert split.keys() == {"one", "two"}
    half = Counter(served_by(mesh.ask("/half")) for _ in range(60))  # the share of a bad backend is lost
    assert half.keys() == {"one", "500"}


def test_of_two_routes_one_wins_as_a_whole(mesh: EdgeMesh) -> None:
    path = match("/two")
    younger = {
        "matches": path,
        "filters": [changed("Response", set=[{"name": "x-younger", "value": "yes"}])],
        "backendRefs": [mesh.backend("one")],
    }
    mesh.route("younger", younger, hostnames=["shop.test"])
    mesh.wait_until_synced(mesh.revision())
    answer = mesh.ask("/two")
    assert (served_by(answer), answer.headers.get("x-younger")) == ("two", None)
    mesh.request("DELETE", f"{ROUTES}/younger")


def test_connections_of_a_tcp_route_arrive(mesh: EdgeMesh) -> None:
    assert until(lambda: echoed_bytes(mesh.tcp), "the TCP listener answers")


def test_connections_of_a_tls_route_arrive_by_their_server_name(mesh: EdgeMesh) -> None:
    context = ssl.create_default_context(cadata=mesh.vault.authority.pem[0])

    def certified(name: str) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", mesh.tls), 60) as connection:
                context.wrap_socket(connection, server_hostname=name).close()
        except OSError:
            return False
        return True

    until(lambda: certified("vault.test"), "the service shows its own certificate")
    context.check_hostname = False
    assert not certified("other.test")


def test_people_are_led_to_the_http_route(mesh: EdgeMesh) -> None:
    route = f"{ROUTES}/all"
    parents = until(lambda: mesh.request("GET", route).json.get("status", {}).get("parents"), "a status")
    conditions = {each["type"]: each["reason"] for each in parents[0]["conditions"]}
    assert conditions == {"Accepted": "Accepted", "ResolvedRefs": "InvalidKind"}
    names = json.dumps(mesh.edge.admin("/config_dump"))
    assert "kri_httproute_default_default__all_" in names
    assert mesh.request("GET", "/meshes/default/meshhttproutes").json["items"] == []
    assert mesh.request("GET", "/meshes/default/meshgateways").json["items"] == []


def test_a_filter_of_ours_acts_while_it_is_there(mesh: EdgeMesh) -> None:
    path = "/meshes/default/routefilters/down"
    ref = {"group": "kuma.io", "kind": "RouteFilter", "name": "down"}
    named = [{"type": "ExtensionRef", "extensionRef": ref}]
    rule = {"matches": match("/down"), "filters": named, "backendRefs": [mesh.backend("one")]}
    mesh.route("extended", rule, hostnames=["shop.test"])
    eventually(lambda: mesh.ask("/down").status, 500)  # never skipped
    for text in ("later", "much later"):
        answer = {"status": 418, "body": {"inlineString": text}}
        spec = {"type": "DirectResponse", "directResponse": answer}
        document = {"type": "RouteFilter", "name": "down", "mesh": "default", "spec": spec}
        written = mesh.request("PUT", path, document)
        assert written.status in (200, 201), written.text
        eventually(lambda: (mesh.ask("/down").status, mesh.ask("/down").text), (418, text))
    deleted = mesh.request("DELETE", path)
    assert '"extended" (namespace mesh-default) at spec.rules[0].filters[0]' in str(deleted.json["warnings"])
    eventually(lambda: mesh.ask("/down").status, 500)
    mesh.request("DELETE", f"{ROUTES}/extended")


def test_a_route_of_a_service_acts_in_the_caller(mesh: EdgeMesh) -> None:
    service = {"group": "", "kind": "Service", "name": "one"}
    added = changed("Response", set=[{"name": "x-mesh", "value": "yes"}])
    mesh.route(
        "in-mesh",
        {"matches": match("/two"), "backendRefs": [mesh.backend("two")]},
        {
            "matches": match("/one"),
            "filters": [added],
            "backendRefs": [mesh.backend("one")],
            "timeouts": {"request": "7s"},
        },
        parent=service,
    )
    eventually(lambda: served_by(mesh.web.call("one", path="/two")), "two")  # MeshHTTPRouteMatching
    assert mesh.web.call("one", path="/one").headers["x-mesh"] == "yes"
    assert mesh.web.call("one", path="/else").status == 404
    explained = mesh.koguma("explain", "dataplane", "web-1", "--to", "one", "-o", "json").stdout
    assert "kri_httproute_default_default__in-mesh_" in explained
    assert '"path": "spec.rules[1].filters"' in explained
    one = ("explain", "dataplane", "web-1", "--to", "one", "--field", "http.requestTimeout")
    assert re.search(
        r"MeshTimeout http.requestTimeout = 15s\n  for calls to one:http through in-mesh.*\n  set by .*\n"
        r"  but 7s for PathPrefix /one: set by kri_httproute_\S+, spec.rules\[1\].timeouts.request, line \d",
        mesh.koguma(*one).stdout,
    )
    mesh.request("DELETE", f"{ROUTES}/in-mesh")
    eventually(lambda: served_by(mesh.web.call("one", path="/two")), "one")
