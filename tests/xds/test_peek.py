"""Peek: the id of a node is found by hand where protobuf finds it, and nothing makes it fail."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.xds import peek
from tests.xds.fake_gate import schema

DISCOVERY = "envoy.service.discovery.v3."
HEALTH = "envoy.service.health.v3.HealthCheckRequestOrEndpointHealthResponse"


def message(name: str) -> tuple[Any, Any]:
    """A message, and the node in it."""
    found: Any = schema().message_class(name)()
    return found, found.health_check_request.node if name == HEALTH else found.node


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (f"{DISCOVERY}DeltaDiscoveryRequest", peek.DELTA),
        (f"{DISCOVERY}DiscoveryRequest", peek.SOTW),
        (HEALTH, peek.HEALTH),
    ],
)
@given(st.text(max_size=400))
def test_the_id_is_the_one_that_protobuf_reads(name, path, text):
    written, node = message(name)
    node.id = text
    node.cluster = "some"
    if name == f"{DISCOVERY}DiscoveryRequest":
        written.version_info = "7"
    data = written.SerializeToString()
    assert peek.node_id(data, path, 10_000) == text
    assert peek.node_size(data, path) == node.ByteSize()
    assert peek.node_id(data, path, 5).encode() == text.encode()[:5].decode(errors="replace").encode()


@given(st.binary(max_size=60))
def test_noise_is_nobody_or_somebody_and_never_a_failure(noise):
    for path in (peek.DELTA, peek.SOTW, peek.HEALTH):
        assert len(peek.node_id(noise, path, 20)) <= 20
        assert peek.node_size(noise, path) <= len(noise)


def test_a_node_far_behind_is_not_looked_for():
    others = b"\x18\x01" * 50
    assert peek.node_id(others + b"\x0a\x03\x0a\x01x", peek.DELTA, 20) == ""
    assert peek.node_id(b"\x18\x01\x0a\x03\x0a\x01x", peek.DELTA, 20) == "x"
