"""The rules of Envoy's messages hold here as they hold there: the real Envoy is asked the same questions."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plain_data import PREFIX, SCHEMA

from koguma.envoy import schema, validate_rules
from koguma.envoy.constraints import Constraints
from koguma.envoy.encode import Encoder, Unencodable

ENCODER = Encoder(SCHEMA)
HCM = f"{PREFIX}envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
TCP_PROXY = f"{PREFIX}envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
ROUTER = {"name": "r", "typed_config": {"@type": f"{PREFIX}envoy.extensions.filters.http.router.v3.Router"}}
FAULT = f"{PREFIX}envoy.extensions.filters.http.fault.v3.HTTPFault"
UPSTREAM = f"{PREFIX}envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
ADDRESS = {"socket_address": {"address": "127.0.0.1", "port_value": 10_000}}


def hcm(**fields: Any) -> dict[str, Any]:
    config = {"@type": HCM, "stat_prefix": "s", "route_config": {"name": "r"}, "http_filters": [ROUTER]}
    return {"name": "h", "typed_config": {**config, **fields}}


def chains(*filters: Any, **fields: Any) -> dict[str, Any]:
    return {"filter_chains": [{"filters": list(filters), **fields}]}


def tcp(**fields: Any) -> dict[str, Any]:
    return {"name": "t", "typed_config": {"@type": TCP_PROXY, "stat_prefix": "s", "cluster": "c", **fields}}


def endpoint(**fields: Any) -> dict[str, Any]:
    return {"endpoints": [{"lb_endpoints": [{"endpoint": {"address": ADDRESS}, **fields}]}]}


def route(match: Any = None, action: Any = None, **fields: Any) -> dict[str, Any]:
    """One route in a virtual host; fields are the route's own."""
    made = {"match": match or {"prefix": "/"}, **(action or {"route": {"cluster": "c"}}), **fields}
    return {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [made]}]}


def tls(**fields: Any) -> dict[str, Any]:
    return {"transport_socket": {"name": "tls", "typed_config": {"@type": UPSTREAM, **fields}}}


def http_options(**fields: Any) -> dict[str, Any]:
    explicit = {"explicit_http_config": {"http2_protocol_options": {}}}
    options = {"@type": PREFIX + HTTP_OPTIONS, **explicit, **fields}
    return {"typed_extension_protocol_options": {HTTP_OPTIONS: options}}


def health_check(**fields: Any) -> dict[str, Any]:
    thresholds = {"unhealthy_threshold": 1, "healthy_threshold": 1}
    made = {"timeout": "1s", "interval": "1s", **thresholds, "tcp_health_check": {}, **fields}
    return {"health_checks": [{name: value for name, value in made.items() if value is not None}]}


GOOD: dict[str, dict[str, Any]] = {
    "cluster": {"name": "c", "type": "STATIC", "connect_timeout": "5s"},
    "endpoints": {"cluster_name": "c", **endpoint()},
    "listener": {"name": "l", "address": ADDRESS, **chains(tcp())},
    "routes": {"name": "r", **route()},
    "secret": {"name": "s", "generic_secret": {"secret": {"inline_string": "x"}}},
}
ROUTE = "virtual_hosts[0].routes[0]"
CONFIG = "filter_chains[0].filters[0].typed_config"
OPTIONS = f'typed_extension_protocol_options["{HTTP_OPTIONS}"]'
CONTEXT = "transport_socket.typed_config"

