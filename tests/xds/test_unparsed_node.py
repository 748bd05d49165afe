"""The id of a node is found in an unparsed request where protobuf finds it, and nothing makes it fail."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.xds import unparsed_node
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
        (f"{DISCOVERY}DeltaDiscoveryRequest", unparsed_node.DELTA_ID_PATH),
        (f"{DISCOVERY}DiscoveryRequest", unparsed_node.SOTW_ID_PATH),
        (HEALTH, unparsed_node.HDS_ID_PATH),
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
    assert unparsed_node.node_id(data, path, 10_000) == text
    assert unparsed_node.node_size(data, path) == node.ByteSize()
    assert (
        unparsed_node.node_id(data, path, 5).encode() == text.encode()[:5].decode(errors="replace").encode()
    )


@given(st.binary(max_size=60))
def test_noise_has_an_id_or_none_and_never_fails(noise):
    for path in (unparsed_node.DELTA_ID_PATH, unparsed_node.SOTW_ID_PATH, unparsed_node.HDS_ID_PATH):
        assert len(unparsed_node.node_id(noise, path, 20)) <= 20
        assert unparsed_node.node_size(noise, path) <= len(noise)


def test_a_node_after_many_other_fields_is_not_found():
    others = b"\x18\x01" * 50
    assert unparsed_node.node_id(others + b"\x0a\x03\x0a\x01x", unparsed_node.DELTA_ID_PATH, 20) == ""
    assert unparsed_node.node_id(b"\x18\x01\x0a\x03\x0a\x01x", unparsed_node.DELTA_ID_PATH, 20) == "x"
