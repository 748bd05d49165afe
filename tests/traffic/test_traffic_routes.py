"""What a MeshHTTPRoute says happens to real requests: matches, filters, and where requests go."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from tests import build
from tests.traffic.conftest import GREETING, SharedMesh
from tests.waiting import until

pytestmark = pytest.mark.slow

N_REQUESTS = 1_000
N_SIGMAS = 5


def route(*rules: Mapping[str, Any], to: str = "backend", name: str = "") -> Mapping[str, Any]:
    return build.http_route(name or f"route-to-{to}", *rules, to=to)


def rule(
    *matches: Mapping[str, Any], filters: Any = None, backends: Any = None, path: str = ""
) -> Mapping[str, Any]:
    conf = {"filters": filters, "backendRefs": backends}
    under = ({"path": {"type": "PathPrefix", "value": path}},) if path else ()
    default = {name: value for name, value in conf.items() if value is not None}
    return {"matches": [*matches, *under], "default": default}


def named(name: str, *matches: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule whose requests carry its name to the service."""
    headers = {"set": [{"name": "x-rule", "value": name}]}
    return rule(*matches, filters=[{"type": "RequestHeaderModifier", "requestHeaderModifier": headers}])


def exact(path: str) -> Mapping[str, Any]:
    return {"path": {"type": "Exact", "value": path}}


def prefix(path: str) -> Mapping[str, Any]:
    return {"path": {"type": "PathPrefix", "value": path}}


def expression(path: str) -> Mapping[str, Any]:
    return {"path": {"type": "RegularExpression", "value": path}}


def header(name: str, type_: str, value: str | None = None) -> Mapping[str, Any]:
    return {"name": name, "type": type_} | ({} if value is None else {"value": value})


def query(name: str, type_: str, value: str) -> Mapping[str, Any]:
    return {"name": name, "type": type_, "value": value}


MATCHES = (
    named("exact path", exact("/exact")),
    named("prefix", prefix("/foo")),
    named("longer prefix", prefix("/foo/bar")),
    named("exact before prefix", exact("/foo/bar/exact")),
    named("expression", expression("/[a-z]+/[0-9]+")),
    named("method", {**prefix("/method"), "method": "POST"}),
    named("header exact", {**prefix("/header"), "headers": [header("x-team", "Exact", "red")]}),
    named("header prefix", {**prefix("/header"), "headers": [header("x-team", "Prefix", "gre")]}),
    named(
        "header expression", {**prefix("/header"), "headers": [header("x-team", "RegularExpression", "b.+e")]}
    ),
    named("header present", {**prefix("/present"), "headers": [header("x-team", "Present")]}),
    named("header absent", {**prefix("/absent"), "headers": [header("x-team", "Absent")]}),
    named("query exact", {**prefix("/query"), "queryParams": [query("page", "Exact", "1")]}),
    named(
        "query expression",
        {**prefix("/query"), "queryParams": [query("page", "RegularExpression", "[0-9]{2}")]},
    ),
    named("either", exact("/either/this"), {**exact("/either/that"), "method": "PUT"}),
    named(
        "all",
        {
            **prefix("/all"),
            "method": "POST",
            "headers": [header("x-team", "Exact", "red"), header("x-user", "Present")],
            "queryParams": [query("page", "Exact", "1"), query("size", "Exact", "9")],
        },
    ),
    named("rank prefix", prefix("/rank")),
    named("rank method", {**prefix("/rank"), "method": "POST"}),
    named("rank header", {**prefix("/rank"), "headers": [header("x-team", "Present")]}),
    named(
        "rank two headers",
        {**prefix("/rank"), "headers": [header("x-team", "Present"), header("x-user", "Present")]},
    ),
    named("rank query", {**prefix("/rank"), "queryParams": [query("page", "Exact", "1")]}),
    named("older word", {"path": {"type": "Prefix", "value": "/older"}}),
    named("short form", {"path": {"prefix": "/short"}}),
    named("header of any case", {**prefix("/case"), "headers": [header("X-Team", "Exact", "Red")]}),
    named("empty header", {**prefix("/empty"), "headers": [header("x-team", "Exact", "")]}),
    named("long expression", expression("/long/[a-z]{1,300}/end")),
    named("header alone", {"headers": [header("x-anywhere", "Exact", "yes")]}),
)

