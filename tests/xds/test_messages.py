"""Responses that are encoded by hand are what protobuf reads, and requests are decoded."""

from typing import Any

import pytest

from koguma.envoy.snapshot import TYPE_URLS, TYPES, XdsResource
from koguma.xds.messages import (
    DeltaRequestDecoder,
    SotwRequestDecoder,
    encode_delta_response,
    encode_sotw_response,
)
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.sotw import SotwRequest, SotwResponse
from tests.xds.fake_gate import schema

DISCOVERY = "envoy.service.discovery.v3."
RESOURCES = tuple(
    XdsResource("cluster", f"größe-{size}", f"v{size}", b"x" * size) for size in (0, 1, 127, 128, 70_000)
)

BOTH_VARIANTS = pytest.mark.parametrize(
    ("decoder", "name"),
    [(DeltaRequestDecoder, "DeltaDiscoveryRequest"), (SotwRequestDecoder, "DiscoveryRequest")],
)


def message(name: str) -> Any:
    return schema().message_class(DISCOVERY + name)


def test_a_delta_response_is_read_back():
    data = encode_delta_response(DeltaResponse("cluster", "7", RESOURCES, ("gone", "too")))
    read = message("DeltaDiscoveryResponse").FromString(data)
    assert (read.type_url, read.nonce) == (TYPE_URLS["cluster"], "7")
    assert list(read.removed_resources) == ["gone", "too"]
    found = [
        (each.name, each.version, each.resource.type_url, each.resource.value) for each in read.resources
    ]
    assert found == [
        (resource.name, resource.version, TYPE_URLS["cluster"], resource.body) for resource in RESOURCES
    ]


def test_a_sotw_response_is_read_back():
    read = message("DiscoveryResponse").FromString(
        encode_sotw_response(SotwResponse("cluster", "v9", "7", RESOURCES))
    )
    assert (read.type_url, read.nonce, read.version_info) == (TYPE_URLS["cluster"], "7", "v9")
    assert [each.value for each in read.resources] == [resource.body for resource in RESOURCES]


@pytest.mark.parametrize("type_", TYPES)
def test_a_delta_request(type_: str):
    sent = message("DeltaDiscoveryRequest")(
        type_url=TYPE_URLS[type_],
        resource_names_subscribe=["a", "b"],
        resource_names_unsubscribe=["c"],
        initial_resource_versions={"a": "1"},
        response_nonce="3",
    )
    read = DeltaRequestDecoder(schema()).decode(sent.SerializeToString())
    assert read.request == DeltaRequest(type_, ("a", "b"), ("c",), {"a": "1"}, "3")
    assert read.node is None


def test_a_sotw_request():
    sent = message("DiscoveryRequest")(
        type_url=TYPE_URLS["routes"], resource_names=["a"], version_info="v1", response_nonce="3"
    )
    sent.error_detail.message = "boom"
    read = SotwRequestDecoder(schema()).decode(sent.SerializeToString())
    assert read.request == SotwRequest("routes", ("a",), "v1", "3", "boom")


@BOTH_VARIANTS
def test_a_nack_without_a_message_is_still_a_nack(decoder: Any, name: str):
    sent = message(name)(type_url=TYPE_URLS["routes"], response_nonce="3")
    sent.error_detail.code = 13
    assert decoder(schema()).decode(sent.SerializeToString()).request.error != ""


@BOTH_VARIANTS
def test_a_private_key_that_envoy_quotes_in_a_nack_is_masked(decoder: Any, name: str):
    key = "-----BEGIN EC PRIVATE KEY-----\\nMHcCAQEE\\n-----END EC PRIVATE KEY-----"
    sent = message(name)(type_url=TYPE_URLS["secret"], response_nonce="3")
    sent.error_detail.message = f'Proto constraint validation failed: inline_string: "{key}" is no key'
    error = decoder(schema()).decode(sent.SerializeToString()).request.error
    assert error == 'Proto constraint validation failed: inline_string: "«redacted»" is no key'


def test_the_message_of_a_nack_is_cut():
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["cluster"], response_nonce="3")
    sent.error_detail.message = "no " * 1_000_000
    error = DeltaRequestDecoder(schema()).decode(sent.SerializeToString()).request.error
    assert error.startswith("no no ")
    assert len(error) == 4096


def test_the_node_of_a_request():
    sent = message("DeltaDiscoveryRequest")(type_url="what/ever")
    sent.node.id = "default.web-1"
    sent.node.metadata.update({"features": ["a"], "ipv6Enabled": True})
    sent.node.user_agent_build_version.version.major_number = 1
    sent.node.user_agent_build_version.version.minor_number = 40
    read = DeltaRequestDecoder(schema()).decode(sent.SerializeToString())
    assert read.request is None
    assert read.node is not None
    assert (read.node.id, read.node.version) == ("default.web-1", "1.40.0")
    assert read.node.metadata == {"features": ["a"], "ipv6Enabled": True}


@pytest.mark.parametrize("nonce", ["", "1", "12345", "n" * 127, "n" * 128])
def test_a_plain_ack_is_read_as_protobuf_reads_it(nonce: str):
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["listener"], response_nonce=nonce)
    read = DeltaRequestDecoder(schema()).decode(sent.SerializeToString())
    assert (read.type_url, read.request) == (TYPE_URLS["listener"], DeltaRequest("listener", nonce=nonce))


def test_an_answer_with_more_fields_is_parsed():
    sent = message("DeltaDiscoveryRequest")(type_url=TYPE_URLS["routes"], response_nonce="3")
    sent.error_detail.message = "boom"
    assert DeltaRequestDecoder(schema()).decode(sent.SerializeToString()).request == DeltaRequest(
        "routes", nonce="3", error="boom"
    )


@pytest.mark.parametrize("names", [(), ("*",), ("größe", "b" * 300)])
@pytest.mark.parametrize("versions", [{}, {"größe": "1"}])
@pytest.mark.parametrize("node_id", ["", "default.web-1"])
def test_a_subscription_is_read_as_protobuf_reads_it(names, versions, node_id):
    sent = message("DeltaDiscoveryRequest")(
        type_url=TYPE_URLS["endpoints"], resource_names_subscribe=names, initial_resource_versions=versions
    )
    if node_id:
        sent.node.id = node_id
    read = DeltaRequestDecoder(schema()).decode(sent.SerializeToString())
    assert read.request is not None
    assert (read.request.type, read.request.subscribe) == ("endpoints", names)
    assert dict(read.request.initial_versions) == versions
    assert (read.node.id if read.node else "") == node_id
