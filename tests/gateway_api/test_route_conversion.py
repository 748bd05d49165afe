"""What rules of routes become, by table: matches, filters, backends, and what is refused and why."""

from typing import Any

import gateway_api_objects as gateway_api
import pytest

from koguma.core import gateways as core_gateways
from koguma.core import loading, match, world
from koguma.core.gateway_api import objects, parents, routes
from koguma.core.gateway_api.conversion import Conversion
from koguma.core.group import Group
from koguma.core.incremental import Db
from koguma.main import all_kinds
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.derived import DerivedResource
from koguma.model.resource import Resource

KINDS, HERE = all_kinds(), ControlPlaneInfo(zone="east")
BACKEND = {"kind": "MeshService", "name": "backend", "namespace": "shop", "port": 80}


def loaded(*resources: Resource) -> Db:
    return loading.load(KINDS, HERE, (gateway_api.gateway_class(), *resources))


def converted(route: Resource, *others: Resource) -> Conversion:
    return routes.converted(loaded(route, *others), route.key, "default")


def conf(**rule: Any) -> Any:
    """What becomes of one rule, which is not refused."""
    made = converted(gateway_api.route("web", gateway_api.rule("/x", **rule)))
    assert made.dropped == ()
    return made.rules[0].rule["default"]


def derived(db: Db) -> list[DerivedResource]:
    return [each for _, each in world.RESOURCES.items(db) if isinstance(each, DerivedResource)]


MATCHES = {
    "nothing": ({}, {"path": {"type": "PathPrefix", "value": "/"}}),
    "a prefix with a slash": (
        {"path": {"value": "/a/"}},
        {"path": {"type": "PathPrefix", "value": "/a"}},
    ),
    "an exact path": (
        {"path": {"type": "Exact", "value": "/a/"}, "method": "GET"},
        {"path": {"type": "Exact", "value": "/a/"}, "method": "GET"},
    ),
    "the first of equal headers": (
        {"headers": [{"name": "X", "value": "1"}, {"name": "x", "value": "2"}]},
        {
            "path": {"type": "PathPrefix", "value": "/"},
            "headers": [{"type": "Exact", "name": "X", "value": "1"}],
        },
    ),
    "query parameters": (
        {"queryParams": [{"name": "a", "value": "1"}, {"name": "A", "value": "2"}]},
        {
            "path": {"type": "PathPrefix", "value": "/"},
            "queryParams": [
                {"type": "Exact", "name": "a", "value": "1"},
                {"type": "Exact", "name": "A", "value": "2"},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", MATCHES)
def test_a_match_is_converted(name: str) -> None:
    match, expected = MATCHES[name]
    made = converted(gateway_api.route("web", {"matches": [match], "backendRefs": [gateway_api.backend()]}))
    assert made.rules[0].rule["matches"] == [expected]


SAME = [
    {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}]}},
    {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["a"]}},
    {"type": "URLRewrite", "urlRewrite": {"hostname": "b.test"}},
    {"type": "CORS", "cors": {"allowOrigins": ["https://a.test"]}},
]


@pytest.mark.parametrize("each", SAME, ids=lambda each: each["type"])
def test_a_filter_keeps_its_fields(each: Any) -> None:
    assert conf(filters=[each]) == {"filters": [each], "backendRefs": [BACKEND]}


def test_several_mirrors_keep_their_shares() -> None:
    mirrors = [
        {"backendRef": gateway_api.backend(), **share}
        for share in ({"percent": 5}, {"fraction": {"numerator": 1}})
    ]
    filters = conf(filters=[{"type": "RequestMirror", "requestMirror": each} for each in mirrors])["filters"]
    assert [each["requestMirror"] for each in filters] == [
        {"backendRef": BACKEND, "percentage": 5},
        {"backendRef": BACKEND, "fraction": {"numerator": 1}},
    ]


def test_a_mirror_that_leads_nowhere_is_not_made() -> None:
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": gateway_api.backend(kind="Bucket")}}
    made = converted(gateway_api.route("web", gateway_api.rule("/", filters=[mirror])))
    assert made.rules[0].rule["default"]["filters"] == []
    assert [each.reason for each in made.refs] == ["InvalidKind"]