# Resource, what is put into a good one, where a rule is broken, which rule.
BROKEN: list[tuple[str, dict[str, Any], str, str]] = [
    ("cluster", {"name": ""}, "name", "min_len"),
    ("cluster", {"connect_timeout": "0s"}, "connect_timeout", "gt"),
    ("cluster", {"connect_timeout": "-5s"}, "connect_timeout", "positive"),
    ("cluster", {"dns_jitter": "-1s"}, "dns_jitter", "positive"),
    ("cluster", {"dns_jitter": "9223372036s"}, "dns_jitter", "out_of_range"),
    ("cluster", {"dns_refresh_rate": "0.0005s"}, "dns_refresh_rate", "gt"),
    ("cluster", {"lb_policy": 77}, "lb_policy", "defined_only"),
    ("cluster", {"dns_lookup_family": 9}, "dns_lookup_family", "defined_only"),
    (
        "cluster",
        {"common_lb_config": {"healthy_panic_threshold": {"value": 101}}},
        "common_lb_config.healthy_panic_threshold.value",
        "range",
    ),
    (
        "cluster",
        {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 8388609}},
        "ring_hash_lb_config.minimum_ring_size",
        "lte",
    ),
    (
        "cluster",
        {"lb_policy": "LEAST_REQUEST", "least_request_lb_config": {"choice_count": 1}},
        "least_request_lb_config.choice_count",
        "gte",
    ),
    (
        "cluster",
        {"lb_subset_config": {"fallback_policy": 9}},
        "lb_subset_config.fallback_policy",
        "defined_only",
    ),
    ("cluster", health_check(timeout=None), "health_checks[0].timeout", "required"),
    (
        "cluster",
        {"outlier_detection": {"max_ejection_percent": 101}},
        "outlier_detection.max_ejection_percent",
        "lte",
    ),
    ("cluster", {"outlier_detection": {"interval": "0s"}}, "outlier_detection.interval", "gt"),
    (
        "cluster",
        {"preconnect_policy": {"per_upstream_preconnect_ratio": 0.5}},
        "preconnect_policy.per_upstream_preconnect_ratio",
        "range",
    ),
    ("cluster", {"transport_socket": {}}, "transport_socket.name", "min_len"),
    ("cluster", {"metadata": {"filter_metadata": {"": {}}}}, 'metadata.filter_metadata[""]', "min_len"),
    (
        "cluster",
        {"upstream_connection_options": {"happy_eyeballs_config": {"first_address_family_count": 0}}},
        "upstream_connection_options.happy_eyeballs_config.first_address_family_count",
        "gte",
    ),
    (
        "cluster",
        tls(common_tls_context={"tls_certificate_sds_secret_configs": [{"name": ""}]}),
        f"{CONTEXT}.common_tls_context.tls_certificate_sds_secret_configs[0].name",
        "min_len",
    ),
    (
        "cluster",
        tls(
            common_tls_context={
                "validation_context": {"match_typed_subject_alt_names": [{"matcher": {"exact": "a"}}]}
            }
        ),
        f"{CONTEXT}.common_tls_context.validation_context.match_typed_subject_alt_names[0].san_type",
        "not_in",
    ),
    ("cluster", tls(sni="x" * 256), f"{CONTEXT}.sni", "max_bytes"),
    (
        "cluster",
        http_options(explicit_http_config={}),
        f"{OPTIONS}.explicit_http_config.protocol_config",
        "required",
    ),
    (
        "cluster",
        http_options(explicit_http_config={"http2_protocol_options": {"max_concurrent_streams": 0}}),
        f"{OPTIONS}.explicit_http_config.http2_protocol_options.max_concurrent_streams",
        "range",
    ),
    (
        "cluster",
        http_options(upstream_http_protocol_options={"auto_sni": True, "override_auto_sni_header": "a b"}),
        f"{OPTIONS}.upstream_http_protocol_options.override_auto_sni_header",
        "header",
    ),
    (
        "cluster",
        health_check(tcp_health_check=None, http_health_check={"path": "/\x01"}),
        "health_checks[0].http_health_check.path",
        "header",
    ),
    (
        "cluster",
        health_check(tcp_health_check=None, http_health_check={"path": "/", "method": "CONNECT"}),
        "health_checks[0].http_health_check.method",
        "not_in",
    ),
    ("endpoints", {"cluster_name": ""}, "cluster_name", "min_len"),
    ("endpoints", {"endpoints": [{"priority": 129}]}, "endpoints[0].priority", "lte"),
    (
        "endpoints",
        endpoint(load_balancing_weight=0),
        "endpoints[0].lb_endpoints[0].load_balancing_weight",
        "gte",
    ),
    (
        "endpoints",
        endpoint(endpoint={"address": {"socket_address": {"address": "", "port_value": 1}}}),
        "endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address",
        "min_len",
    ),
    (
        "endpoints",
        endpoint(endpoint={"address": {"socket_address": {"address": "1.1.1.1", "port_value": 70_000}}}),
        "endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_value",
        "lte",
    ),
    (
        "endpoints",
        endpoint(endpoint={"address": {"socket_address": {"address": "1.1.1.1"}}}),
        "endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_specifier",
        "required",
    ),
    (
        "endpoints",
        {"policy": {"overprovisioning_factor": 0}},
        "policy.overprovisioning_factor",
        "gt",
    ),
    ("endpoints", {"policy": {"drop_overloads": [{}]}}, "policy.drop_overloads[0].category", "min_len"),
    ("listener", {"listener_filters": [{"name": ""}]}, "listener_filters[0].name", "min_len"),
    ("listener", {"address": {}}, "address.address", "required"),
    ("listener", {"address": {"pipe": {"path": "a", "mode": 512}}}, "address.pipe.mode", "lte"),
    (
        "listener",
        {"max_connections_to_accept_per_socket_event": 0},
        "max_connections_to_accept_per_socket_event",
        "gt",
    ),
    ("listener", chains({"name": ""}), "filter_chains[0].filters[0].name", "min_len"),
    (
        "listener",
        chains(tcp(), filter_chain_match={"source_ports": [80, 0]}),
        "filter_chains[0].filter_chain_match.source_ports[1]",
        "range",
    ),
    (
        "listener",
        chains(tcp(), filter_chain_match={"destination_port": 65_536}),
        "filter_chains[0].filter_chain_match.destination_port",
        "range",
    ),
    (
        "listener",
        chains(tcp(), filter_chain_match={"prefix_ranges": [{"address_prefix": ""}]}),
        "filter_chains[0].filter_chain_match.prefix_ranges[0].address_prefix",
        "min_len",
    ),
    ("listener", chains(tcp(stat_prefix="")), f"{CONFIG}.stat_prefix", "min_len"),
    ("listener", chains(tcp(max_connect_attempts=0)), f"{CONFIG}.max_connect_attempts", "gte"),
    (
        "listener",
        chains(tcp(hash_policy=[{"source_ip": {}}, {"source_ip": {}}])),
        f"{CONFIG}.hash_policy",
        "max_items",
    ),
    ("listener", chains(hcm(stat_prefix="")), f"{CONFIG}.stat_prefix", "min_len"),
    ("listener", chains(hcm(codec_type=9)), f"{CONFIG}.codec_type", "defined_only"),
    (
        "listener",
        chains(hcm(max_request_headers_kb=8193)),
        f"{CONFIG}.max_request_headers_kb",
        "range",
    ),
    ("listener", chains(hcm(server_name="a\nb")), f"{CONFIG}.server_name", "header"),
    (
        "listener",
        chains(hcm(http_filters=[{"name": ""}, ROUTER])),
        f"{CONFIG}.http_filters[0].name",
        "min_len",
    ),
    (
        "listener",
        chains(hcm(http_filters=[{"name": "f", "typed_config": {"@type": FAULT, "abort": {}}}, ROUTER])),
        f"{CONFIG}.http_filters[0].typed_config.abort.error_type",
        "required",
    ),
    (
        "listener",
        chains(
            hcm(
                http_filters=[
                    {"name": "f", "typed_config": {"@type": FAULT, "abort": {"http_status": 199}}},
                    ROUTER,
                ]
            )
        ),
        f"{CONFIG}.http_filters[0].typed_config.abort.http_status",
        "range",
    ),
    (
        "listener",
        chains(hcm(access_log=[{"name": "a", "filter": {"and_filter": {"filters": []}}}])),
        f"{CONFIG}.access_log[0].filter.and_filter.filters",
        "min_items",
    ),
    (
        "listener",
        chains(hcm(access_log=[{"name": "a", "filter": {"response_flag_filter": {"flags": ["XX"]}}}])),
        f"{CONFIG}.access_log[0].filter.response_flag_filter.flags[0]",
        "in",
    ),
    ("routes", {"virtual_hosts": [{"name": "", "domains": ["*"]}]}, "virtual_hosts[0].name", "min_len"),
    ("routes", {"virtual_hosts": [{"name": "v"}]}, "virtual_hosts[0].domains", "min_items"),
    (
        "routes",
        {"virtual_hosts": [{"name": "v", "domains": ["a\r"]}]},
        "virtual_hosts[0].domains[0]",
        "header",
    ),
    ("routes", route({"prefix": "/"}, {"name": "n"}), f"{ROUTE}.action", "required"),
    ("routes", route({"safe_regex": {}}), f"{ROUTE}.match.safe_regex.regex", "min_len"),
    (
        "routes",
        route({"path_separated_prefix": "/a/"}),
        f"{ROUTE}.match.path_separated_prefix",
        "pattern",
    ),
    (
        "routes",
        route({"prefix": "/", "headers": [{"name": ""}]}),
        f"{ROUTE}.match.headers[0].name",
        "min_len",
    ),
    (
        "routes",
        route({"prefix": "/", "query_parameters": [{"name": "q", "string_match": {}}]}),
        f"{ROUTE}.match.query_parameters[0].string_match.match_pattern",
        "required",
    ),
    ("routes", route(action={"route": {"cluster": ""}}), f"{ROUTE}.route.cluster", "min_len"),
    ("routes", route(action={"route": {}}), f"{ROUTE}.route.cluster_specifier", "required"),
    (
        "routes",
        route(action={"route": {"weighted_clusters": {"clusters": []}}}),
        f"{ROUTE}.route.weighted_clusters.clusters",
        "min_items",
    ),
    (
        "routes",
        route(action={"route": {"cluster": "c", "retry_policy": {"retry_back_off": {}}}}),
        f"{ROUTE}.route.retry_policy.retry_back_off.base_interval",
        "required",
    ),
    (
        "routes",
        route(action={"route": {"cluster": "c", "hash_policy": [{"header": {"header_name": ""}}]}}),
        f"{ROUTE}.route.hash_policy[0].header.header_name",
        "min_len",
    ),
    (
        "routes",
        route(
            action={
                "route": {
                    "cluster": "c",
                    "internal_redirect_policy": {"response_headers_to_copy": ["a", "a"]},
                }
            }
        ),
        f"{ROUTE}.route.internal_redirect_policy.response_headers_to_copy",
        "unique",
    ),
    (
        "routes",
        route(action={"direct_response": {"status": 99}}),
        f"{ROUTE}.direct_response.status",
        "range",
    ),
    (
        "routes",
        route(request_headers_to_add=[{"header": {"key": "a\nb"}}]),
        f"{ROUTE}.request_headers_to_add[0].header.key",
        "header",
    ),
    ("routes", route(request_headers_to_add=[{}]), f"{ROUTE}.request_headers_to_add[0].header", "required"),
    ("routes", route(request_headers_to_remove=[""]), f"{ROUTE}.request_headers_to_remove[0]", "min_len"),
    (
        "secret",
        {"generic_secret": {"secret": {"inline_string": "x"}, "secrets": {"": {}}}},
        'generic_secret.secrets[""].specifier',
        "required",
    ),
    ("secret", {"generic_secret": {"secret": {}}}, "generic_secret.secret.specifier", "required"),
]
BROKEN_IDS = [
    f"{where} {field.replace('[', '(').replace(']', ')')} {rule}" for where, _, field, rule in BROKEN
]

