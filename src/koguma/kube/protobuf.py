"""Protobuf bodies: what a Kubernetes client wrote in protobuf, as the document that JSON would give.

kubectl since 1.32, Helm and Go controllers write the kinds that their libraries know in protobuf, and do not
try again in JSON when that is refused. The body is the four bytes of `MAGIC` and an envelope that names the
kind; `protobuf_tables` says which number is which field. What a table does not name is skipped, as protobuf
wants it, so that newer clients may send more than we know.
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final

from koguma.kube.protobuf_tables import (
    DELETE_OPTIONS,
    ENVELOPE,
    KINDS,
    FieldLabel,
    ProtobufField,
    ProtobufMessage,
    ProtobufType,
)
from koguma.model import documents, protobuf_wire
from koguma.model.errors import BadRequest, TooLarge, UnsupportedMedia
from koguma.model.protobuf_wire import WireError, WireType
from koguma.model.schema import Json

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\x00"
SIZE_MAX: Final = 3 * 1024 * 1024
# Each costs some microseconds; an object of Kubernetes' own kinds that is not built to annoy has far fewer.
FIELDS_MAX: Final = 100_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
_NANOS_MAX: Final = 999_999_999

_TIMESTAMP: Final[ProtobufMessage] = {
    1: ProtobufField("seconds", ProtobufType.INT64),
    2: ProtobufField("nanos", ProtobufType.INT32),
}
_INT_OR_STRING: Final[ProtobufMessage] = {
    1: ProtobufField("type", ProtobufType.INT64),
    2: ProtobufField("intVal", ProtobufType.INT32, FieldLabel.EXPLICIT),
    3: ProtobufField("strVal", ProtobufType.STRING, FieldLabel.EXPLICIT),
}
_WRAPPED_TEXT: Final[ProtobufMessage] = {1: ProtobufField("text")}
_WRAPPED_LIST: Final[ProtobufMessage] = {1: ProtobufField("items", label=FieldLabel.REPEATED)}
_WRAPPED_BYTES: Final[ProtobufMessage] = {1: ProtobufField("raw", ProtobufType.BYTES)}


def decode(data: bytes) -> Json:
    """The document of a request body: `apiVersion`, `kind`, and the fields of its kind."""
    if len(data) > SIZE_MAX:
        raise TooLarge(f"a protobuf body has at most {SIZE_MAX} bytes, this one {len(data)}")
    if not data.startswith(MAGIC):
        raise BadRequest('this is not Kubernetes\' protobuf: the body does not begin with "k8s" and a zero')
    reader = _BodyReader()
    envelope = reader.message(data[len(MAGIC) :], ENVELOPE)
    type_meta = envelope.get("typeMeta", {})
    table = _table(type_meta.get("apiVersion", ""), type_meta.get("kind", ""))
    _check_content(envelope)
    return {**type_meta, **reader.message(envelope.get("raw", b""), table)}


def message(data: bytes, table: ProtobufMessage) -> Json:
    """One bare message as JSON would give it."""
    return _BodyReader().message(data, table)


def _table(api_version: str, kind: str) -> ProtobufMessage:
    if not kind or not api_version:
        raise BadRequest("the protobuf envelope does not name an apiVersion and a kind")
    if kind == "DeleteOptions":  # each group has it, under its own version
        return DELETE_OPTIONS
    table = KINDS.get((api_version, kind))
    if table is None:
        known = ", ".join(sorted({name for _, name in KINDS} | {"DeleteOptions"}))
        raise UnsupportedMedia(
            f'{kind} of {api_version} is not read in protobuf, only {known}; send it as "application/json"'
        )
    return table


def _check_content(envelope: Json) -> None:
    if encoding := envelope.get("contentEncoding"):
        raise UnsupportedMedia(f'the protobuf envelope has the content encoding "{encoding}"; send it plain')
    content = envelope.get("contentType", "")
    if content not in ("", MEDIA_TYPE, "application/protobuf"):
        raise UnsupportedMedia(f'the protobuf envelope holds "{content}"; send that without the envelope')


class _BodyReader:
    """Reads the messages of one body, and counts the fields of all of them."""

    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def message(self, data: bytes, table: ProtobufMessage, path: str = "", onto: Json = None) -> Json:
        """The fields of a message; one that occurs for the second time is merged into the first."""
        document: dict[str, Json] = {} if onto is None else onto
        for number, value in self._fields(data):
            field = table.get(number)
            if field is not None:
                self._put(document, field, value, f"{path}.{field.name}" if path else field.name)
        return document

    def _put(
        self, document: dict[str, Json], field: ProtobufField, value: int | bytes | None, path: str
    ) -> None:
        match field.label:
            case FieldLabel.REPEATED:
                document.setdefault(field.name, []).append(self._value(field, value, path, None))
            case FieldLabel.MAP:
                assert isinstance(field.type, ProtobufType)
                entry = self.message(_bytes(value, path), _map_entry(field.type), path)
                member = entry["value"] if "value" in entry else self._scalar(field.type, b"", path)
                document.setdefault(field.name, {})[entry.get("key", "")] = member
            case label:
                read = self._value(field, value, path, document.get(field.name))
                if read is None or (label is FieldLabel.IMPLICIT and read in ("", 0, b"")):
                    document.pop(field.name, None)
                else:
                    document[field.name] = read

    def _value(self, field: ProtobufField, value: int | bytes | None, path: str, onto: Json) -> Json:
        if isinstance(field.type, ProtobufType):
            return self._scalar(field.type, value, path)
        return self.message(_bytes(value, path), field.type, path, onto)

    def _scalar(self, type_: ProtobufType, value: int | bytes | None, path: str) -> Json:
        match type_:
            case ProtobufType.BOOL:
                return _int(value, path) != 0
            case ProtobufType.INT32:
                return _signed(_int(value, path), 32)
            case ProtobufType.INT64:
                return _signed(_int(value, path), 64)
            case ProtobufType.STRING:
                return _string(_bytes(value, path), path)
            case ProtobufType.BYTES:
                return _bytes(value, path)
            case ProtobufType.BASE64:
                return base64.b64encode(_bytes(value, path)).decode()
            case _:
                return self._unwrapped(type_, _bytes(value, path), path)

    def _unwrapped(self, type_: ProtobufType, data: bytes, path: str) -> Json:
        """A message that is no object in JSON; None where it is empty and JSON has nothing."""
        match type_:
            case ProtobufType.STRING_LIST:
                return self.message(data, _WRAPPED_LIST, path).get("items", [])
            case ProtobufType.JSON:
                raw = self.message(data, _WRAPPED_BYTES, path).get("raw")
                return None if raw is None else documents.load_json(raw, path)
            case ProtobufType.QUANTITY:
                return self.message(data, _WRAPPED_TEXT, path).get("text", "0")
            case ProtobufType.INT_OR_STRING:
                return _int_or_string(self.message(data, _INT_OR_STRING, path), path)
            case _:
                is_exact = type_ is ProtobufType.MICRO_TIME
                return _time(self.message(data, _TIMESTAMP, path), path, is_exact=is_exact) if data else None

    def _fields(self, data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
        """Numbers and values; a value of a wire type that none of our fields has is None."""
        try:
            for number, wire_type, start, end, varint, is_in_group in protobuf_wire.fields(data):
                self._fields_left -= 1
                if self._fields_left < 0:
                    raise TooLarge(
                        f"a protobuf body has at most {FIELDS_MAX} fields; send this object as JSON"
                    )
                if is_in_group:
                    continue
                if wire_type == WireType.VARINT:
                    yield number, varint
                else:
                    yield number, data[start:end] if wire_type == WireType.LEN else None
        except WireError as error:
            raise BadRequest(f"the protobuf body is broken: {error}") from None


@cache
def _map_entry(type_: ProtobufType) -> ProtobufMessage:
    """A map's entry is a message of its own."""
    return {1: ProtobufField("key"), 2: ProtobufField("value", type_, FieldLabel.EXPLICIT)}


