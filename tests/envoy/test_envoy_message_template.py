"""A template that is filled gives the bytes that encoding the same data gives."""

from typing import Any

import pytest
from hypothesis import given
from plain_data import PREFIX, SCHEMA, plain_data

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.message_template import MessageTemplate

ENCODER = Encoder(SCHEMA)
CLUSTER = "envoy.config.cluster.v3.Cluster"
LISTENER = "envoy.config.listener.v3.Listener"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
TCP_PROXY = f"{PREFIX}envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
PLACEHOLDER = "10.0.0.1"  # one of the texts that such data is made of
OWN = "my-own"


def with_own(data: Any) -> Any:
    """Data with another text in the places of the mark; names of entries stay."""
    match data:
        case dict():
            return {name: with_own(value) for name, value in data.items()}
        case list():
            return [with_own(value) for value in data]
        case str():
            return data.replace(PLACEHOLDER, OWN)
        case _:
            return data


def encoded(full_name: str, data: Any) -> bytes | None:
    try:
        return ENCODER.message(full_name, data)
    except Unencodable:
        return None


SLOTS = {
    "a name": (CLUSTER, {"name": PLACEHOLDER}),
    "a part of a text": (CLUSTER, {"name": f"of {PLACEHOLDER}, twice {PLACEHOLDER}"}),
    "a message in a list": (ROUTES, {"virtual_hosts": [{"name": PLACEHOLDER, "domains": ["*"]}]}),
    "an item of a list": (ROUTES, {"name": "r", "request_headers_to_remove": ["a", PLACEHOLDER]}),
    "metadata": (
        LISTENER,
        {"name": "l", "metadata": {"filter_metadata": {"a": {"b": PLACEHOLDER, "c": [PLACEHOLDER]}}}},
    ),
    "a message of any type": (
        LISTENER,
        {
            "filter_chains": [
                {
                    "filters": [
                        {
                            "name": "tcp",
                            "typed_config": {"@type": TCP_PROXY, "stat_prefix": PLACEHOLDER, "cluster": "c"},
                        }
                    ]
                }
            ]
        },
    ),
}


@pytest.mark.parametrize(("full_name", "data"), SLOTS.values(), ids=list(SLOTS))
def test_a_text_is_filled_in_wherever_it_stands(full_name: str, data: Any):
    template = MessageTemplate(SCHEMA, full_name, ENCODER.message(full_name, data), (PLACEHOLDER,))
    assert template.has_slots
    assert template.filled({PLACEHOLDER: OWN}) == ENCODER.message(full_name, with_own(data))


def test_a_mold_can_be_filled_again():
    template = MessageTemplate(
        SCHEMA, CLUSTER, ENCODER.message(CLUSTER, {"name": PLACEHOLDER, "alt_stat_name": "s"}), (PLACEHOLDER,)
    )
    first, second = (
        template.filled({PLACEHOLDER: "a rather long name"}),
        template.filled({PLACEHOLDER: "short"}),
    )
    assert first == ENCODER.message(CLUSTER, {"name": "a rather long name", "alt_stat_name": "s"})
    assert second == ENCODER.message(CLUSTER, {"name": "short", "alt_stat_name": "s"})


def test_without_a_mark_there_is_nothing_to_fill():
    body = ENCODER.message(CLUSTER, {"name": "c"})
    template = MessageTemplate(SCHEMA, CLUSTER, body, (PLACEHOLDER,))
    assert not template.has_slots
    assert template.filled({PLACEHOLDER: OWN}) == body


@pytest.mark.parametrize("full_name", [CLUSTER, LISTENER, ROUTES])
def test_a_filled_mold_is_what_the_encoder_makes_of_the_same_data(full_name: str):
    @given(plain_data(full_name))
    def check(data: Any) -> None:
        body, wanted = encoded(full_name, data), encoded(full_name, with_own(data))
        if body is not None and wanted is not None:
            assert (
                MessageTemplate(SCHEMA, full_name, body, (PLACEHOLDER,)).filled({PLACEHOLDER: OWN}) == wanted
            )

    check()