# Good resources, many of them at the edge of a rule.
KEPT: list[tuple[str, dict[str, Any]]] = [
    *((where, {}) for where in GOOD),
    ("cluster", {"connect_timeout": "0.001s"}),
    ("cluster", {"dns_jitter": "9223372035s"}),
    ("cluster", {"common_lb_config": {"healthy_panic_threshold": {"value": 100}}}),
    ("cluster", {"outlier_detection": {"max_ejection_percent": 100, "interval": "0.000000001s"}}),
    ("cluster", tls(sni="x" * 255)),
    ("cluster", health_check(healthy_threshold=0)),
    ("cluster", http_options(common_http_protocol_options={"idle_timeout": "0s"})),
    (
        "cluster",
        http_options(explicit_http_config={"http2_protocol_options": {"max_concurrent_streams": 2147483647}}),
    ),
    ("endpoints", {"endpoints": []}),
    ("endpoints", endpoint(load_balancing_weight=1, metadata={"filter_metadata": {"a": {"b": None}}})),
    ("endpoints", {"policy": {"overprovisioning_factor": 1}}),
    ("listener", chains(tcp(), filter_chain_match={"source_ports": [1, 65_535], "destination_port": 1})),
    ("listener", chains(tcp(max_connect_attempts=1, hash_policy=[{"source_ip": {}}]))),
    ("listener", chains(hcm(max_request_headers_kb=8192, server_name="a b"))),
    ("listener", chains(hcm(route_config={"name": ""}))),
    ("routes", route({"path_separated_prefix": "/a"})),
    ("routes", route({"safe_regex": {"regex": "a+"}}, {"direct_response": {"status": 599}})),
    ("routes", route(request_headers_to_add=[{"header": {"key": "a", "value": ""}}])),
    ("routes", route(request_headers_to_remove=["a"])),
    ("secret", {"validation_context": {"trusted_ca": {"inline_string": ""}}, "generic_secret": None}),
]