# Path, method and headers of a request, and the rule that takes it; "" where none does.
REQUESTS = (
    ("/exact", "GET", {}, "exact path"),
    ("/exact?page=1", "GET", {}, "exact path"),
    ("/exact/", "GET", {}, ""),
    ("/exactly", "GET", {}, ""),
    ("/Exact", "GET", {}, ""),
    ("/foo", "GET", {}, "prefix"),
    ("/foo/", "GET", {}, "prefix"),
    ("/foo/x", "GET", {}, "prefix"),
    ("/foo?page=1", "GET", {}, "prefix"),
    ("/foobar", "GET", {}, ""),
    ("/foo/barn", "GET", {}, "prefix"),
    ("/foo/bar", "GET", {}, "longer prefix"),
    ("/foo/bar/x", "GET", {}, "longer prefix"),
    ("/foo/bar/exact", "GET", {}, "exact before prefix"),
    ("/abc/123", "GET", {}, "expression"),
    ("/abc/123?page=1", "GET", {}, "expression"),
    ("/abc/123/x", "GET", {}, ""),
    ("/foo/123", "GET", {}, "prefix"),
    ("/method", "POST", {}, "method"),
    ("/method", "GET", {}, ""),
    ("/method", "PUT", {}, ""),
    ("/header", "GET", {"x_team": "red"}, "header exact"),
    ("/header", "GET", {"x_team": "reddish"}, ""),
    ("/header", "GET", {"x_team": "green"}, "header prefix"),
    ("/header", "GET", {"x_team": "a green one"}, ""),
    ("/header", "GET", {"x_team": "blue"}, "header expression"),
    ("/header", "GET", {"x_team": "a blue one"}, ""),
    ("/header", "GET", {}, ""),
    ("/present", "GET", {"x_team": "any"}, "header present"),
    ("/present", "GET", {}, ""),
    ("/absent", "GET", {}, "header absent"),
    ("/absent", "GET", {"x_team": "any"}, ""),
    ("/query?page=1", "GET", {}, "query exact"),
    ("/query?size=9&page=1", "GET", {}, "query exact"),
    ("/query?page=10", "GET", {}, "query expression"),
    ("/query?page=100", "GET", {}, ""),
    ("/query?Page=1", "GET", {}, ""),
    ("/query", "GET", {}, ""),
    ("/either/this", "GET", {}, "either"),
    ("/either/that", "PUT", {}, "either"),
    ("/either/that", "GET", {}, ""),
    ("/all?page=1&size=9", "POST", {"x_team": "red", "x_user": "kim"}, "all"),
    ("/all?page=1&size=9", "GET", {"x_team": "red", "x_user": "kim"}, ""),
    ("/all?page=1&size=9", "POST", {"x_team": "red"}, ""),
    ("/all?page=1&size=9", "POST", {"x_team": "blue", "x_user": "kim"}, ""),
    ("/all?page=1", "POST", {"x_team": "red", "x_user": "kim"}, ""),
    ("/rank", "GET", {}, "rank prefix"),
    ("/rank?page=1", "GET", {}, "rank query"),
    ("/rank?page=1", "GET", {"x_team": "red"}, "rank header"),
    ("/rank", "GET", {"x_team": "red", "x_user": "kim"}, "rank two headers"),
    ("/rank?page=1", "POST", {"x_team": "red", "x_user": "kim"}, "rank method"),
    ("/older/x", "GET", {}, "older word"),
    ("/short/x", "GET", {}, "short form"),
    ("/shorter", "GET", {}, ""),
    ("/case", "GET", {"x_team": "Red"}, "header of any case"),
    ("/case", "GET", {"x_team": "red"}, ""),
    ("/empty", "GET", {"x_team": ""}, "empty header"),
    ("/empty", "GET", {"x_team": "red"}, ""),
    ("/empty", "GET", {}, ""),
    (f"/long/{'x' * 300}/end", "GET", {}, "long expression"),
    (f"/long/{'x' * 301}/end", "GET", {}, ""),
    ("/x/../foo", "GET", {}, "prefix"),
    ("/foo/../x", "GET", {}, ""),
    ("/anything", "GET", {"x_anywhere": "yes"}, "header alone"),
    ("/foo", "GET", {"x_anywhere": "yes"}, "prefix"),
    ("/anything", "GET", {}, ""),
)


