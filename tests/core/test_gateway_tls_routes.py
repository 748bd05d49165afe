"""TLSRoutes on a gateway: their host names are the server names by which connections are told apart."""

import base64
from typing import Any

import build
import gateway_api_objects as gateway_api
import pytest
from building import database, of, plain, stored

from koguma.core import gateway_view
from koguma.core.gateway_api import objects
from koguma.core.incremental import Db
from koguma.model.resource import Key, Resource
from tests import tls_certificates

KEY = tls_certificates.ecdsa_key()
EDGE = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge_shop_svc"}}


def service(name: str) -> Resource:
    written = build.mesh_service(name, build.port(80, "tcp"))
    return stored({**written, "labels": {"k8s.kuma.io/namespace": "shop"}})


def route(name: str, *hostnames: str, **fields: Any) -> Resource:
    rule = {"backendRefs": [gateway_api.backend(name)]}
    return gateway_api.route(name, rule, kind=objects.TLS_ROUTE, hostnames=list(hostnames), **fields)


def mesh(*resources: Resource, mode: str = "Passthrough", hostname: str = "*.test") -> Db:
    tls: dict[str, Any] = {"mode": mode}
    if mode == "Terminate":
        tls["certificateRefs"] = [{"name": "cert"}]
    listener = gateway_api.listener("tls", 9443, "TLS", tls=tls, hostname=hostname)
    pair = {"tls.crt": tls_certificates.certificate(KEY, "*.test"), "tls.key": tls_certificates.pem(KEY)}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in pair.items()}
    cert = gateway_api.stored("Secret.core", "cert", {"type": "kubernetes.io/tls", "data": data})
    edge = {**build.dataplane("edge-1"), "networking": {"address": "127.0.0.1", "gateway": EDGE}}
    return database(
        (
            stored(build.mesh()),
            gateway_api.gateway_class(),
            gateway_api.gateway("edge", listener),
            cert,
            stored(edge),
            *map(service, ("a", "b", "c")),
            *resources,
        )
    )


def chains(db: Db) -> dict[str, str]:
    """Where connections go by their server name; empty where nobody takes them."""
    (listener,) = (each for each in plain(of(db, "edge-1"))["listener"].values() if "filter_chains" in each)
    found = {}
    for chain in listener["filter_chains"]:
        (name,) = chain["filter_chain_match"].get("server_names") or ["*"]
        target = chain["filters"][-1]["typed_config"].get("cluster", "")
        found[name] = target.split("_")[5] if target.startswith("kri_msvc") else ""
    return found


@pytest.mark.parametrize("mode", ["Passthrough", "Terminate"])
def test_each_host_name_of_routes_has_a_chain(mode: str) -> None:
    db = mesh(route("a", "a.test"), route("b", "b.test", "*.b.test"), mode=mode)
    assert chains(db) == {"a.test": "a", "b.test": "b", "*.b.test": "b", "*.test": ""}


def test_the_hosts_are_those_that_route_and_listener_share() -> None:
    assert chains(mesh(route("a", "*.test", "other.example"))) == {"*.test": "a"}
    assert chains(mesh(route("a", "*.test"), hostname="x.test")) == {"x.test": "a"}
    assert chains(mesh(route("a", "a.test", "*.example"), hostname="")) == {
        "a.test": "a",
        "*.example": "a",
        "*": "",
    }


def test_the_most_exact_host_name_counts_and_then_the_older_route() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    db = mesh(
        route("a", "*.test", created=old),
        route("b", "b.test", created=new),
        route("c", "b.test", created=old),
    )
    assert chains(db) == {"b.test": "c", "*.test": "a"}


def test_people_are_shown_the_same() -> None:
    db = mesh(route("a", "a.test"), route("b", "b.test"))
    (listener,) = gateway_view.of_proxy(db, Key("Dataplane", "default", "east", "", "edge-1"))
    shown = {host["hostname"]: [each["kri"] for each in host["routes"]] for host in listener["hosts"]}
    assert shown == {
        "a.test": ["kri_tlsroute_default_east_shop_a_"],
        "b.test": ["kri_tlsroute_default_east_shop_b_"],
        "*.test": [],
    }
