"""Plain data becomes the bytes that protobuf's own JSON reader would make, or everything wrong is told."""

import threading
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_data import PREFIX, SCHEMA, plain_data

from koguma.envoy import snapshot
from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.schema import UnknownType

pytestmark = pytest.mark.slow

ENCODER = Encoder(SCHEMA)
CLUSTER = "envoy.config.cluster.v3.Cluster"
LISTENER = "envoy.config.listener.v3.Listener"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
ENDPOINTS = "envoy.config.endpoint.v3.ClusterLoadAssignment"
METADATA = "envoy.config.core.v3.Metadata"
TCP_PROXY = f"{PREFIX}envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
ROUTER = f"{PREFIX}envoy.extensions.filters.http.router.v3.Router"
BOUND = "envoy.config.core.v3.SocketOption"


def by_library(full_name: str, data: Any) -> Any:
    """The message that protobuf's own reader makes."""
    return json_format.ParseDict(data, SCHEMA.message_class(full_name)(), descriptor_pool=SCHEMA.pool)


def plain(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=SCHEMA.pool)


def problems(full_name: str, data: Any) -> list[tuple[str, str]]:
    """Where and by which rule data is refused."""
    with pytest.raises(Unencodable) as refused:
        ENCODER.message(full_name, data)
    return [(found.field, found.rule) for found in refused.value.violations]


def encoded(full_name: str, data: Any) -> bytes | None:
    """The bytes, or nothing where the data is refused; nothing else may happen."""
    try:
        return ENCODER.message(full_name, data)
    except Unencodable:
        return None


def listener(*filters: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "typed_config": config} for number, config in enumerate(filters)]
    return {"name": "l", "filter_chains": [{"filters": named}]}


ACCEPTED = {
    "durations": (CLUSTER, {"name": "c", "connect_timeout": "1.5s", "cleanup_interval": "0.000000001s"}),
    "wrappers": (CLUSTER, {"name": "c", "per_connection_buffer_limit_bytes": 32768}),
    "a wrapper of zero": (CLUSTER, {"name": "c", "per_connection_buffer_limit_bytes": 0}),
    "enums by name": (CLUSTER, {"name": "c", "type": "EDS", "lb_policy": "LEAST_REQUEST"}),
    "enums by number": (CLUSTER, {"name": "c", "type": 3}),
    "large numbers as text": ("envoy.config.core.v3.SocketOption", {"name": "5", "int_value": "9"}),
    "bytes": (BOUND, {"buf_value": "AAECAw=="}),
    "bytes for web addresses": (BOUND, {"buf_value": "_-8"}),
    "whole numbers with a point": (BOUND, {"level": 3.0, "int_value": -1}),
    "fractions": ("envoy.type.v3.Percent", {"value": 12}),
    "JSON inside": (METADATA, {"filter_metadata": {"a": {"b": [1, None, {"fields": {"c": True}}, "d"]}}}),
    "JSON that looks like a message": (METADATA, {"filter_metadata": {"a": {"fields": {"b": 1}}}}),
    "empty JSON": (METADATA, {"filter_metadata": {"a": {}, "b": {"c": {}, "d": []}}}),
    "a value that is null": ("google.api.expr.v1alpha1.Constant", {"null_value": None}),
    "maps of Any": (METADATA, {"typed_filter_metadata": {"a": {"@type": ROUTER, "dynamic_stats": False}}}),
    "Any of a text": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}google.protobuf.StringValue", "value": "x"}}},
    ),
    "Any of JSON": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}google.protobuf.Struct", "value": {"x": 1}}}},
    ),
    "Any of nothing": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}google.protobuf.Empty"}}},
    ),
    "an Any in lists": (
        LISTENER,
        listener({"@type": TCP_PROXY, "stat_prefix": "s", "cluster": "c", "idle_timeout": "5s"}),
    ),
    "an empty message": ("envoy.config.core.v3.ConfigSource", {"ads": {}}),
    "a field called self": ("envoy.config.core.v3.ConfigSource", {"self": {}}),
    "null is absent": (CLUSTER, {"name": "c", "connect_timeout": None, "type": None, "metadata": None}),
    "points in time": ("envoy.admin.v3.BootstrapConfigDump", {"last_updated": "1969-12-31T23:59:59.5Z"}),
    "points in time elsewhere": (
        "envoy.admin.v3.BootstrapConfigDump",
        {"last_updated": "2030-01-31T12:00:00+02:00"},
    ),
}