def resource(where: str, change: dict[str, Any]) -> dict[str, Any]:
    return {**GOOD[where], **change}


def violations(where: str, data: Any) -> list[tuple[str, str, str]]:
    try:
        ENCODER.resource(where, "x", data)
    except Unencodable as refused:
        return [(found.field, found.rule, found.message) for found in refused.violations]
    return []


@pytest.mark.parametrize(("where", "change", "field", "rule"), BROKEN, ids=BROKEN_IDS)
def test_a_broken_rule_is_told(where, change, field, rule):
    found = violations(where, resource(where, change))
    assert found[0][:2] == (field, rule)
    assert len(found) == 1, found


def test_what_keeps_the_rules_is_not_refused():
    for where, change in KEPT:
        assert violations(where, resource(where, change)) == []


def bootstrap(where: str, data: dict[str, Any]) -> dict[str, Any]:
    """A configuration that holds the resource and what it needs."""
    cluster = GOOD["cluster"]
    static = {
        "cluster": {"clusters": [data]},
        "endpoints": {"clusters": [{**cluster, "load_assignment": data}]},
        "listener": {"listeners": [data], "clusters": [cluster]},
        "routes": {
            "listeners": [{**GOOD["listener"], **chains(hcm(route_config=data))}],
            "clusters": [cluster],
        },
        "secret": {"secrets": [data]},
    }[where]
    return {"node": {"id": "n", "cluster": "n"}, "static_resources": static}