def test_filters_of_a_backend_are_kept() -> None:
    made = converted(gateway_api.route("web", gateway_api.rule("/", gateway_api.backend(filters=SAME[:1]))))
    assert made.rules[0].rule["default"]["backendRefs"] == [{**BACKEND, "filters": SAME[:1]}]


def test_an_unknown_extension_is_an_error_and_never_skipped() -> None:
    ref = {"type": "ExtensionRef", "extensionRef": {"group": "x.test", "kind": "Magic", "name": "a"}}
    made = converted(gateway_api.route("web", gateway_api.rule("/", filters=[ref])))
    assert made.rules[0].rule["default"] == {"filters": [ref]}
    assert [each.reason for each in made.refs] == ["InvalidKind"]


ANSWER = {"type": "DirectResponse", "directResponse": {"status": 503, "body": {"inlineString": "later"}}}


@pytest.mark.parametrize("each", [*SAME[:3], ANSWER], ids=lambda each: each["type"])
@pytest.mark.parametrize("kind", [objects.HTTP_ROUTE, objects.GRPC_ROUTE])
def test_a_filter_of_ours_acts_as_if_it_stood_in_the_rule(kind: str, each: Any) -> None:
    rule = {"filters": [gateway_api.extension("it")], "backendRefs": [gateway_api.backend()]}
    route = gateway_api.route("web", rule, kind=kind)
    made = converted(route, gateway_api.route_filter("it", each))
    backends = {} if each is ANSWER else {"backendRefs": [BACKEND]}
    assert made.rules[0].rule["default"] == {"filters": [each], **backends}
    assert (made.refs, made.dropped) == ((), ())


def test_a_mirror_of_ours_needs_the_same_grants() -> None:
    rule = gateway_api.rule("/", filters=[gateway_api.extension("it")])
    mirror = {"percentage": 5, "backendRef": {"kind": "MeshService", "name": "backend", "port": 80}}
    here = {"type": "RequestMirror", "requestMirror": mirror}
    route = gateway_api.route("web", rule)
    made = converted(route, gateway_api.route_filter("it", here))
    assert made.rules[0].rule["default"]["filters"] == [
        {"type": "RequestMirror", "requestMirror": {"percentage": 5, "backendRef": BACKEND}}
    ]
    there = {**here, "requestMirror": {"backendRef": {**mirror["backendRef"], "namespace": "other"}}}  # type: ignore[dict-item]
    refused = converted(route, gateway_api.route_filter("it", there))
    assert refused.rules[0].rule["default"]["filters"] == []
    assert [each.reason for each in refused.refs] == ["RefNotPermitted"]


@pytest.mark.parametrize(
    "place", [{"namespace": "other"}, {"namespace": ""}, {"mesh": "another"}, {"zone": "west"}]
)
def test_a_filter_of_ours_is_one_of_the_route_s_namespace_and_mesh(place: Any) -> None:
    route = gateway_api.route("web", gateway_api.rule("/", filters=[gateway_api.extension("it")]))
    made = converted(route, gateway_api.route_filter("it", ANSWER, **place))
    assert made.rules[0].rule["default"] == {"filters": [gateway_api.extension("it")]}
    (problem,) = made.refs
    assert problem.reason == "BackendNotFound"
    assert "there is no RouteFilter shop/it in mesh default" in problem.message