@pytest.mark.parametrize(("full_name", "data"), ACCEPTED.values(), ids=ACCEPTED)
def test_the_bytes_are_those_of_the_library(full_name, data):
    made = SCHEMA.message_class(full_name).FromString(ENCODER.message(full_name, data))
    assert made == by_library(full_name, data)


def test_both_spellings_of_a_field_are_read():
    snake = {"name": "c", "connect_timeout": "5s", "circuit_breakers": {"thresholds": [{"max_retries": 3}]}}
    camel = {"name": "c", "connectTimeout": "5s", "circuitBreakers": {"thresholds": [{"maxRetries": 3}]}}
    assert ENCODER.message(CLUSTER, snake) == ENCODER.message(CLUSTER, camel)


def test_lists_may_be_tuples():
    listed, tupled = ({"cluster_name": "c", "endpoints": kind([{"priority": 1}])} for kind in (list, tuple))
    assert ENCODER.message(ENDPOINTS, listed) == ENCODER.message(ENDPOINTS, tupled)


def test_the_order_of_keys_does_not_matter():
    metadata = {name: {f"k{number}": number for number in range(9)} for name in "abcdefgh"}
    backwards = {name: dict(reversed(value.items())) for name, value in reversed(metadata.items())}
    packed = [{"@type": f"{PREFIX}{METADATA}", "filter_metadata": each} for each in (metadata, backwards)]
    one, other = ({"typed_filter_metadata": {"a": each}, "filter_metadata": metadata} for each in packed)
    assert ENCODER.message(METADATA, one) == ENCODER.message(METADATA, dict(reversed(other.items())))