def asked(folder: Path, cases: list[tuple[str, dict[str, Any]]]) -> list[tuple[int, str]]:
    """What the real Envoy says to each case: its exit code and its words."""
    envoy = schema.find_envoy()

    def ask(number: int) -> tuple[int, str]:
        where, change = cases[number]
        file = folder / f"{number}.json"
        file.write_text(json.dumps(bootstrap(where, resource(where, change))))
        command = [envoy, "--mode", "validate", "-l", "critical", "--disable-hot-restart", "-c", file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout + done.stderr

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(ask, range(len(cases))))


@pytest.mark.slow
def test_envoy_accepts_what_is_accepted_here(tmp_path):
    refused = [words for code, words in asked(tmp_path, KEPT) if code]
    assert refused == []


@pytest.mark.slow
def test_envoy_refuses_what_is_refused_here_for_the_same_reason(tmp_path):
    answers = asked(tmp_path, [(where, change) for where, change, *_ in BROKEN])
    for (where, change, field, _), (code, words) in zip(BROKEN, answers, strict=True):
        assert code != 0, (where, field)
        messages = {at: message for at, _, message in violations(where, resource(where, change))}
        assert is_same_reason(field, messages[field].partition(";")[0], words), (field, messages, words)


def is_same_reason(field: str, message: str, words: str) -> bool:
    """Whether Envoy names the same field, and says the same of it."""
    name = re.sub(r'(\[\d+\]|\[".*"\])$', "", field).rpartition(".")[2]
    camel = "".join(part.capitalize() for part in name.split("_"))
    if message in words:
        return "duration" in message or re.search(rf"\.{camel}(\[[^\]]*\])?: ", words) is not None
    return f'field: "{name}", reason: is required' in words and message == "value is required"


