"""Protobuf bodies: what a Kubernetes client wrote in protobuf, as the document that JSON would give.

kubectl since 1.32, Helm and Go controllers write the kinds that their libraries know in protobuf, and do not
try again in JSON when that is refused. The body is four marking bytes and an envelope that names the kind;
`protobuf_tables` says which number is which field. What a table does not name is skipped, as protobuf wants
it, so that newer clients may send more than we know.
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import Final

from koguma.kube.protobuf_tables import DELETE_OPTIONS, ENVELOPE, KINDS, Field, Message, Plain, Shape
from koguma.model import documents
from koguma.model.errors import BadRequest, TooLarge, UnsupportedMedia
from koguma.model.schema import Json

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\x00"
SIZE_MAX: Final = 3 * 1024 * 1024
# Each costs some microseconds; an object of Kubernetes' own kinds that is not built to annoy has far fewer.
FIELDS_MAX: Final = 100_000
GROUP_DEPTH_MAX: Final = 32

_VARINT_LENGTH_MAX: Final = 10
_MORE: Final = 0x80  # the bit that says: another byte follows
_NUMBER_MAX: Final = (1 << 29) - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
_NANOS_MAX: Final = 999_999_999

_TIMESTAMP: Final[Message] = {1: Field("seconds", Plain.INT64), 2: Field("nanos", Plain.INT32)}
_INT_OR_STRING: Final[Message] = {
    1: Field("type", Plain.INT64),
    2: Field("intVal", Plain.INT32, Shape.KEPT),
    3: Field("strVal", Plain.TEXT, Shape.KEPT),
}
_WRAPPED_LIST: Final[Message] = {1: Field("items", shape=Shape.MANY)}
_WRAPPED_BYTES: Final[Message] = {1: Field("raw", Plain.RAW)}


class _Wire(IntEnum):
    """The form of a value, in the three lowest bits of what stands before it."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    GROUP = 3
    GROUP_END = 4
    FIXED32 = 5


def decode(data: bytes) -> Json:
    """The document of a request body: `apiVersion`, `kind`, and the fields of its kind."""
    if len(data) > SIZE_MAX:
        raise TooLarge(f"a protobuf body has at most {SIZE_MAX} bytes, this one {len(data)}")
    if not data.startswith(MAGIC):
        raise BadRequest('this is not Kubernetes\' protobuf: the body does not begin with "k8s" and a zero')
    reader = _Reader()
    envelope = reader.message(data[len(MAGIC) :], ENVELOPE)
    names = envelope.get("typeMeta", {})
    table = _table(names.get("apiVersion", ""), names.get("kind", ""))
    _check_content(envelope)
    return {**names, **reader.message(envelope.get("raw", b""), table)}


def message(data: bytes, table: Message) -> Json:
    """One bare message as JSON would give it."""
    return _Reader().message(data, table)


def _table(api_version: str, kind: str) -> Message:
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