def test_a_request_is_taken_by_the_most_specific_rule_that_it_fits(shared: SharedMesh):
    # Written from the least specific to the most, so that no order but the right one gives this.
    shared.apply_only(route(*MATCHES))
    taken = {
        (path, method, *headers.items()): shared.get("backend", path, method, **headers)
        .json["headers"]
        .get("x-rule", "")
        for path, method, headers, _ in REQUESTS
    }
    assert taken == {
        (path, method, *headers.items()): expected for path, method, headers, expected in REQUESTS
    }


def filtered(path: str, type_: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    field = type_[0].lower() + type_[1:] if type_ != "URLRewrite" else "urlRewrite"
    return rule(path=path, filters=[{"type": type_, field: body}])


HEADERS = {
    "set": [{"name": "x-set", "value": "ours"}, {"name": "x-new", "value": "new"}],
    "add": [{"name": "x-add", "value": "more"}, {"name": "x-percent", "value": "100% %REQ(x-set)%"}],
    "remove": ["x-remove"],
}


def test_request_headers_are_set_added_and_removed(shared: SharedMesh):
    shared.apply_only(route(filtered("/headers", "RequestHeaderModifier", HEADERS)))
    sent = {"x_set": "theirs", "x_add": "one", "x_remove": "gone", "x_stays": "here"}
    received = shared.get("backend", "/headers", **sent).json["headers"]
    assert {
        name: value
        for name, value in received.items()
        if name in _named_headers(HEADERS) or name == "x-stays"
    } == {
        "x-set": "ours",
        "x-new": "new",
        "x-add": "one,more",
        "x-percent": "100% %REQ(x-set)%",
        "x-stays": "here",
    }


def _named_headers(modifier: Mapping[str, Any]) -> set[str]:
    return {each["name"] for field in ("set", "add") for each in modifier[field]} | set(modifier["remove"])


def test_response_headers_are_set_added_and_removed(shared: SharedMesh):
    changes = {
        "set": [{"name": "content-type", "value": "text/plain"}, {"name": "x-new", "value": "new"}],
        "add": [{"name": "x-added", "value": "more"}],
        "remove": ["x-from"],
    }
    more = {"add": [{"name": "x-from", "value": "more"}]}
    shared.apply_only(
        route(
            filtered("/headers", "ResponseHeaderModifier", changes),
            filtered("/appended", "ResponseHeaderModifier", more),
        )
    )
    changed, untouched = shared.get("backend", "/headers").headers, shared.get("backend", "/").headers
    assert {name: changed.get(name) for name in _named_headers(changes)} == {
        "content-type": "text/plain",
        "x-new": "new",
        "x-added": "more",
        "x-from": None,
    }
    assert untouched["x-from"] in ("backend-v1", "backend-v2")
    assert untouched["content-type"] == "application/json"
    assert shared.get("backend", "/appended").headers["x-from"] in ("backend-v1,more", "backend-v2,more")


def test_headers_change_on_answers_of_the_proxy_itself_too(shared: SharedMesh):
    header = {"responseHeaderModifier": {"set": [{"name": "x-new", "value": "new"}]}}
    changed = {"type": "ResponseHeaderModifier", **header}
    redirect = {"type": "RequestRedirect", "requestRedirect": {"hostname": "other.test"}}
    direct = {"type": "DirectResponse", "directResponse": {"status": 204}}
    shared.apply_only(
        route(rule(path="/sent", filters=[changed, redirect]), rule(path="/told", filters=[direct, changed]))
    )
    answers = [shared.get("backend", path) for path in ("/sent", "/told")]
    assert [(each.status, each.headers.get("x-new")) for each in answers] == [(302, "new"), (204, "new")]


def test_a_copy_of_each_mirrored_request_reaches_the_other_service_too(shared: SharedMesh):
    ref = {"kind": "MeshService", "name": "other"}
    shared.apply_only(
        route(
            filtered("/mirrored", "RequestMirror", {"backendRef": ref}),
            filtered(
                "/mirrored-outside", "RequestMirror", {"backendRef": to("MeshExternalService", "outside")}
            ),
            filtered("/never-mirrored", "RequestMirror", {"backendRef": ref, "percentage": 0}),
            filtered("/mirrored-to-nobody", "RequestMirror", {"backendRef": {**ref, "name": "nobody"}}),
        )
    )
    answered = [shared.get("backend", f"/mirrored/{index}", "POST").json["name"] for index in range(5)]
    never = [shared.get("backend", "/never-mirrored").json["name"] for _ in range(5)]
    assert {*answered, *never} == {"backend-v1", "backend-v2"}
    for path in ("/mirrored-to-nobody", "/mirrored-outside"):
        assert shared.get("backend", path).json["name"].startswith("backend")
    until(lambda: shared.seen("outside", "/mirrored-outside"))
    until(lambda: all(shared.seen("other", f"/mirrored/{index}") for index in range(5)))
    copies = [shared.seen("other", f"/mirrored/{index}") for index in range(5)]
    assert [[each["method"] for each in found] for found in copies] == [["POST"]] * 5
    assert not shared.seen("other", "/never-mirrored")


def test_a_mirror_to_a_part_of_a_service_is_warned_of(shared: SharedMesh):
    """Envoy's mirrors choose no endpoints by their tags."""
    warnings = shared.apply_only(route(filtered("/mirrored", "RequestMirror", {"backendRef": subset("v2")})))
    assert [each.partition(":")[0] for each in warnings] == [
        "spec.to[0].rules[0].default.filters[0].requestMirror.backendRef has no effect"
    ]
    assert shared.get("backend", "/mirrored").status == 200


REDIRECTS = {
    "/scheme": ({"scheme": "https"}, 302, "https://shop.test/scheme/x?a=1"),
    "/hostname": ({"hostname": "other.test"}, 302, "http://other.test/hostname/x?a=1"),
    "/port": ({"port": 8443}, 302, "http://shop.test:8443/port/x?a=1"),
    "/full": (
        {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"}},
        302,
        "http://shop.test/new?a=1",
    ),
    "/prefix": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}},
        302,
        "http://shop.test/new/x?a=1",
    ),
    "/top": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        302,
        "http://shop.test/x?a=1",
    ),
    "/everything": (
        {
            "scheme": "https",
            "hostname": "other.test",
            "port": 8443,
            "path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"},
            "statusCode": 308,
        },
        308,
        "https://other.test:8443/new?a=1",
    ),
    **{f"/status-{code}": ({"hostname": "other.test", "statusCode": code}, code, f"http://other.test/status-{code}/x?a=1")
       for code in (301, 302, 303, 307, 308)},
}  # fmt: skip