REFUSED = {
    "no map": (CLUSTER, [], [("", "type")]),
    "nothing": (CLUSTER, None, [("", "type")]),
    "an unknown field": (CLUSTER, {"name": "c", "nme": "d"}, [("nme", "unknown")]),
    "a key that is no text": (CLUSTER, {"name": "c", 5: "d"}, [("5", "unknown")]),
    "text for a number": (BOUND, {"level": "five", "int_value": 1}, [("level", "type")]),
    "truth for a number": (BOUND, {"level": True, "int_value": 1}, [("level", "type")]),
    "a fraction for a whole number": (BOUND, {"level": 1.5, "int_value": 1}, [("level", "type")]),
    "a number for text": (CLUSTER, {"name": 5}, [("name", "type")]),
    "a number for a truth": (LISTENER, {"name": "l", "freebind": 1}, [("freebind", "type")]),
    "a number for a duration": (CLUSTER, {"name": "c", "connect_timeout": 5}, [("connect_timeout", "type")]),
    "minutes": (CLUSTER, {"name": "c", "connect_timeout": "5m"}, [("connect_timeout", "type")]),
    "a duration before zero": (CLUSTER, {"name": "c", "dns_jitter": "-1s"}, [("dns_jitter", "positive")]),
    "an endless duration": (
        CLUSTER,
        {"name": "c", "dns_jitter": "9223372036s"},
        [("dns_jitter", "out_of_range")],
    ),
    "a number too large": (
        CLUSTER,
        {"name": "c", "per_connection_buffer_limit_bytes": 2**32},
        [("per_connection_buffer_limit_bytes", "type")],
    ),
    "a number too small": (
        CLUSTER,
        {"name": "c", "circuit_breakers": {"thresholds": [{}, {"max_retries": -1}]}},
        [("circuit_breakers.thresholds[1].max_retries", "type")],
    ),
    "no base64": (BOUND, {"buf_value": "?"}, [("buf_value", "type")]),
    "base64 cut off": (BOUND, {"buf_value": "AAAAA"}, [("buf_value", "type")]),
    "an unknown name": (CLUSTER, {"name": "c", "lb_policy": "RR"}, [("lb_policy", "enum")]),
    "a list for one": (CLUSTER, {"name": "c", "metadata": [{}]}, [("metadata", "type")]),
    "one for a list": (ENDPOINTS, {"cluster_name": "c", "endpoints": {}}, [("endpoints", "type")]),
    "null in a list": (ENDPOINTS, {"cluster_name": "c", "endpoints": [None]}, [("endpoints[0]", "type")]),
    "a map for text": (CLUSTER, {"name": {"a": "b"}}, [("name", "type")]),
    "two of which one may be": (
        CLUSTER,
        {"name": "c", "type": "EDS", "cluster_type": {"name": "x"}},
        [("cluster_type", "oneof")],
    ),
    "one field twice": (
        CLUSTER,
        {"name": "c", "connect_timeout": "1s", "connectTimeout": "2s"},
        [("connectTimeout", "twice")],
    ),
    "an Any without a type": (
        LISTENER,
        listener({}, {"stat_prefix": "s"}),
        [(f"filter_chains[0].filters[{n}].typed_config.@type", "required") for n in (0, 1)],
    ),
    "an Any of an unknown type": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}envoy.Nothing"}}},
        [('typed_filter_metadata["a"].@type', "any")],
    ),
    "an Any whose type is no text": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": ["x"]}}},
        [('typed_filter_metadata["a"].@type', "type")],
    ),
    "an Any that is text": (
        METADATA,
        {"typed_filter_metadata": {"a": "x"}},
        [('typed_filter_metadata["a"]', "type")],
    ),
    "a type where none belongs": (CLUSTER, {"name": "c", "@type": PREFIX + CLUSTER}, [("@type", "unknown")]),
    "an Any with a field too many": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}google.protobuf.Duration", "seconds": 1}}},
        [('typed_filter_metadata["a"].seconds', "unknown")],
    ),
    "an Any with a wrong value": (
        METADATA,
        {"typed_filter_metadata": {"a": {"@type": f"{PREFIX}google.protobuf.Duration", "value": 1}}},
        [('typed_filter_metadata["a"].value', "type")],
    ),
    "JSON that is none": (
        METADATA,
        {"filter_metadata": {"a": {"b": float("nan"), "c": [object()], "d": {1: 2}, "e": 10**400}}},
        [
            ('filter_metadata["a"]["b"]', "type"),
            ('filter_metadata["a"]["c"][0]', "type"),
            ('filter_metadata["a"]["d"]["1"]', "type"),
            ('filter_metadata["a"]["e"]', "type"),
        ],
    ),
    "half a character": (
        CLUSTER,
        {"name": "\ud800", "metadata": {"filter_metadata": {"a": {"b": ["\udfff"]}}}},
        [("name", "text"), ("metadata.filter_metadata.a.b[0]", "text")],
    ),
    "a 30th of February": (
        "envoy.admin.v3.BootstrapConfigDump",
        {"last_updated": "2030-02-30T12:00:00Z"},
        [("last_updated", "type")],
    ),
}


