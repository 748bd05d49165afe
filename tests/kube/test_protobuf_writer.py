"""Protobuf answers: what is written is what a client reads, alone, in lists and in watches."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import protobuf, protobuf_writer
from koguma.kube.protobuf_tables import KINDS, LIST_META, MESSAGES, ProtobufField, ProtobufType
from koguma.model.protobuf_wire import WireType, fields
from tests.kube.test_protobuf import CLASSES, KUBECTL, OBJECTS, values

DOCUMENTS = [sent["document"] for sent in KUBECTL] + [
    {"apiVersion": version, "kind": kind, **document}
    for version, kind, _, document in OBJECTS
    if (version, kind) in KINDS
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=2), below, max_size=2),
    max_leaves=4,
)


def content(data: bytes) -> dict[int, list[bytes]]:
    """The fields of a message that have a length, by number."""
    found: dict[int, list[bytes]] = {}
    for field in fields(data):
        assert field.wire_type == WireType.LEN
        found.setdefault(field.number, []).append(data[field.start : field.end])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=[document["kind"] for document in DOCUMENTS])
def test_what_is_written_is_read_again(document):
    assert protobuf.decode(protobuf_writer.encoded(document)) == document


@pytest.mark.property
@given(st.data())
def test_what_is_written_is_what_protobufs_own_library_reads(data):
    key = data.draw(st.sampled_from(sorted(KINDS)))
    _, document = data.draw(values(KINDS[key]))
    whole = {"apiVersion": key[0], "kind": key[1], **document}
    written = protobuf_writer.encoded(whole)
    (raw,) = content(written[len(protobuf.MAGIC) :])[2]
    by_library = CLASSES[key].FromString(raw).SerializeToString()  # it knows all fields, and moves none
    assert protobuf.message(by_library, KINDS[key]) == document
    assert protobuf.decode(written) == whole


def test_a_list_has_its_metadata_and_its_items():
    configs = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": name}}
        for name in ("one", "two")
    ]
    items = [protobuf_writer.encoded(each) for each in configs]
    meta = {"resourceVersion": "7", "continue": "token", "remainingItemCount": 0}
    written = b"".join(protobuf_writer.encoded_list("v1", "ConfigMap", meta, items))
    envelope = content(written[len(protobuf.MAGIC) :])
    assert content(envelope[1][0]) == {1: [b"v1"], 2: [b"ConfigMapList"]}
    whole = content(envelope[2][0])
    assert protobuf.message(whole[1][0], LIST_META) == meta
    table = KINDS["v1", "ConfigMap"]
    type_ = {"apiVersion": "v1", "kind": "ConfigMap"}
    assert [{**type_, **protobuf.message(item, table)} for item in whole[2]] == configs


def test_an_event_comes_after_its_length():
    status = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "message": "gone", "code": 410}
    event = protobuf_writer.watch_event("ERROR", protobuf_writer.encoded(status))
    assert int.from_bytes(event[:4], "big") == len(event) - 4
    parts = content(event[4:])
    assert parts[1] == [b"ERROR"]
    (embedded,) = content(parts[2][0])[1]
    envelope = content(embedded[len(protobuf.MAGIC) :])
    decoded = protobuf.message(envelope[2][0], MESSAGES["v1", "Status"])
    assert decoded == {"metadata": {}, "message": "gone", "code": 410}


def test_every_type_of_value_can_be_written():
    assert set(protobuf_writer._SCALARS) == set(ProtobufType)


@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_whatever_is_stored_is_written(key, data):
    """A value that does not fit its field is left out."""
    document = {"apiVersion": key[0], "kind": key[1]}
    for field in MESSAGES[key].values():
        document[field.name] = data.draw(JSON_VALUES)
        if isinstance(field.type, dict):
            document[field.name] = {part.name: data.draw(JSON_VALUES) for part in field.type.values()}
    before = copy.deepcopy(document)
    assert protobuf_writer.encoded(document).startswith(protobuf.MAGIC)
    assert document == before


def test_a_port_is_a_number_or_text():
    table = {1: ProtobufField("port", ProtobufType.INT_OR_STRING)}
    for value in (80, "http"):
        assert protobuf.message(protobuf_writer.message({"port": value}, table), table) == {"port": value}