class _Reader:
    """Reads messages of one body, and counts fields over all of them."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def message(self, data: bytes, table: Message, path: str = "", onto: Json = None) -> Json:
        """The fields of a message; where it stands for the second time, laid onto the first."""
        found: dict[str, Json] = {} if onto is None else onto
        for number, value in self._fields(data):
            field = table.get(number)
            if field is not None:
                self._put(found, field, value, f"{path}.{field.name}" if path else field.name)
        return found

    def _put(self, found: dict[str, Json], field: Field, value: int | bytes | None, path: str) -> None:
        match field.shape:
            case Shape.MANY:
                found.setdefault(field.name, []).append(self._value(field, value, path, None))
            case Shape.MAP:
                assert isinstance(field.type, Plain)
                entry = self.message(_bytes(value, path), _entry(field.type), path)
                under = entry["value"] if "value" in entry else self._plain(field.type, b"", path)
                found.setdefault(field.name, {})[entry.get("key", "")] = under
            case _:
                made = self._value(field, value, path, found.get(field.name))
                if made is None or (field.shape is Shape.ONE and made in ("", 0, b"")):
                    found.pop(field.name, None)
                else:
                    found[field.name] = made

    def _value(self, field: Field, value: int | bytes | None, path: str, onto: Json) -> Json:
        if isinstance(field.type, Plain):
            return self._plain(field.type, value, path)
        return self.message(_bytes(value, path), field.type, path, onto)

    def _plain(self, plain: Plain, value: int | bytes | None, path: str) -> Json:
        match plain:
            case Plain.BOOL:
                return _int(value, path) != 0
            case Plain.INT32:
                return _signed(_int(value, path), 32)
            case Plain.INT64:
                return _signed(_int(value, path), 64)
            case Plain.TEXT:
                return _text(_bytes(value, path), path)
            case Plain.RAW:
                return _bytes(value, path)
            case Plain.BYTES:
                return base64.b64encode(_bytes(value, path)).decode()
            case _:
                return self._wrapped(plain, _bytes(value, path), path)

    def _wrapped(self, plain: Plain, data: bytes, path: str) -> Json:
        """A message that is no object in JSON; None where it is empty and JSON has nothing."""
        match plain:
            case Plain.TEXTS:
                return self.message(data, _WRAPPED_LIST, path).get("items", [])
            case Plain.JSON:
                raw = self.message(data, _WRAPPED_BYTES, path).get("raw")
                return None if raw is None else documents.load_json(raw, path)
            case Plain.INT_OR_STRING:
                return _int_or_string(self.message(data, _INT_OR_STRING, path), path)
            case _:
                is_exact = plain is Plain.MICRO_TIME
                return _time(self.message(data, _TIMESTAMP, path), path, is_exact=is_exact) if data else None

    def _fields(self, data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
        """Numbers and values; a value of a form that none of our fields has is None."""
        at = 0
        while at < len(data):
            number, wire, at = self._tag(data, at)
            if wire == _Wire.VARINT:
                value, at = _varint(data, at)
                yield number, value
            elif wire == _Wire.LENGTH:
                length, at = _varint(data, at)
                start, at = at, _advanced(data, at, length)
                yield number, data[start:at]
            else:
                at = self._skipped(data, number, wire, at)
                yield number, None

    def _tag(self, data: bytes, at: int) -> tuple[int, int, int]:
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"a protobuf body has at most {FIELDS_MAX} fields; send this object as JSON")
        tag, at = _varint(data, at)
        if not 1 <= tag >> 3 <= _NUMBER_MAX:
            raise BadRequest(f"the protobuf body is broken: there is no field number {tag >> 3}")
        return tag >> 3, tag & 7, at

    def _skipped(self, data: bytes, number: int, wire: int, at: int) -> int:
        """Where the reader stands after a value of a form that we only skip."""
        open_groups: list[int] = []
        while True:
            match wire:
                case _Wire.VARINT:
                    _, at = _varint(data, at)
                case _Wire.FIXED64:
                    at = _advanced(data, at, 8)
                case _Wire.LENGTH:
                    length, at = _varint(data, at)
                    at = _advanced(data, at, length)
                case _Wire.GROUP if len(open_groups) < GROUP_DEPTH_MAX:
                    open_groups.append(number)
                case _Wire.GROUP_END if open_groups and open_groups[-1] == number:
                    open_groups.pop()
                case _Wire.FIXED32:
                    at = _advanced(data, at, 4)
                case _:
                    raise BadRequest(f"the protobuf body is broken: field {number} has an impossible form")
            if not open_groups:
                return at
            number, wire, at = self._tag(data, at)


@cache
def _entry(plain: Plain) -> Message:
    """A map's entry is a message of its own."""
    return {1: Field("key"), 2: Field("value", plain, Shape.KEPT)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _VARINT_LENGTH_MAX]):
        value |= (byte & ~_MORE) << (7 * index)
        if byte < _MORE:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise BadRequest("the protobuf body is broken: a number does not end")


def _advanced(data: bytes, at: int, length: int) -> int:
    if length > len(data) - at:
        raise BadRequest(
            f"the protobuf body is broken: {length} bytes should follow, and there are {len(data) - at}"
        )
    return at + length


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


def _text(data: bytes, path: str) -> str:
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
