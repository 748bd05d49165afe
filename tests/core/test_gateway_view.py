"""What people are shown of a gateway equals what its Envoys get."""

from typing import Any

from building import CASES, Case, database, objects, plain, proxy

from koguma.core import gateway_attachment, gateway_view, inspect, rules_view, world
from koguma.core.build import snapshot
from koguma.core.incremental import Db
from koguma.core.match import traits


def case(name: str) -> Case:
    return next(each for each in CASES if each.path.stem == name)


def edge(name: str) -> tuple[Db, Any]:
    db = case(name).database()
    return db, proxy(db, "edge-1")


def gateway_of(db: Db, key: Any) -> Any:
    found = traits(db, key)
    assert found is not None
    return found.gateway


def test_hosts_and_routes_that_are_shown_are_built() -> None:
    for name in ("gateway_http", "gateway_policies"):
        db, key = edge(name)
        made = snapshot.of(db, key)
        assert made is not None
        hosts = [
            *(host for each in plain(made)["routes"].values() for host in each.get("virtual_hosts", ())),
            *plain(made)["virtual_host"].values(),
        ]
        built = {
            domain: {each["name"] for each in host.get("routes", ()) if each["name"].startswith("kri_")}
            for host in hosts
            for domain in host["domains"]
        }
        shown = {
            host["hostname"]: {route["kri"] for route in host["routes"]}
            for listener in gateway_view.of_proxy(db, key)
            if listener["protocol"] == "HTTP"
            for host in listener["hosts"]
        }
        assert shown
        assert {name: routes for name, routes in built.items() if name in shown} == shown


def test_a_gateway_shows_who_serves_it_and_the_policies_of_each_listener() -> None:
    db, key = edge("gateway_policies")
    layout = gateway_view.of_gateway(db, gateway_of(db, key))
    assert [each["name"] for each in layout["dataplanes"]] == ["edge-1"]
    web, connections = layout["listeners"]
    assert web["name"] == "web"
    assert {"MeshTimeout", "MeshRetry", "MeshRateLimit", "MeshFaultInjection", "MeshTrace"} <= set(
        web["policies"]
    )
    assert [route["kind"] for route in connections["hosts"][0]["routes"]] == ["MeshTCPRoute"]
    assert gateway_attachment.serving(db, gateway_of(db, key)) == (key,)


def test_a_proxy_of_a_gateway_calls_only_the_backends_of_its_routes() -> None:
    db, key = edge("gateway_policies")
    made = snapshot.of(db, key)
    assert made is not None
    called = {each["kri"] for each in inspect.layout(db, key)["outbounds"]}
    assert called == {name for name in plain(made)["cluster"] if name.startswith("kri_")}


def test_rules_of_a_gateway_say_what_arrives_and_what_holds_for_routes() -> None:
    db, key = edge("gateway_policies")
    by_kind = {each["type"]: each for each in rules_view.of_proxy(db, key)["rules"]}
    assert {"shop", "pay"} == {
        each["resourceMeta"]["name"]
        for rule in by_kind["MeshHTTPRoute"]["toResourceRules"]
        for each in rule["origin"]
    }
    assert "inboundRules" in by_kind["MeshTimeout"]
    assert {each["inbound"]["name"] for each in by_kind["MeshTimeout"]["inboundRules"]} == {"web", "db"}
    retries = {each["resourceMeta"]["name"]: each["conf"] for each in by_kind["MeshRetry"]["toResourceRules"]}
    assert retries["shop"][0]["http"]["numRetries"] == 3
    faults = by_kind["MeshFaultInjection"]["toResourceRules"]
    assert [each["resourceMeta"]["name"] for each in faults] == ["pay"]
    assert not by_kind.get("MeshTrafficPermission", {}).get("inboundRules")


TWO_LISTENERS = """
{type: Mesh, name: default}
---
type: MeshGateway
name: edge
selectors: [{match: {kuma.io/service: edge}}]
conf:
  listeners:
    - {name: plain, port: 80, protocol: HTTP}
    - {name: other, port: 81, protocol: HTTP}
    - {name: sni, port: 443, protocol: TLS, hostname: a.lan, tls: {mode: PASSTHROUGH}}
---
type: Dataplane
name: edge-1
networking: {address: 127.0.0.1, gateway: {type: BUILTIN, tags: {kuma.io/service: edge}}}
"""
ROUTE = """
---
type: MeshHTTPRoute
name: %s
spec:
  targetRef: {kind: MeshGateway, name: edge, sectionName: %s}
  to:
    - targetRef: {kind: Mesh}
      rules: [{matches: [{path: {type: PathPrefix, value: /}}], default: {%s}}]
"""
REDIRECT = "filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]"
BACKEND = "backendRefs: [{kind: MeshService, name: shop, port: 80}]"


def test_routes_of_two_listeners_take_nothing_from_each_other() -> None:
    text = TWO_LISTENERS + ROUTE % ("away", "plain", REDIRECT) + ROUTE % ("shop", "other", BACKEND)
    db = database(objects(text))
    assert not left_out(db)
    (text_of_one,) = left_out(database(objects(text + ROUTE % ("too", "plain", BACKEND))))
    assert 'MeshHTTPRoute "too"' in text_of_one


def left_out(db: Db) -> list[str]:
    shown = rules_view.of_proxy(db, proxy(db, "edge-1"))["rules"]
    return [text for kind in shown for text in kind["warnings"] if "answers the request itself" in text]


def test_connections_are_shown_with_the_server_name_that_leads_to_them() -> None:
    db = database(objects(TWO_LISTENERS))
    shown = gateway_view.of_proxy(db, proxy(db, "edge-1"))
    assert [each["hosts"][0]["hostname"] for each in shown] == ["*", "*", "a.lan"]


OF_THE_MESH = """
---
type: MeshService
name: shop
spec: {selector: {dataplaneTags: {kuma.io/service: shop}}, ports: [{port: 80, appProtocol: http}]}
---
type: MeshHTTPRoute
name: between-services
spec:
  to:
    - targetRef: {kind: MeshService, name: shop}
      rules: [{matches: [{path: {type: PathPrefix, value: /x}}], default: {}}]
---
type: MeshTCPRoute
name: connections
spec:
  to:
    - targetRef: {kind: MeshService, name: shop}
      rules: [{default: {backendRefs: [{kind: MeshService, name: shop}]}}]
---
type: MeshHTTPRoute
name: edge
spec:
  targetRef: {kind: MeshGateway, name: edge}
  to:
    - targetRef: {kind: Mesh}
      rules:
        - matches: [{path: {type: PathPrefix, value: /}}]
          default: {backendRefs: [{kind: MeshService, name: shop, port: 80}]}
"""


def test_routes_between_services_are_no_rules_of_a_gateway_that_calls_them() -> None:
    db = database(objects(TWO_LISTENERS + OF_THE_MESH))
    key = proxy(db, "edge-1")
    (outbound,) = inspect.layout(db, key)["outbounds"]
    service = next(each for each in world.destinations(db, "default") if each.key.name == "shop")
    port = inspect.outbound(db, key, service.key, "80")
    assert outbound["kri"] == "kri_msvc_default_east__shop_80"
    assert port is not None
    assert inspect.outbound_routes(db, port) == {"routes": []}
    shown = rules_view.of_proxy(db, key)
    routes = [each for each in shown["rules"] if each["type"] in ("MeshHTTPRoute", "MeshTCPRoute")]
    assert "between-services" not in str(shown)
    assert [each["type"] for each in routes] == ["MeshHTTPRoute"]