def test_a_redirect_sends_the_client_elsewhere(shared: SharedMesh):
    shared.apply_only(
        route(*(filtered(path, "RequestRedirect", conf) for path, (conf, *_) in REDIRECTS.items()))
    )
    answers = {path: shared.get("backend", f"{path}/x?a=1", host="shop.test") for path in REDIRECTS}
    sent = {path: (answer.status, answer.headers.get("location")) for path, answer in answers.items()}
    assert sent == {path: (status, location) for path, (_, status, location) in REDIRECTS.items()}


REWRITES = {
    "/hostname": ({"hostname": "other.test"}, "/hostname/x?a=1", "other.test", "/hostname/x?a=1"),
    "/full": (
        {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"}},
        "/full/x?a=1",
        "shop.test",
        "/new?a=1",
    ),
    "/prefix": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}},
        "/prefix/x?a=1",
        "shop.test",
        "/new/x?a=1",
    ),
    "/alone": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}},
        "/alone?a=1",
        "shop.test",
        "/new?a=1",
    ),
    "/top": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        "/top/x?a=1",
        "shop.test",
        "/x?a=1",
    ),
    "/top-alone": (
        {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        "/top-alone",
        "shop.test",
        "/",
    ),
    "/both": (
        {"hostname": "other.test", "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/a/b"}},
        "/both/x",
        "other.test",
        "/a/b/x",
    ),
}


