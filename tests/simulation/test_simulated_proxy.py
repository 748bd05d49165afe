"""One Envoy, simulated: what its listener, filters, routes and clusters do with a request."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from koguma.envoy import by_caller, rbac, snapshot
from koguma.envoy.callers import Caller, UriSan
from koguma.envoy.rbac import Decision
from koguma.envoy.simulation import filter_chains, forwarding, request_paths, routing, text_matching
from koguma.envoy.simulation.ending import Side
from koguma.envoy.simulation.proxy import SimulatedProxy
from koguma.envoy.simulation.traffic import ClientConnection, PeerIdentity, SimulatedRequest, Undecidable

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
TCP = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
ROUTER = {"name": "router", "typed_config": {"@type": "x/envoy.extensions.filters.http.router.v3.Router"}}
LUA = {"name": "lua", "typed_config": {"@type": "x/envoy.extensions.filters.http.lua.v3.Lua"}}
INSPECTOR = {"typed_config": {"@type": "x/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"}}
PLAIN = ClientConnection("127.0.0.1", 80)


def asked(path: str = "/", method: str = "GET", host: str = "it", **headers: str) -> SimulatedRequest:
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return SimulatedRequest(method, path, host, pairs)


def proxy(*filters: Any, routes: Any = (), clusters: Any = (), tcp: Any = None, **hcm: Any) -> SimulatedProxy:
    """An Envoy with one listener, `in`."""
    host = {"name": "all", "domains": ["*"], "routes": list(routes)}
    manager = {"@type": HCM, "stat_prefix": "in", "route_config": {"virtual_hosts": [host]}, **hcm}
    manager["http_filters"] = [*filters, ROUTER]
    chain = [{"name": "tcp", "typed_config": {"@type": TCP, "stat_prefix": "in", **tcp}}] if tcp else None
    found = {
        (snapshot.LISTENER, "in"): {
            "filter_chains": [{"filters": chain or [{"name": "hcm", "typed_config": manager}]}]
        },
        **{(snapshot.CLUSTER, each["name"]): each for each in clusters},
    }
    return SimulatedProxy(lambda type_, name: found.get((type_, name)))


def cluster(name: str, *ports: int, **more: Any) -> dict[str, Any]:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": "10.0.0.1", "port_value": port}}}}
        for port in ports
    ]
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"endpoints": [{"lb_endpoints": endpoints}]},
        **more,
    }


def to(name: str, **match: Any) -> dict[str, Any]:
    return {"name": f"to-{name}", "match": match or {"prefix": "/"}, "route": {"cluster": name}}


@pytest.mark.parametrize(
    ("matcher", "text", "is_match"),
    [
        ({"exact": "a"}, "a", True),
        ({"exact": "a"}, "A", False),
        ({"exact": "a", "ignore_case": True}, "A", True),
        ({"prefix": "ab"}, "abc", True),
        ({"suffix": "bc"}, "abc", True),
        ({"contains": "b"}, "abc", True),
        ({"safe_regex": {"regex": "a.c"}}, "abc", True),
        ({"safe_regex": {"regex": "b"}}, "abc", False),
    ],
)
def test_texts(matcher, text, is_match):
    assert text_matching.is_text(matcher, text) is is_match


@pytest.mark.parametrize(
    ("matcher", "headers", "is_match"),
    [
        ({"name": "X-A", "string_match": {"exact": "1"}}, {"x_a": "1"}, True),
        ({"name": "x-a", "string_match": {"exact": "1"}}, {}, False),
        ({"name": "x-a", "string_match": {"exact": "1"}, "invert_match": True}, {}, False),
        ({"name": "x-a", "string_match": {"exact": "1"}, "invert_match": True}, {"x_a": "2"}, True),
        ({"name": "x-a", "present_match": True}, {"x_a": ""}, True),
        ({"name": "x-a", "present_match": False}, {}, True),
        ({"name": "x-a", "present_match": True, "invert_match": True}, {}, True),
        ({"name": ":method", "string_match": {"exact": "GET"}}, {}, True),
    ],
)
def test_headers(matcher, headers, is_match):
    assert text_matching.has_header(matcher, asked(**headers)) is is_match


@pytest.mark.parametrize(
    ("match", "request_", "is_match"),
    [
        ({"prefix": "/a"}, asked("/ab"), True),
        ({"path": "/a"}, asked("/a?q=1"), True),
        ({"path": "/a"}, asked("/a/"), False),
        ({"path": "/A", "case_sensitive": False}, asked("/a"), True),
        ({"path_separated_prefix": "/a"}, asked("/a/b"), True),
        ({"path_separated_prefix": "/a"}, asked("/ab"), False),
        ({"safe_regex": {"regex": "/a.*"}}, asked("/ab"), True),
        (
            {"prefix": "/", "query_parameters": [{"name": "q", "string_match": {"exact": "1"}}]},
            asked("/?q=1"),
            True,
        ),
        ({"prefix": "/", "query_parameters": [{"name": "q", "present_match": True}]}, asked("/?p=1"), False),
        ({"prefix": "/", "grpc": {}}, asked(content_type="application/grpc"), True),
        ({"prefix": "/", "grpc": {}}, asked(), False),
        ({"connect_matcher": {}}, asked(method="CONNECT"), True),
        ({"prefix": "/"}, asked(method="CONNECT"), False),
    ],
)
def test_routes_match(match, request_, is_match):
    config = {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [{"match": match}]}]}
    (choice,) = routing.choices(config, request_, {}, has_tls=False)
    assert (choice.route is not None) is is_match


def test_the_host_chooses_exact_before_suffix_before_prefix_before_all():
    domains = ["*", "a.*", "*.b.c", "*.c", "x.c"]
    config = {"virtual_hosts": [{"name": each, "domains": [each]} for each in domains]}
    hosts = {"X.C": "x.c", "y.c": "*.c", "y.b.c": "*.b.c", "a.d": "a.*", "z": "*"}
    assert {host: routing.virtual_host(config, host)["name"] for host in hosts} == hosts


def test_a_fraction_takes_its_share_and_the_rest_goes_on():
    some = {
        "match": {"prefix": "/", "runtime_fraction": {"default_value": {"numerator": 25}}},
        "name": "some",
    }
    config = {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [some, to("rest")]}]}
    chosen = routing.choices(config, asked(), {}, has_tls=False)
    assert [(each.share, each.route["name"]) for each in chosen] == [
        (Fraction(1, 4), "some"),
        (Fraction(3, 4), "to-rest"),
    ]


def test_a_match_that_is_not_known_is_not_guessed():
    with pytest.raises(Undecidable, match="dynamic_metadata"):
        routing.choices(
            {
                "virtual_hosts": [
                    {"domains": ["*"], "routes": [{"match": {"prefix": "/", "dynamic_metadata": []}}]}
                ]
            },
            asked(),
            {},
            has_tls=False,
        )


@pytest.mark.parametrize(
    ("options", "path", "expected"),
    [
        ({"normalize_path": True}, "/a/../b/./c", "/b/c"),
        ({"normalize_path": True}, "/a/%2E%2e/b?x=/../y", "/b?x=/../y"),
        ({"normalize_path": True}, "/a/..", "/"),
        ({"normalize_path": True, "merge_slashes": True}, "//a///b", "/a/b"),
        ({}, "/a/../b", "/a/../b"),
        ({"normalize_path": True}, "/%61dmin/%7e%2f%zz", "/admin/~%2f%zz"),
        ({"normalize_path": True}, "/a/..;x=1/b;y", "/b;y"),
        ({"normalize_path": True}, '/a"<b>|\\c', "/a%22%3Cb%3E%7C/c"),
        ({}, "/%61", "/%61"),
    ],
)
def test_paths_are_normalized(options, path, expected):
    normal = request_paths.normalized(options, asked(path))
    assert isinstance(normal, SimulatedRequest)
    assert normal.path == expected


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (asked("/a#b"), "fragment"),
        (asked("/a/%00"), "zero byte"),
        (asked("/é"), "must be encoded"),
        (asked(method="get"), 'no method "get"'),
    ],
)
def test_requests_that_envoy_does_not_take(request_, text):
    problem = request_paths.normalized({"normalize_path": True}, request_)
    assert isinstance(problem, request_paths.PathProblem)
    assert (problem.status, text in problem.text) == (400, True)


def test_weights_split_and_endpoints_share():
    weighted = {"clusters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 3}]}
    route = {"name": "split", "match": {"prefix": "/"}, "route": {"weighted_clusters": weighted}}
    envoy = proxy(routes=[route], clusters=[cluster("a", 1), cluster("b", 2, 3)])
    endings = envoy.arrive("in", PLAIN, asked())
    found = [(each.cluster, each.connection.port, each.share) for each in endings if each.connection]
    assert found == [("a", 1, Fraction(1, 4)), ("b", 2, Fraction(3, 8)), ("b", 3, Fraction(3, 8))]


@pytest.mark.parametrize(
    ("envoy", "kind", "status"),
    [
        (proxy(), "no route", 404),
        (proxy(routes=[to("a")]), "no cluster", 503),
        (proxy(routes=[to("a")], clusters=[cluster("a")]), "no endpoints", 503),
        (proxy(tcp={"cluster": "a"}), "no cluster", 0),
        (proxy(routes=[{"match": {"prefix": "/"}, "direct_response": {"status": 418}}]), "answered", 418),
        (proxy(LUA, routes=[to("a")], clusters=[cluster("a", 1)]), "undecided", 0),
        (proxy({**LUA, "disabled": True}, routes=[to("a")], clusters=[cluster("a", 1)]), "forwarded", 0),
    ],
)
def test_endings(envoy, kind, status):
    (ending,) = envoy.arrive("in", PLAIN, asked())
    assert (ending.kind, ending.status) == (kind, status)


def test_a_listener_that_is_not_there():
    assert proxy().arrive("other", PLAIN, asked())[0].kind == "no listener"


def test_subsets_have_no_fallback():
    labelled = cluster(
        "a", 1, 2, lb_subset_config={"subset_selectors": [{"keys": ["v"], "fallback_policy": "NO_FALLBACK"}]}
    )
    endpoints = labelled["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for number, endpoint in enumerate(endpoints, start=1):
        endpoint["metadata"] = {"filter_metadata": {"envoy.lb": {"v": str(number)}}}

    def ports(version: str) -> list[int]:
        route = to("a")
        route["route"]["metadata_match"] = {"filter_metadata": {"envoy.lb": {"v": version}}}
        endings = proxy(routes=[route], clusters=[labelled]).arrive("in", PLAIN, asked())
        return [each.connection.port for each in endings if each.connection]

    assert ports("2") == [2]
    assert ports("3") == []


def test_the_first_priority_with_endpoints_is_used():
    near, far = (
        cluster("a", 1)["load_assignment"]["endpoints"][0],
        cluster("a", 2)["load_assignment"]["endpoints"][0],
    )
    near["lb_endpoints"][0]["health_status"] = "UNHEALTHY"
    both = {"name": "a", "type": "STATIC", "load_assignment": {"endpoints": [near, {**far, "priority": 1}]}}
    (ending,) = proxy(routes=[to("a")], clusters=[both]).arrive("in", PLAIN, asked())
    assert ending.connection is not None
    assert ending.connection.port == 2


def test_rbac_names_who_decides():
    web = Caller((UriSan("spiffe://m/web"),))
    permission = {"name": "rbac", "typed_config": rbac.http([Decision("Allow", "web-may", (web,))])}
    envoy = proxy(permission, routes=[to("a")], clusters=[cluster("a", 1)])

    def decided(*uris: str) -> tuple[str, str, tuple[str, ...]]:
        chain = envoy.resources(snapshot.LISTENER, "in")["filter_chains"][0]
        chain["transport_socket"] = {"typed_config": {"common_tls_context": {}}}
        caller = ClientConnection(is_tls=True, identity=PeerIdentity(uris))
        (ending,) = envoy.arrive("in", caller, asked())
        return ending.kind, ending.by, ending.side.permits

    assert decided("spiffe://m/web") == ("forwarded", "a", ("web-may",))
    assert decided("spiffe://m/job") == ("denied", rbac.DEFAULT, ())


@pytest.mark.parametrize(
    ("share", "kinds"), [(100, ["aborted"]), (30, ["aborted", "forwarded"]), (0, ["forwarded"])]
)
def test_faults_take_their_share(share, kinds):
    fault = {
        "name": "p",
        "typed_config": {
            "@type": "x/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 507, "percentage": {"numerator": share}},
        },
    }
    route = {**to("a"), "typed_per_filter_config": {"fault": by_caller.per_route([(Caller(), fault)])}}
    envoy = proxy(by_caller.disabled_filter("fault"), routes=[route], clusters=[cluster("a", 1)])
    endings = envoy.arrive("in", PLAIN, asked())
    assert [each.kind for each in endings] == kinds
    assert sum(each.share for each in endings) == 1


@pytest.mark.parametrize(
    ("connection", "name"),
    [
        (ClientConnection(), "plain"),
        (ClientConnection(is_tls=True), "other"),
        (ClientConnection(is_tls=True, protocols=("kuma",)), "mesh"),
        (ClientConnection(is_tls=True, server_name="a.b"), "exact"),
        (ClientConnection(is_tls=True, server_name="x.b"), "wildcard"),
    ],
)
def test_the_closest_filter_chain_is_chosen(connection, name):
    matches = {
        "plain": {"transport_protocol": "raw_buffer"},
        "other": {"transport_protocol": "tls"},
        "mesh": {"transport_protocol": "tls", "application_protocols": ["kuma"]},
        "exact": {"transport_protocol": "tls", "server_names": ["a.b"]},
        "wildcard": {"transport_protocol": "tls", "server_names": ["*.b"]},
    }
    chains = [{"name": each, "filter_chain_match": match} for each, match in matches.items()]
    listener = {"filter_chains": chains, "listener_filters": [INSPECTOR]}
    assert filter_chains.chosen(listener, connection)["name"] == name


def test_tls_fails_with_a_reason():
    sans = {"match_typed_subject_alt_names": [{"san_type": "URI", "matcher": {"prefix": "spiffe://m/"}}]}
    secret = {"name": "mesh_ca:secret:m"}
    validation = {"default_validation_context": sans, "validation_context_sds_secret_config": secret}
    context = {
        "require_client_certificate": True,
        "common_tls_context": {"combined_validation_context": validation},
    }
    chain = {"transport_socket": {"typed_config": context}}
    server = PeerIdentity(("spiffe://m/backend",), "mesh_ca:secret:m")

    def problem(**connection: Any) -> str:
        return filter_chains.tls_problem(chain, ClientConnection(**connection), server)

    web = PeerIdentity(("spiffe://m/web",), "mesh_ca:secret:m")
    assert problem(is_tls=True, identity=web, expected=("spiffe://m/backend",)) == ""
    assert "plain text" in problem()
    assert "shows no certificate" in problem(is_tls=True)
    assert "another CA" in problem(
        is_tls=True, identity=PeerIdentity(("spiffe://m/web",), "mesh_ca:secret:n")
    )
    assert "spiffe://n/web" in problem(is_tls=True, identity=PeerIdentity(("spiffe://n/web",), ""))
    assert "expects spiffe://m/other" in problem(is_tls=True, identity=web, expected=("spiffe://m/other",))


def test_a_redirect_keeps_what_it_does_not_change():
    route = {"match": {"prefix": "/a/"}, "redirect": {"prefix_rewrite": "/b/", "response_code": "FOUND"}}
    assert forwarding.redirect(route, asked("/a/x?q", host="h:80")) == (302, "http://h:80/b/x?q")


@pytest.mark.parametrize(
    ("action", "scheme", "host", "location"),
    [
        ({"host_redirect": "other"}, "https", "h", "https://other/"),
        ({"scheme_redirect": "http"}, "https", "h:443", "http://h/"),
        ({"scheme_redirect": "http"}, "http", "h:443", "http://h:443/"),
        ({"https_redirect": True}, "http", "[::1]:80", "https://[::1]/"),
        ({"port_redirect": 8443}, "http", "[::1]", "http://[::1]:8443/"),
    ],
)
def test_the_scheme_of_a_redirect(action, scheme, host, location):
    request = msgspec.structs.replace(asked(host=host), scheme=scheme)
    found = forwarding.redirect({"match": {"prefix": "/"}, "redirect": action}, request)
    assert found == (301, location)


def test_of_several_values_of_a_header_one_is_enough():
    request = SimulatedRequest(headers=(("x-a", "1"), ("x-a", "2")))
    matching = [
        value
        for value in ("1", "2", "1,2")
        if text_matching.has_header({"name": "x-a", "string_match": {"exact": value}}, request)
    ]
    assert matching == ["1", "2"]


def test_headers_that_routes_set():
    change = {"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    empty = {"request_headers_to_add": [{"header": {"key": "x-a"}, **change}]}
    answer = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 418},
        "response_headers_to_add": [{"header": {"key": "x-r", "value": "1"}}],
    }
    assert forwarding.sent({}, to("a"), [empty], asked(x_a="1")).header("x-a") == "1"
    (ending,) = proxy(routes=[answer]).arrive("in", PLAIN, asked())
    assert ending.side.response_headers == (("x-r", "1"),)


def test_a_response_passes_proxies_the_other_way_round():
    caller, service = Side(response_headers=(("-x-r", ""),)), Side(response_headers=(("x-r", "1"),))
    assert caller.joined(service).response_headers == (("x-r", "1"), ("-x-r", ""))
