"""Derived resources: what a stored HTTPRoute becomes, when that is computed, and how it leads back."""

from typing import Any

import build
import gateway_api_objects as gateway_api
import pytest
from building import HERE, KINDS, database, of, plain, stored

from koguma.core import derivation, loading, pipeline, problems, provenance, world
from koguma.core.build import what_if
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.lint import referrers
from koguma.model import derived
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.proof import from_scratch

ROUTE = Key("HTTPRoute.gateway.networking.k8s.io", "", "", "shop", "web")
ON_EDGE = Key("MeshHTTPRoute", "default", "east", "shop", "HTTPRoute/shop/web/Gateway/shop/edge/http")
ON_BACKEND = Key("MeshHTTPRoute", "default", "east", "shop", "HTTPRoute/shop/web/shop/backend/")
BASE = (gateway_api.gateway_class(), gateway_api.gateway())


def namespaced(name: str, namespace: str = "shop") -> Resource:
    """A MeshService of a namespace."""
    return stored({**build.mesh_service(name), "labels": {"k8s.kuma.io/namespace": namespace}})


def keys(db: Db) -> list[Key]:
    """What routes became; the Gateway becomes a MeshGateway."""
    found = [key for key, each in world.RESOURCES.items(db) if isinstance(each, DerivedResource)]
    return [key for key in found if key.kind != "MeshGateway"]


def loaded(*resources: Resource) -> Db:
    return loading.load(KINDS, HERE, (*BASE, *resources))


def test_a_route_becomes_one_of_ours_for_each_listener_and_service() -> None:
    two = gateway_api.gateway("two", gateway_api.listener("a", 1), gateway_api.listener("b", 2))
    route = gateway_api.route(parentRefs=[gateway_api.EDGE, {"name": "two"}, gateway_api.SERVICE])
    db = loaded(two, namespaced("backend"), route)
    names = {key.name.removeprefix("HTTPRoute/shop/web/") for key in keys(db)}
    assert names == {"Gateway/shop/edge/http", "Gateway/shop/two/a", "Gateway/shop/two/b", "shop/backend/"}


def test_what_is_derived_follows_every_change() -> None:
    db = loaded()
    assert keys(db) == []
    pipeline.take(db, [gateway_api.route()])
    assert keys(db) == [ON_EDGE]
    pipeline.take(db, [gateway_api.gateway("edge", gateway_api.listener("other"))])
    assert [key.name for key in keys(db)] == ["HTTPRoute/shop/web/Gateway/shop/edge/other"]
    pipeline.take(db, [], [BASE[0].key])
    assert keys(db) == []
    pipeline.take(db, BASE)
    assert keys(db) == [ON_EDGE]
    pipeline.take(db, [], [ROUTE])
    assert keys(db) == []


def test_a_change_of_one_route_converts_one() -> None:
    db = loaded(*(gateway_api.route(f"r{number}") for number in range(200)))
    db.reset_counts()
    pipeline.take(db, [gateway_api.route("r7", gateway_api.rule("/new"))])
    assert db.runs["derivation.derived"] == db.runs["routes.converted"] == 1
    db.reset_counts()
    pipeline.take(db, [stored(build.mesh_service("unrelated")), stored(build.dataplane())])
    assert not db.runs


def test_an_object_that_cannot_be_read_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_db: Db, source: Key) -> tuple[DerivedResource, ...]:
        raise ValueError(f"{source.name} is odd")

    monkeypatch.setitem(derivation.SOURCES, ROUTE.kind, fail)
    db = loaded(gateway_api.route())
    assert (keys(db), world.UNREADABLE.get(db, ROUTE)) == ([], "web is odd")
    pipeline.take(db, [], [ROUTE])
    assert world.UNREADABLE.get(db, ROUTE) is None


@pytest.mark.parametrize("spec", [None, [], {"parentRefs": 3}, {"parentRefs": [{}], "rules": [None, {}]}])
def test_any_data_is_read(spec: object) -> None:
    assert keys(loaded(gateway_api.stored(ROUTE.kind, "web", spec))) == []


def test_nobody_else_sees_derived_resources_as_stored() -> None:
    db = database((*BASE, gateway_api.route()))
    assert ON_EDGE in keys(db)
    claim = from_scratch.claim(db, HERE, "", ())
    assert ON_EDGE not in {resource.key for resource in claim.resources}
    assert keys(what_if.with_objects(db, "default", ())) == [ON_EDGE]
    assert keys(
        what_if.with_objects(db, "default", [gateway_api.gateway("edge", gateway_api.listener("b"))])
    ) == [ON_EDGE._replace(name="HTTPRoute/shop/web/Gateway/shop/edge/b")]


def test_people_and_envoy_know_the_source() -> None:
    assert str(ON_EDGE) == 'HTTPRoute "web" (namespace shop)'
    assert str(derived.identifier(ON_EDGE, "mhttpr")) == "kri_httproute_default_east_shop_web_"
    assert derived.display_name(ON_EDGE) == "web.shop"