def test_a_rewrite_changes_the_host_and_path_that_the_service_sees(shared: SharedMesh):
    full = {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"}}
    by_expression = rule(expression("/by/[a-z]+"), filters=[{"type": "URLRewrite", "urlRewrite": full}])
    rules = (filtered(path, "URLRewrite", conf) for path, (conf, *_) in REWRITES.items())
    shared.apply_only(route(by_expression, *rules))
    received = {}
    for path, (_, asked, *_) in REWRITES.items():
        answer = shared.get("backend", asked, host="shop.test").json
        received[path] = answer["headers"]["host"], answer["path"]
    assert received == {path: (host, expected) for path, (_, _, host, expected) in REWRITES.items()}
    assert shared.get("backend", "/by/expression?a=1").json["path"] == "/new?a=1"


def test_a_direct_response_is_the_proxys_own(shared: SharedMesh):
    (shared.directory / "page.txt").write_text("said by a file")
    raw = b"\x00said \xff by bytes"
    bodies = {
        "/string": {"inlineString": "said by a string"},
        "/bytes": {"inlineBytes": base64.b64encode(raw).decode()},
        "/file": {"filename": str(shared.directory / "page.txt")},
        "/environment": {"environmentVariable": "KOGUMA_TEST_GREETING"},
        "/nothing": None,
    }
    asked = {path: {"status": 418} | ({"body": body} if body else {}) for path, body in bodies.items()}
    shared.apply_only(route(*(filtered(path, "DirectResponse", conf) for path, conf in asked.items())))
    answers = {path: shared.get("backend", path) for path in bodies}
    assert {path: (answer.status, answer.body) for path, answer in answers.items()} == {
        "/string": (418, b"said by a string"),
        "/bytes": (418, raw),
        "/file": (418, b"said by a file"),
        "/environment": (418, GREETING.encode()),
        "/nothing": (418, b""),
    }
    assert not any(shared.seen(service, path) for service in shared.services for path in bodies)


def to(kind: str, name: str, weight: int | None = None, **more: Any) -> Mapping[str, Any]:
    return {"kind": kind, "name": name, **({} if weight is None else {"weight": weight}), **more}


def subset(version: str, weight: int | None = None, **tags: str) -> Mapping[str, Any]:
    return to("MeshServiceSubset", "backend", weight, tags={"version": version, **tags})


BACKEND, OTHER = to("MeshService", "backend", 70), to("MeshService", "other", 30)

# The backends of a rule, and the share of the requests that each service answers; "500" is nobody.
SPLITS = {
    "/services": ([BACKEND, OTHER], {"backend-v1": 0.35, "backend-v2": 0.35, "other": 0.30}),
    "/subsets": ([subset("v1", 90), subset("v2", 10)], {"backend-v1": 0.9, "backend-v2": 0.1}),
    "/outside": (
        [to("MeshExternalService", "outside", 1), subset("v1", 3)],
        {"outside": 0.25, "backend-v1": 0.75},
    ),
    "/everywhere": (
        [to("MeshMultiZoneService", "everywhere", 2, port=80), subset("v2", 3)],
        {"other": 0.4, "backend-v2": 0.6},
    ),
    "/nowhere": ([to("MeshService", "nobody", 1), subset("v1", 4)], {"500": 0.2, "backend-v1": 0.8}),
    "/no-weights": ([subset("v1"), subset("v2")], {"backend-v1": 0.5, "backend-v2": 0.5}),
}


def test_weights_are_the_shares_of_requests_that_backends_get(shared: SharedMesh):
    shared.apply_only(route(*(rule(path=path, backends=backends) for path, (backends, _) in SPLITS.items())))
    for path, (_, shares) in SPLITS.items():
        counts = shared.many("backend", path, N_REQUESTS)
        assert set(counts) == set(shares), path
        for name, share in shares.items():
            bound = N_SIGMAS * (N_REQUESTS * share * (1 - share)) ** 0.5
            assert abs(counts[name] - N_REQUESTS * share) <= bound, (path, name, counts)


# The backends of a rule, and who answers; several requests, each of which must be answered so.
CERTAIN = {
    "/weight-0": ([subset("v1", 0), subset("v2", 1)], {"backend-v2"}),
    "/all-weights-0": ([subset("v1", 0), subset("v2", 0)], {"500"}),
    "/nobody": ([to("MeshService", "nobody")], {"500"}),
    "/nobody-outside": ([to("MeshExternalService", "nobody")], {"500"}),
    "/wrong-port": ([to("MeshService", "backend", port=81)], {"500"}),
    "/empty-subset": ([subset("v3")], {"503"}),
    "/two-tags": ([subset("v1", rack="rack-1")], {"backend-v1"}),
    "/two-tags-of-two": ([subset("v1", rack="rack-2")], {"503"}),
    "/one-rack": ([to("MeshServiceSubset", "backend", tags={"rack": "rack-2"})], {"backend-v2"}),
    "/one-zone": (
        [to("MeshServiceSubset", "backend", tags={"kuma.io/zone": "default"})],
        {"backend-v1", "backend-v2"},
    ),
    "/omitted": (None, {"backend-v1", "backend-v2"}),
    "/emptied": ([], {"backend-v1", "backend-v2"}),
    "/outside": ([to("MeshExternalService", "outside")], {"outside"}),
    "/other": ([to("MeshService", "other", port=80)], {"other"}),
}


def test_backends_that_lead_somewhere_get_all_requests_and_others_fail(shared: SharedMesh):
    shared.apply_only(route(*(rule(path=path, backends=backends) for path, (backends, _) in CERTAIN.items())))
    answered = {path: set(shared.many("backend", path, 20)) for path in CERTAIN}
    assert answered == {path: expected for path, (_, expected) in CERTAIN.items()}


def test_rules_with_equal_matches_are_one_rule_of_which_each_policy_sets_its_part(shared: SharedMesh):
    owner = route(
        rule(path="/v1", backends=[subset("v1")]), rule(path="/v2", backends=[subset("v2")]), name="owner"
    )
    filters = named("consumer", prefix("/v2"))
    consumer = route(filters, rule(path="/v1", backends=[to("MeshService", "other")]), name="consumer")
    top = {"targetRef": {"kind": "Dataplane", "labels": {"kuma.io/workload": "web"}}}
    of_nobody = route(rule(path="/v1", backends=[to("MeshService", "nobody")]), name="of-nobody")
    elsewhere = {"targetRef": {"kind": "Dataplane", "name": "node-2"}}
    shared.apply_only(
        owner,
        {**consumer, "spec": {**top, **consumer["spec"]}},
        {**of_nobody, "spec": {**elsewhere, **of_nobody["spec"]}},
    )
    second = shared.get("backend", "/v2").json
    assert shared.get("backend", "/v1").json["name"] == "other"
    assert (second["name"], second["headers"].get("x-rule")) == ("backend-v2", "consumer")
    emptied = route(rule(path="/v1", backends=[]), name="consumer")
    shared.apply_only(owner, {**emptied, "spec": {**top, **emptied["spec"]}})
    assert set(shared.many("backend", "/v1", 10)) == {"backend-v1", "backend-v2"}
    assert set(shared.many("backend", "/v2", 10)) == {"backend-v2"}


def test_a_service_of_the_mesh_keeps_the_requests_host_beside_one_of_the_outside(shared: SharedMesh):
    shared.apply_only(
        route(rule(path="/", backends=[to("MeshExternalService", "outside"), to("MeshService", "other")]))
    )
    hosts = {}
    for _ in range(40):
        answer = shared.get("backend", host="shop.test").json
        hosts.setdefault(answer["name"], set()).add(answer["headers"]["host"])
    assert hosts.keys() == {"other", "outside"}
    assert hosts["other"] == {"shop.test"}


@pytest.mark.parametrize("name", ["outside", "everywhere"])
def test_a_route_may_be_about_calls_to_the_outside_and_to_several_zones(shared: SharedMesh, name: str):
    kind = {"outside": "MeshExternalService", "everywhere": "MeshMultiZoneService"}[name]
    spec = {
        "to": [
            {
                "targetRef": {"kind": kind, "name": name},
                "rules": [rule(path="/elsewhere", backends=[subset("v2")]), named("kept", prefix("/kept"))],
            }
        ]
    }
    shared.apply_only({"type": "MeshHTTPRoute", "name": f"route-to-{name}", "spec": spec})
    own = {"outside": "outside", "everywhere": "other"}[name]
    kept = shared.get(name, "/kept").json
    assert shared.get(name, "/elsewhere").json["name"] == "backend-v2"
    assert (kept["name"], kept["headers"]["x-rule"]) == (own, "kept")
    assert shared.get(name, "/").json["name"] == own
