"""A mold that is filled gives the bytes that encoding the same data gives."""

from typing import Any

import pytest
from hypothesis import given
from plain_data import PREFIX, SCHEMA, plain_data

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.mold import Mold

ENCODER = Encoder(SCHEMA)
CLUSTER = "envoy.config.cluster.v3.Cluster"
LISTENER = "envoy.config.listener.v3.Listener"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
TCP_PROXY = f"{PREFIX}envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
MARK = "10.0.0.1"  # one of the texts that such data is made of
OWN = "my-own"


def with_own(data: Any) -> Any:
    """Data with another text in the places of the mark; names of entries stay."""
    match data:
        case dict():
            return {name: with_own(value) for name, value in data.items()}
        case list():
            return [with_own(value) for value in data]
        case str():
            return data.replace(MARK, OWN)
        case _:
            return data


def encoded(full_name: str, data: Any) -> bytes | None:
    try:
        return ENCODER.message(full_name, data)
    except Unencodable:
        return None


PLACES = {
    "a name": (CLUSTER, {"name": MARK}),
    "a part of a text": (CLUSTER, {"name": f"of {MARK}, twice {MARK}"}),
    "a message in a list": (ROUTES, {"virtual_hosts": [{"name": MARK, "domains": ["*"]}]}),
    "an item of a list": (ROUTES, {"name": "r", "request_headers_to_remove": ["a", MARK]}),
    "metadata": (LISTENER, {"name": "l", "metadata": {"filter_metadata": {"a": {"b": MARK, "c": [MARK]}}}}),
    "a message of any type": (
        LISTENER,
        {
            "filter_chains": [
                {
                    "filters": [
                        {
                            "name": "tcp",
                            "typed_config": {"@type": TCP_PROXY, "stat_prefix": MARK, "cluster": "c"},
                        }
                    ]
                }
            ]
        },
    ),
}


@pytest.mark.parametrize(("full_name", "data"), PLACES.values(), ids=list(PLACES))
def test_a_text_is_filled_in_wherever_it_stands(full_name: str, data: Any):
    mold = Mold(SCHEMA, full_name, ENCODER.message(full_name, data), (MARK,))
    assert mold.has_places
    assert mold.filled({MARK: OWN}) == ENCODER.message(full_name, with_own(data))


def test_a_mold_can_be_filled_again():
    mold = Mold(SCHEMA, CLUSTER, ENCODER.message(CLUSTER, {"name": MARK, "alt_stat_name": "s"}), (MARK,))
    first, second = mold.filled({MARK: "a rather long name"}), mold.filled({MARK: "short"})
    assert first == ENCODER.message(CLUSTER, {"name": "a rather long name", "alt_stat_name": "s"})
    assert second == ENCODER.message(CLUSTER, {"name": "short", "alt_stat_name": "s"})


def test_without_a_mark_there_is_nothing_to_fill():
    body = ENCODER.message(CLUSTER, {"name": "c"})
    mold = Mold(SCHEMA, CLUSTER, body, (MARK,))
    assert not mold.has_places
    assert mold.filled({MARK: OWN}) == body


@pytest.mark.parametrize("full_name", [CLUSTER, LISTENER, ROUTES])
def test_a_filled_mold_is_what_the_encoder_makes_of_the_same_data(full_name: str):
    @given(plain_data(full_name))
    def check(data: Any) -> None:
        body, wanted = encoded(full_name, data), encoded(full_name, with_own(data))
        if body is not None and wanted is not None:
            assert Mold(SCHEMA, full_name, body, (MARK,)).filled({MARK: OWN}) == wanted

    check()