def test_a_field_leads_back_to_the_line_of_the_route() -> None:
    changes = {
        "type": "RequestHeaderModifier",
        "requestHeaderModifier": {"set": [{"name": "x", "value": "y"}]},
    }
    bad = {"type": "Nonsense"}
    rules = [gateway_api.rule("/bad", filters=[bad]), gateway_api.rule("/good", filters=[changes])]
    db = loaded(namespaced("backend"), gateway_api.route("web", *rules, parent=gateway_api.SERVICE))
    (shown,) = provenance.Viewer(db, fields=True).route_rules([ItemId(ON_BACKEND, "to", 0)])
    origin = shown.shown.origins["filters"]
    assert (origin["kri"], origin["path"]) == (
        "kri_httproute_default_east_shop_web_",
        "spec.rules[1].filters",
    )
    assert shown.matches_origin["path"] == "spec.rules[1].matches"
    assert origin["line"] > shown.matches_origin["line"] - 20


ANSWER = {"type": "DirectResponse", "directResponse": {"status": 503, "body": {"inlineString": "later"}}}
NAMED = gateway_api.rule("/down", filters=[gateway_api.extension("down")])


def test_a_filter_that_comes_or_changes_reaches_the_routes_that_name_it() -> None:
    def filters() -> Any:
        resource = world.RESOURCES.get(db, ON_EDGE)
        return resource.spec["to"][0]["rules"][0]["default"]["filters"] if resource else None

    others = [gateway_api.route(f"r{number}") for number in range(20)]
    db = loaded(gateway_api.route("web", NAMED), *others)
    assert filters() == [gateway_api.extension("down")]
    for status in (503, 418):
        own = {"type": "DirectResponse", "directResponse": {"status": status}}
        db.reset_counts()
        pipeline.take(db, [gateway_api.route_filter("down", own)])
        assert filters() == [own]
        assert db.runs["routes.converted"] == 1
    pipeline.take(db, [], [gateway_api.route_filter("down", ANSWER).key])
    assert filters() == [gateway_api.extension("down")]


def test_a_filter_of_its_own_leads_to_its_line() -> None:
    route = gateway_api.route("web", NAMED, parent=gateway_api.SERVICE)
    down = gateway_api.route_filter("down", ANSWER)
    db = loaded(namespaced("backend"), route, down)
    (shown,) = provenance.Viewer(db, fields=True).route_rules([ItemId(ON_BACKEND, "to", 0)])
    origins = shown.shown.origins
    assert origins["filters"]["path"] == "spec.rules[0].filters"
    own = origins["filters[0]"]
    assert (own["kri"], own["path"], own["value"]) == ("kri_rf_default_east_shop_down_", "spec", ANSWER)
    assert own["line"] > 1
    assert derivation.stored_place(db, ON_BACKEND, "spec.to[0].rules[0].default.filters[0].type") == (
        down.key,
        "spec.type",
    )


def test_a_filter_that_is_missing_is_a_problem_of_the_route_and_deleting_one_warns() -> None:
    route, down = gateway_api.route("web", NAMED), gateway_api.route_filter("down", ANSWER)
    db = loaded(route, down)
    assert [each for each in problems.of_mesh(db, "default") if each.code == "KG002"] == []
    ((key, referrer),) = referrers.of(db, "default", "RouteFilter", [down.key])
    assert (key, referrer.by, referrer.path) == (down.key, ROUTE, "spec.rules[0].filters[0].extensionRef")
    assert not referrers.is_dangling(db, referrer, "RouteFilter")
    pipeline.take(db, [], [down.key])
    assert referrers.is_dangling(db, referrer, "RouteFilter")
    (found,) = [each for each in problems.of_mesh(db, "default") if each.code == "KG002"]
    assert (found.objects, found.path) == ((ROUTE,), "spec.rules[0].filters[0].extensionRef")
    assert found.message.startswith('HTTPRoute "web" (namespace shop) refers to RouteFilter "down"')


def test_a_problem_is_one_of_the_route() -> None:
    rules = [gateway_api.rule("/", gateway_api.backend("nobody"))]
    db = loaded(namespaced("backend"), gateway_api.route("web", *rules, parent=gateway_api.SERVICE))
    found = [each for each in problems.of_mesh(db, "default") if each.code == "KG002"]
    assert [(each.objects, each.path) for each in found] == [((ROUTE,), "spec.rules[0].backendRefs[0]")]
    assert found[0].message.startswith('HTTPRoute "web" (namespace shop) refers to MeshService "nobody"')


def test_a_route_of_a_service_acts_in_its_callers_proxy() -> None:
    outbound = {"port": 9000, "backendRef": {"kind": "MeshService", "name": "backend", "port": 80}}
    web = stored({**build.dataplane(outbound=[outbound]), "labels": {"k8s.kuma.io/namespace": "shop"}})
    route = gateway_api.route("web", gateway_api.rule("/api"), parent=gateway_api.SERVICE)
    db = database((stored(build.mesh()), namespaced("backend"), web, route))
    (built,) = [each for name, each in plain(of(db, "web-1"))["routes"].items() if "backend" in name]
    routes = built["virtual_hosts"][0]["routes"]
    assert {each["name"] for each in routes} == {"kri_httproute_default_east_shop_web_"}
    assert [each["match"] for each in routes] == [{"path": "/api"}, {"prefix": "/api/"}]