@pytest.mark.parametrize(("full_name", "data", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_told_with_its_path(full_name, data, expected):
    assert problems(full_name, data) == expected


def test_everything_that_is_wrong_is_told_at_once():
    data = listener(
        {"@type": TCP_PROXY, "stat_prefx": "s", "cluster": "c"},
        {
            "@type": TCP_PROXY,
            "stat_prefix": "s",
            "cluster": "c",
            "idle_timeout": "soon",
            "access_log": [{"filter": {}}, {"name": 5}],
        },
        {"@type": f"{PREFIX}envoy.Nothing"},
    )
    at = "filter_chains[0].filters"
    assert problems(LISTENER, {**data, "traffic_direction": "SIDEWAYS"}) == [
        (f"{at}[0].typed_config.stat_prefx", "unknown"),
        (f"{at}[0].typed_config.stat_prefix", "min_len"),
        (f"{at}[1].typed_config.idle_timeout", "type"),
        (f"{at}[1].typed_config.access_log[0].filter.filter_specifier", "required"),
        (f"{at}[1].typed_config.access_log[1].name", "type"),
        (f"{at}[2].typed_config.@type", "any"),
        ("traffic_direction", "enum"),
    ]


def test_an_error_says_what_and_where_in_one_text():
    with pytest.raises(Unencodable) as refused:
        ENCODER.message(CLUSTER, {"nam": "c"})
    assert str(refused.value) == (
        f'nam: {CLUSTER} has no field "nam"; did you mean "name"?; '
        "name: value length must be at least 1 characters"
    )


def test_the_value_of_a_secret_is_not_repeated():
    key = {"private_key": {"inline_bytes": "-----BEGIN PRIVATE KEY-----"}, "certificate_chain": "PRIVATE"}
    with pytest.raises(Unencodable) as refused:
        ENCODER.resource("secret", "s", {"name": "s", "tls_certificate": key})
    assert len(refused.value.violations) == 2
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize("depth", [120, 5_000])
def test_data_that_is_too_deep_to_be_read_is_refused(depth):
    rule: dict[str, Any] = {"any": True}
    for _ in range(depth):
        rule = {"not_rule": rule}
    assert problems("envoy.config.rbac.v3.Permission", rule) == [("", "depth")]


def test_a_piece_has_the_hash_of_its_bytes_as_version():
    needs = (("endpoints", "c"),)
    resource = ENCODER.resource("cluster", "c", {"name": "c", "type": "EDS"}, needs)
    assert (resource.type, resource.name, resource.needs) == ("cluster", "c", needs)
    assert resource.version == snapshot.version_of(resource.body)
    assert resource == ENCODER.resource("cluster", "c", {"type": "EDS", "name": "c"})
    assert resource != ENCODER.resource("cluster", "c", {"type": "STATIC", "name": "c"})


@pytest.mark.parametrize("word", snapshot.TYPES)
def test_every_type_of_resource_has_an_encoding(word):
    field = "cluster_name" if word == "endpoints" else "name"
    required = {"extension": {"typed_config": {"@type": ROUTER}}, "virtual_host": {"domains": ["*"]}}
    data = {field: "x", **required.get(word, {})}
    assert ENCODER.decoded(ENCODER.resource(word, "x", data)) == data


def test_a_decoded_piece_is_what_people_write():
    data = listener({"@type": TCP_PROXY, "stat_prefix": "s", "cluster": "c", "idle_timeout": "0.250s"})
    assert ENCODER.decoded(ENCODER.resource("listener", "l", data)) == data


def test_a_message_that_does_not_exist_is_our_own_mistake():
    with pytest.raises(UnknownType, match=r"envoy\.Nothing"):
        ENCODER.message("envoy.Nothing", {})


def test_many_threads_may_begin_at_once():
    data = {"name": "c", "connect_timeout": "5s", "circuit_breakers": {"thresholds": [{"max_retries": 3}]}}
    wanted = ENCODER.message(CLUSTER, data)
    made: list[Any] = []
    for _ in range(20):
        fresh, barrier = Encoder(SCHEMA), threading.Barrier(4)

        def encode(encoder: Encoder = fresh, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                made.append(encoder.message(CLUSTER, data))
            except Unencodable as error:
                made.append(error)

        threads = [threading.Thread(target=encode) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [wanted] * 80


TYPES = (
    CLUSTER,
    LISTENER,
    ROUTES,
    ENDPOINTS,
    METADATA,
    "envoy.extensions.transport_sockets.tls.v3.Secret",
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "envoy.config.rbac.v3.RBAC",
)


@pytest.mark.property
@pytest.mark.parametrize("full_name", TYPES)
def test_what_is_encoded_means_the_same_and_comes_back_the_same(full_name):
    make = SCHEMA.message_class(full_name)
    n_encoded = 0

    @settings(parent=settings.default, max_examples=max(settings.default.max_examples // 2, 50))
    @given(plain_data(full_name))
    def holds(data: Any) -> None:
        nonlocal n_encoded
        body = encoded(full_name, data)
        if body is None:
            return
        n_encoded += 1
        back = plain(make.FromString(body))
        assert back == plain(by_library(full_name, data))
        assert ENCODER.message(full_name, back) == body

    holds()
    assert n_encoded > 20


NAMES = st.sampled_from(
    [
        "name",
        "type",
        "address",
        "filter_chains",
        "filters",
        "typed_config",
        "@type",
        "value",
        "endpoints",
        "metadata",
    ]
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["5s", TCP_PROXY, "EDS"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.property
@given(st.sampled_from(TYPES), ANYTHING)
@example(CLUSTER, {"name": "c", "metadata": {"filter_metadata": {"\ud800": {}}}})
@example(METADATA, {"filter_metadata": {"a": {"b": -1e400}}})
def test_whatever_comes_is_encoded_or_refused(full_name, data):
    body = encoded(full_name, data)
    if body is None:
        assert problems(full_name, data)
    else:
        assert SCHEMA.message_class(full_name).FromString(body) is not None