def _signed(value: int, bits: int) -> int:
    """Two's complement; a 32-bit number is its lower half, as protobuf's own readers take it."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _int(value: int | bytes | None, path: str) -> int:
    if not isinstance(value, int):
        raise BadRequest(f"{path} of the protobuf body should be a number")
    return value


def _bytes(value: int | bytes | None, path: str) -> bytes:
    if not isinstance(value, bytes):
        raise BadRequest(f"{path} of the protobuf body should be text, bytes or a message")
    return value


def _string(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{path} of the protobuf body is not UTF-8") from None


def _int_or_string(parts: Json, path: str) -> int | str:
    match parts.get("type", 0):
        case 0:
            return int(parts.get("intVal", 0))
        case 1:
            return str(parts.get("strVal", ""))
        case other:
            raise BadRequest(f"{path} of the protobuf body is neither a number nor text, but {other}")


def _time(parts: Json, path: str, *, is_exact: bool) -> str:
    """RFC 3339 in UTC. Kubernetes reads its ordinary times to the second, whatever was sent."""
    seconds, nanos = parts.get("seconds", 0), parts.get("nanos", 0)
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos <= _NANOS_MAX):
        raise BadRequest(f"{path} of the protobuf body is no time between the years 1 and 9999")
    micros = nanos // 1000 if is_exact else 0
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=micros)
    text = moment.isoformat(timespec="microseconds" if is_exact else "seconds")
    return text.replace("+00:00", "Z")
