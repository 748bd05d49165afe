"""The wire format by hand is the one that protobuf's own library writes and reads."""

import pytest
from google.protobuf import descriptor_pb2, struct_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import protobuf_wire
from koguma.model.protobuf_wire import WireError, WireType, tag, varint

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 127, 128, 2**14, 2**32, 2**63 - 1])


@given(NUMBERS)
def test_a_number_is_written_as_the_library_writes_it_and_read_back(number):
    written = wrappers_pb2.Int64Value(value=number).SerializeToString()
    assert (protobuf_wire.varint_field(1, number) if number else b"") == written
    assert protobuf_wire.read_varint(varint(number), 0, 10) == (number % 2**64, len(varint(number)))


@given(st.text(), st.binary(max_size=300), st.floats(allow_nan=False))
def test_texts_bytes_and_doubles_are_written_as_the_library_writes_them(text, data, double):
    assert wrappers_pb2.StringValue.FromString(protobuf_wire.string_field(1, text)).value == text
    assert wrappers_pb2.BytesValue.FromString(protobuf_wire.bytes_field(1, data)).value == data
    assert protobuf_wire.len_head(1, len(data)) + data == protobuf_wire.bytes_field(1, data)
    assert wrappers_pb2.DoubleValue.FromString(protobuf_wire.double_field(1, double)).value == double


def test_the_fields_of_a_message_are_found_with_their_places():
    message = descriptor_pb2.FieldDescriptorProto(name="some", number=300, json_name="x" * 200)
    data = message.SerializeToString()
    found = {field.number: field for field in protobuf_wire.fields(data)}
    assert found[3].varint == 300
    assert data[found[1].start : found[1].end] == b"some"
    assert data[found[10].start : found[10].end] == b"x" * 200
    value = struct_pb2.Value(number_value=1.5).SerializeToString()
    [double] = protobuf_wire.fields(value)
    assert (double.number, double.wire_type, double.end - double.start) == (2, WireType.I64, 8)


def test_what_is_in_a_group_is_marked():
    inner = protobuf_wire.varint_field(1, 5)
    data = tag(7, WireType.SGROUP) + inner + tag(7, WireType.EGROUP) + inner
    assert [(field.number, field.is_in_group) for field in protobuf_wire.fields(data)] == [
        (7, False),
        (1, True),
        (7, True),
        (1, False),
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a", "a number does not end"),
        (b"\xff" * 11, "a number does not end"),
        (b"\x0a\x05abc", "5 bytes should follow, and there are 3"),
        (tag(1, WireType.I32) + b"abc", "4 bytes should follow, and there are 3"),
        (b"\x00\x00", "there is no field number 0"),
        (b"\x0e", "field 1 has an impossible form"),
        (tag(1, WireType.EGROUP), "field 1 has an impossible form"),
        (tag(1, WireType.SGROUP) * 33, "field 1 has an impossible form"),
        (tag(1, WireType.SGROUP), "a number does not end"),
    ],
)
def test_what_is_no_message_is_named(data, problem):
    with pytest.raises(WireError, match=problem):
        list(protobuf_wire.fields(data))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    try:
        fields = list(protobuf_wire.fields(data))
    except WireError:
        return
    assert all(field.start <= field.end <= len(data) for field in fields)