def test_rules_below_a_skipped_field_are_not_asked():
    append = "envoy.config.core.v3.KeyValueAppend"
    assert ENCODER.message(append, {"entry": {"key": ""}}) is not None
    with pytest.raises(Unencodable):
        ENCODER.message("envoy.config.core.v3.KeyValuePair", {"key": ""})


def test_a_field_that_envoy_no_longer_takes_is_refused():
    data = {"dynamic_metadata": {"descriptor_key": "k", "metadata_key": {"key": "m", "path": [{"key": "p"}]}}}
    with pytest.raises(Unencodable) as refused:
        ENCODER.message("envoy.config.route.v3.RateLimit.Action", data)
    assert [(v.field, v.rule) for v in refused.value.violations] == [("dynamic_metadata", "refused")]


def test_every_rule_of_every_message_is_understood():
    constraints, n_rules = Constraints(SCHEMA), 0
    files = [SCHEMA.pool.FindFileByName(name) for name in SCHEMA.files]
    left = [described for file in files for described in file.message_types_by_name.values()]
    while left:
        described = left.pop()
        left.extend(described.nested_types)
        n_rules += sum(constraints.required(oneof) for oneof in described.oneofs)
        for field in described.fields:
            rules = constraints.of_field(field)
            n_rules += len(rules.checks) + rules.required
    assert n_rules > 1_200