@pytest.mark.parametrize(
    ("own", "beside", "reason", "message"),
    [
        (ANSWER, SAME[2], "IncompatibleFilters", "spec.rules[0].filters: DirectResponse and URLRewrite"),
        (ANSWER, SAME[3], "IncompatibleFilters", "spec.rules[0].filters: DirectResponse and CORS exclude"),
        (SAME[2], SAME[2], "IncompatibleFilters", "spec.rules[0].filters: there are several filters of type"),
        (
            ANSWER,
            {"type": "RequestRedirect", "requestRedirect": {}},
            "IncompatibleFilters",
            "spec.rules[0].filters: DirectResponse and RequestRedirect exclude",
        ),
        (
            {
                "type": "URLRewrite",
                "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
            },
            SAME[0],
            "UnsupportedValue",
            "spec.rules[0].filters[1].extensionRef (RouteFilter it, spec.urlRewrite.path.replacePrefix",
        ),
    ],
)
def test_a_filter_of_ours_that_cannot_act_in_a_rule_drops_it(
    own: Any, beside: Any, reason: str, message: str
) -> None:
    exact = [{"path": {"type": "Exact", "value": "/x"}}]
    rule = gateway_api.rule("", matches=exact, filters=[beside, gateway_api.extension("it")])
    made = converted(gateway_api.route("web", rule), gateway_api.route_filter("it", own))
    assert (made.rules, [each.reason for each in made.dropped]) == ((), [reason])
    assert made.dropped[0].message.startswith(message)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "an unknown filter": (
        {"filters": [{"type": "Odd"}]},
        "UnsupportedValue",
        "spec.rules[0].filters[0].type: ",
    ),
    "a redirect beside a rewrite": (
        {"filters": [{"type": "RequestRedirect", "requestRedirect": {}}, SAME[2]]},
        "IncompatibleFilters",
        "spec.rules[0].filters: ",
    ),
    "an expression that Envoy cannot read": (
        {"matches": [{"path": {"type": "RegularExpression", "value": "("}}]},
        "UnsupportedValue",
        "spec.rules[0].matches[0].path.value: ",
    ),
    "a change of the host header": (
        {
            "filters": [
                {
                    "type": "RequestHeaderModifier",
                    "requestHeaderModifier": {"set": [{"name": "Host", "value": "b"}]},
                }
            ]
        },
        "UnsupportedValue",
        "spec.rules[0].filters[0].requestHeaderModifier.set[0].name: ",
    ),
    "a rewrite for one backend": (
        {"backendRefs": [gateway_api.backend(filters=SAME[2:3])]},
        "UnsupportedValue",
        "spec.rules[0].backendRefs[0].filters[0].type: ",
    ),
    "a field that is not known": ({"magic": {}}, "UnsupportedValue", "spec.rules[0].magic "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_cannot_be_had_is_dropped_with_a_reason(name: str) -> None:
    rule, reason, path = REFUSED[name]
    made = converted(gateway_api.route("web", {**gateway_api.rule("/"), **rule}, gateway_api.rule("/good")))
    assert [each.number for each in made.rules] == [1]
    assert [(each.number, each.reason) for each in made.dropped] == [(0, reason)]
    assert made.dropped[0].message.startswith(path)


def test_references_across_namespaces_need_a_grant() -> None:
    route = gateway_api.route("web", gateway_api.rule("/", gateway_api.backend(namespace="other", weight=3)))
    refused = converted(route)
    assert refused.rules[0].rule["default"]["backendRefs"] == [
        {"kind": "Invalid", "name": "backend", "weight": 3}
    ]
    assert [each.reason for each in refused.refs] == ["RefNotPermitted"]
    for grant, allowed in (
        (gateway_api.grant(), True),
        (gateway_api.grant(name="backend"), True),
        (gateway_api.grant(name="another"), False),
        (gateway_api.grant(from_="elsewhere"), False),
        (gateway_api.grant(kind="GRPCRoute"), False),
        (gateway_api.grant(to="Secret"), False),
    ):
        assert (converted(route, grant).refs == ()) is allowed


def test_the_reserved_namespace_of_another_mesh_leads_nowhere() -> None:
    """In keys all reserved namespaces are none: a route of one mesh must not reach another's services."""
    route = gateway_api.route("web", namespace="mesh-other", parent={"name": "edge", "namespace": "shop"})
    listener = gateway_api.listener(allowedRoutes={"namespaces": {"from": "All"}})
    db = loaded(route, gateway_api.gateway("edge", listener))
    made = routes.converted(db, route.key, "default")
    assert [problem.reason for problem in made.refs] == ["BackendNotFound"]
    assert "there is no Service mesh-other/backend in mesh default" in made.refs[0].message
    assert [each["kind"] for each in made.rules[0].rule["default"]["backendRefs"]] == ["Invalid"]
    assert routes.converted(db, route.key, "other").refs == ()

    parent = {**gateway_api.SERVICE, "namespace": "mesh-other"}
    ports = [{"port": 80, "targetPort": 80, "appProtocol": "http"}]
    service = Resource(
        kind="MeshService",
        mesh="default",
        zone="east",
        name="backend",
        core_name="backend",
        spec={"ports": ports},
    )
    of_service = gateway_api.route("inside", parent=parent)
    (found,) = parents.of(loaded(of_service, service), of_service.key)
    assert found.reason == "NoMatchingParent"


@pytest.mark.parametrize("kind", ["MeshService", "MeshMultiZoneService", "MeshExternalService"])
def test_our_own_services_can_be_backends(kind: str) -> None:
    made = converted(
        gateway_api.route("web", gateway_api.rule("/", gateway_api.backend(group="kuma.io", kind=kind)))
    )
    assert made.rules[0].rule["default"]["backendRefs"] == [{**BACKEND, "kind": kind}]


def test_a_rule_without_backends_has_one_that_does_not_exist() -> None:
    made = converted(gateway_api.route("web", {"matches": []}))
    assert made.rules[0].rule["default"] == {"filters": [], "backendRefs": [{"kind": "Invalid"}]}


@pytest.mark.parametrize(
    ("redirect", "listener", "port"),
    [
        ({"port": 9}, ("HTTP", 8080), 9),
        ({"scheme": "https"}, ("HTTP", 8080), None),
        ({"scheme": "https", "port": 443}, ("HTTP", 8080), None),
        ({}, ("HTTP", 8080), 8080),
        ({}, ("HTTP", 80), None),
        ({}, ("HTTPS", 443), None),
        ({"scheme": "http"}, ("HTTPS", 8443), None),
        ({"hostname": "b.test"}, ("HTTPS", 8443), 8443),
    ],
)
def test_a_redirect_leads_to_the_port_of_its_scheme_or_listener(
    redirect: Any, listener: Any, port: Any
) -> None:
    protocol, number = listener
    gateway = gateway_api.gateway("edge", gateway_api.listener("it", number, protocol))
    rule = {"filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]}
    db = loaded(gateway, gateway_api.route("web", rule))
    (made,) = [each for each in derived(db) if each.kind == "MeshHTTPRoute"]
    (converted_filter,) = made.spec["to"][0]["rules"][0]["default"]["filters"]
    assert converted_filter["requestRedirect"].get("port") == port


def test_a_grpc_route_matches_services_and_methods() -> None:
    method = {"service": "shop.Cart", "method": "Add"}
    rules = [{"matches": [{"method": method}], "backendRefs": [gateway_api.backend()]}, gateway_api.rule()]
    made = converted(gateway_api.route("web", *rules, kind=objects.GRPC_ROUTE))
    assert [each.rule["matches"] for each in made.rules] == [[{"grpc": method}], [{"grpc": {}}]]


@pytest.mark.parametrize(("kind", "protocol"), [(objects.TCP_ROUTE, "TCP"), (objects.TLS_ROUTE, "TLS")])
def test_routes_of_streams_become_mesh_tcp_routes(kind: str, protocol: str) -> None:
    gateway = gateway_api.gateway("edge", gateway_api.listener("it", 9000, protocol))
    db = loaded(gateway, gateway_api.route("db", {"backendRefs": [gateway_api.backend()]}, kind=kind))
    (made,) = [each for each in derived(db) if each.kind == "MeshTCPRoute"]
    assert made.spec["to"][0]["rules"] == [{"default": {"backendRefs": [BACKEND]}}]
    assert (
        made.source_path("spec.to[0].rules[0].default.backendRefs[0].name")
        == "spec.rules[0].backendRefs[0].name"
    )


@pytest.mark.parametrize(
    ("listener", "route", "reason"),
    [
        ({}, {}, ""),
        ({}, {"parent": {"name": "edge", "sectionName": "none"}}, "NoMatchingParent"),
        ({}, {"parent": {"name": "edge", "port": 1}}, "NoMatchingParent"),
        (
            {},
            {"namespace": "other", "parent": {"name": "edge", "namespace": "shop"}},
            "NotAllowedByListeners",
        ),
        (
            {"allowedRoutes": {"namespaces": {"from": "All"}}},
            {"namespace": "other", "parent": {"name": "edge", "namespace": "shop"}},
            "",
        ),
        ({"allowedRoutes": {"kinds": [{"kind": "GRPCRoute"}]}}, {}, "NotAllowedByListeners"),
        ({"hostname": "*.a.test"}, {"hostnames": ["b.test"]}, "NoMatchingListenerHostname"),
        ({"hostname": "*.a.test"}, {"hostnames": ["b.test", "x.a.test"]}, ""),
    ],
)
def test_a_route_is_attached_to_listeners_that_take_it(listener: Any, route: Any, reason: str) -> None:
    written = gateway_api.route("web", **route)
    db = loaded(gateway_api.gateway("edge", gateway_api.listener("it", **listener)), written)
    (parent,) = parents.of(db, written.key)
    assert parent.reason == reason
    assert any(each.source == written.key for each in derived(db)) is not bool(reason)


def test_a_consumers_route_is_for_callers_of_its_own_namespace() -> None:
    """Those without a namespace are in the reserved one."""
    ports = [{"port": 80, "targetPort": 80, "appProtocol": "http"}]
    place = {"mesh": "default", "zone": "east"}
    service = Resource(
        kind="MeshService", namespace="shop", name="backend", core_name="b", spec={"ports": ports}, **place
    )
    networking = {"address": "127.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}
    callers = [
        Resource(
            kind="Dataplane",
            namespace=each,
            name="web",
            core_name=each,
            spec={"networking": networking},
            **place,
        )
        for each in ("", "shop", "other")
    ]
    parent = {**gateway_api.SERVICE, "namespace": "shop"}
    for namespace, expected in (
        ("mesh-default", {""}),
        ("other", {"other"}),
        ("shop", {"", "shop", "other"}),
    ):
        route = gateway_api.route("web", parent=parent, namespace=namespace)
        db = loaded(service, route, *callers)
        (made,) = (each for each in derived(db) if each.kind == "MeshHTTPRoute")
        assert {each.namespace for each in match.selected_by(db, made.key)} == expected


def test_a_gateway_of_another_class_is_no_parent() -> None:
    written = gateway_api.route()
    db = loaded(gateway_api.gateway(gatewayClassName="another"), written)
    assert parents.of(db, written.key) == ()


def test_of_equal_routes_the_older_one_goes_first_and_then_by_name() -> None:
    written = [
        gateway_api.route("c", created="2026-01-02T00:00:00Z"),
        gateway_api.route("b", created="2026-01-01T00:00:00Z"),
        gateway_api.route("a", created="2026-01-02T00:00:00Z"),
    ]
    db = loaded(gateway_api.gateway(), *written)
    keys = [each.key for each in derived(db) if each.kind == "MeshHTTPRoute"]
    attached = core_gateways.attached(db, Group(keys))
    assert [each.entry.policy.name.split("/")[2] for each in attached] == ["b", "a", "c"]


def test_of_an_http_and_a_grpc_route_with_one_host_the_older_is_accepted() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    calls = gateway_api.route("calls", kind=objects.GRPC_ROUTE, created=old, hostnames=["*.a.test"])
    same = gateway_api.route("same", created=new, hostnames=["x.a.test"])
    other = gateway_api.route("other", created=new, hostnames=["b.test"])
    older = gateway_api.route("older", created="2025-01-01T00:00:00Z", hostnames=["b.test"])
    db = loaded(gateway_api.gateway(), calls, same, other, older)
    reasons = {each.name: parents.of(db, each.key)[0].reason for each in (calls, same, other, older)}
    assert reasons == {"calls": "", "same": "NotAllowedByListeners", "other": "", "older": ""}
    assert same.key not in {each.source for each in derived(db)}
    loading.take(db, [], [calls.key])
    assert parents.of(db, same.key)[0].reason == ""
    assert same.key in {each.source for each in derived(db)}
