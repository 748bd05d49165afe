"""The bytes that are put together by hand are those that protobuf reads."""

from typing import Any

import pytest

from koguma.envoy.snapshot import TYPE_URLS, TYPES, XdsResource
from koguma.xds.messages import DeltaReader, SotwReader, delta_bytes, sotw_bytes
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.sotw import SotwRequest, SotwResponse
from tests.xds.fake_gate import schema

DISCOVERY = "envoy.service.discovery.v3."
PIECES = tuple(
    XdsResource("cluster", f"größe-{size}", f"v{size}", b"x" * size) for size in (0, 1, 127, 128, 70_000)
)


def message(name: str) -> Any:
    return schema().message_class(DISCOVERY + name)


def test_a_response_of_the_incremental_form_is_read_back():
    data = delta_bytes(DeltaResponse("cluster", "7", PIECES, ("gone", "too")))
    read = message("DeltaDiscoveryResponse").FromString(data)
    assert (read.type_url, read.nonce) == (TYPE_URLS["cluster"], "7")
    assert list(read.removed_resources) == ["gone", "too"]
    found = [
        (each.name, each.version, each.resource.type_url, each.resource.value) for each in read.resources
    ]
    assert found == [(piece.name, piece.version, TYPE_URLS["cluster"], piece.body) for piece in PIECES]


def test_a_response_of_the_older_form_is_read_back():
    read = message("DiscoveryResponse").FromString(sotw_bytes(SotwResponse("cluster", "v9", "7", PIECES)))
    assert (read.type_url, read.nonce, read.version_info) == (TYPE_URLS["cluster"], "7", "v9")
    assert [each.value for each in read.resources] == [piece.body for piece in PIECES]


@pytest.mark.parametrize("type_", TYPES)
def test_a_request_of_the_incremental_form(type_: str):
    sent = message("DeltaDiscoveryRequest")(
        type_url=TYPE_URLS[type_],
        resource_names_subscribe=["a", "b"],
        resource_names_unsubscribe=["c"],
        initial_resource_versions={"a": "1"},
        response_nonce="3",
    )
    read = DeltaReader(schema()).read(sent.SerializeToString())
    assert read.request == DeltaRequest(type_, ("a", "b"), ("c",), {"a": "1"}, "3")
    assert read.node is None


def test_a_request_of_the_older_form():
    sent = message("DiscoveryRequest")(
        type_url=TYPE_URLS["routes"], resource_names=["a"], version_info="v1", response_nonce="3"
    )
    sent.error_detail.message = "boom"
    read = SotwReader(schema()).read(sent.SerializeToString())
    assert read.request == SotwRequest("routes", ("a",), "v1", "3", "boom")


@pytest.mark.parametrize(
    ("reader", "name"), [(DeltaReader, "DeltaDiscoveryRequest"), (SotwReader, "DiscoveryRequest")]
)
def test_a_refusal_without_words_is_still_a_refusal(reader: Any, name: str):
    sent = message(name)(type_url=TYPE_URLS["routes"], response_nonce="3")
    sent.error_detail.code = 13
    assert reader(schema()).read(sent.SerializeToString()).request.error != ""


@pytest.mark.parametrize(
    ("reader", "name"), [(DeltaReader, "DeltaDiscoveryRequest"), (SotwReader, "DiscoveryRequest")]
)
def test_a_private_key_that_envoy_quotes_in_a_refusal_goes_no_further(reader: Any, name: str):
    key = "-----BEGIN EC PRIVATE KEY-----\\nMHcCAQEE\\n-----END EC PRIVATE KEY-----"
    sent = message(name)(type_url=TYPE_URLS["secret"], response_nonce="3")
    sent.error_detail.message = f'Proto constraint validation failed: inline_string: "{key}" is no key'
    error = reader(schema()).read(sent.SerializeToString()).request.error
    assert error == 'Proto constraint validation failed: inline_string: "«redacted»" is no key'


def test_a_refusal_has_a_length():
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["cluster"], response_nonce="3")
    sent.error_detail.message = "no " * 1_000_000
    error = DeltaReader(schema()).read(sent.SerializeToString()).request.error
    assert error.startswith("no no ")
    assert len(error) == 4096


def test_the_node_of_a_request():
    sent = message("DeltaDiscoveryRequest")(type_url="what/ever")
    sent.node.id = "default.web-1"
    sent.node.metadata.update({"features": ["a"], "ipv6Enabled": True})
    sent.node.user_agent_build_version.version.major_number = 1
    sent.node.user_agent_build_version.version.minor_number = 40
    read = DeltaReader(schema()).read(sent.SerializeToString())
    assert read.request is None
    assert read.node is not None
    assert (read.node.id, read.node.version) == ("default.web-1", "1.40.0")
    assert read.node.metadata == {"features": ["a"], "ipv6Enabled": True}


@pytest.mark.parametrize("nonce", ["", "1", "12345", "n" * 127, "n" * 128])
def test_an_answer_that_takes_all_is_read_as_protobuf_reads_it(nonce: str):
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["listener"], response_nonce=nonce)
    read = DeltaReader(schema()).read(sent.SerializeToString())
    assert (read.type_url, read.request) == (TYPE_URLS["listener"], DeltaRequest("listener", nonce=nonce))


def test_an_answer_that_says_more_is_read_as_a_whole():
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["routes"], response_nonce="3")
    sent.error_detail.message = "boom"
    assert DeltaReader(schema()).read(sent.SerializeToString()).request == DeltaRequest(
        "routes", nonce="3", error="boom"
    )