# Kind, rules, values that fit, values that do not; also rules that no message of today has.
LANGUAGE: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("uint32", {"const": 5}, [5], [0, 6]),
    ("uint32", {"lt": 5}, [4], [5]),
    ("uint32", {"lte": 5}, [5], [6]),
    ("uint32", {"gt": 5}, [6], [5]),
    ("uint32", {"gte": 5}, [5], [4]),
    ("uint32", {"gt": 5, "lt": 8}, [6, 7], [5, 8]),
    ("uint32", {"gte": 5, "lte": 8}, [5, 8], [4, 9]),
    ("uint32", {"gt": 8, "lt": 5}, [4, 9], [5, 8]),
    ("uint32", {"in": [1, 2]}, [1], [0]),
    ("uint32", {"not_in": [1, 2]}, [0], [2]),
    ("uint32", {"gte": 200, "lt": 600, "ignore_empty": True}, [0, 200], [199, 600]),
    ("double", {"gte": 0.5}, [0.5], [0.4, float("nan")]),
    ("bool", {"const": True}, [True], [False]),
    ("string", {"const": "a"}, ["a"], ["", "b"]),
    ("string", {"len": 2}, ["öö"], ["ö"]),
    ("string", {"min_len": 1}, ["ö"], [""]),
    ("string", {"min_len": 2}, ["öö"], ["ö"]),
    ("string", {"max_len": 2}, ["öö", ""], ["abc"]),
    ("string", {"min_len": 1, "max_len": 2}, ["a", "öö"], ["", "abc"]),
    ("string", {"len_bytes": 2}, ["ö"], ["öö"]),
    ("string", {"min_bytes": 2}, ["ö"], ["a"]),
    ("string", {"max_bytes": 2}, ["ö"], ["öa"]),
    ("string", {"pattern": "^a+$"}, ["aa"], ["ab", ""]),
    ("string", {"prefix": "a"}, ["ab"], ["ba"]),
    ("string", {"suffix": "a"}, ["ba"], ["ab"]),
    ("string", {"contains": "a"}, ["bab"], ["b"]),
    ("string", {"not_contains": "a"}, ["b"], ["bab"]),
    ("string", {"in": ["a"]}, ["a"], ["b"]),
    ("string", {"not_in": ["a"]}, ["b"], ["a"]),
    ("string", {"prefix": "%", "ignore_empty": True}, ["", "%"], ["a"]),
    ("string", {"email": True}, ["a@b.c"], ["a", "@b", "a@"]),
    ("string", {"hostname": True}, ["a.b-c."], ["-a", "a..b", "x" * 64]),
    ("string", {"ip": True}, ["::1", "1.1.1.1"], ["1.1.1", "a"]),
    ("string", {"ipv4": True}, ["1.1.1.1"], ["::1"]),
    ("string", {"ipv6": True}, ["::1"], ["1.1.1.1"]),
    ("string", {"uri": True}, ["http://a/b"], ["/b"]),
    ("string", {"uri_ref": True}, ["/b", "http://a"], ["http://[a"]),
    ("string", {"address": True}, ["::1", "a.b"], ["a_b"]),
    ("string", {"uuid": True}, ["9d0f0ce4-5c3c-4b1e-8d0e-2f0f6a4b8f11"], ["9d0f"]),
    ("string", {"well_known_regex": 1}, [":path", "x-a"], ["", "a b", "a:"]),
    ("string", {"well_known_regex": 2}, ["", "a\tb"], ["a\nb", "a\x7f"]),
    ("string", {"well_known_regex": 1, "strict": False}, ["a b", ""], ["a\n", "\x00"]),
    ("string", {"well_known_regex": 2, "strict": False}, ["a\x7f"], ["a\r"]),
    ("bytes", {"const": b"a"}, [b"a"], [b"b"]),
    ("bytes", {"len": 2}, [b"ab"], [b"a"]),
    ("bytes", {"min_len": 1}, [b"a"], [b""]),
    ("bytes", {"max_len": 1}, [b"a"], [b"ab"]),
    ("bytes", {"pattern": "^a$"}, [b"a"], [b"b"]),
    ("bytes", {"prefix": b"a"}, [b"ab"], [b"b"]),
    ("bytes", {"suffix": b"a"}, [b"ba"], [b"b"]),
    ("bytes", {"contains": b"a"}, [b"bab"], [b"b"]),
    ("bytes", {"in": [b"a"]}, [b"a"], [b"b"]),
    ("bytes", {"not_in": [b"a"]}, [b"b"], [b"a"]),
    ("bytes", {"ip": True}, [b"1234", b"1" * 16], [b"1"]),
    ("bytes", {"ipv4": True}, [b"1234"], [b"1" * 16]),
    ("bytes", {"ipv6": True}, [b"1" * 16], [b"1234"]),
    ("enum", {"defined_only": True}, [0, 6], [77]),
    ("enum", {"const": 1}, [1], [0]),
    ("enum", {"in": [1]}, [1], [0]),
    ("enum", {"not_in": [1]}, [0], [1]),
    ("duration", {"const": {"seconds": 1}}, [10**9], [1]),
    ("duration", {"gt": {}, "lte": {"seconds": 1}}, [1, 10**9], [0, 10**9 + 1]),
    ("duration", {"in": [{"seconds": 1}]}, [10**9], [1]),
    ("duration", {"not_in": [{"nanos": 1}]}, [10**9], [1]),
    ("timestamp", {"lt": {"seconds": 5}}, [4 * 10**9], [5 * 10**9]),
    ("any", {"in": ["a/b"]}, ["a/b"], ["a/c"]),
    ("any", {"not_in": ["a/b"]}, ["a/c"], ["a/b"]),
    ("repeated", {"min_items": 1}, [[0]], [[]]),
    ("repeated", {"min_items": 2, "max_items": 3}, [[0, 0]], [[], [0] * 4]),
    ("repeated", {"min_items": 2, "max_items": 2}, [[0, 0]], [[0]]),
    ("repeated", {"max_items": 1}, [[], [0]], [[0, 1]]),
    ("repeated", {"unique": True}, [[], [0, 1]], [[0, 0]]),
    ("repeated", {"min_items": 2, "ignore_empty": True}, [[], [0, 0]], [[0]]),
    ("map", {"min_pairs": 1}, [{"a": 1}], [{}]),
    ("map", {"max_pairs": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
]


@pytest.mark.parametrize(("kind", "rules", "fitting", "broken"), LANGUAGE, ids=str)
def test_every_word_of_the_language_of_rules_is_understood(kind, rules, fitting, broken):
    message = SCHEMA.message_class("validate.FieldRules")(**{kind: rules})
    field = SCHEMA.descriptor("envoy.config.cluster.v3.Cluster").fields_by_name["lb_policy"]
    checks = validate_rules.checks(kind, getattr(message, kind), field)
    assert checks
    for value in fitting:
        assert [check.message for check in checks if not check.fits(value)] == []
    for value in broken:
        assert [check for check in checks if not check.fits(value)], value
