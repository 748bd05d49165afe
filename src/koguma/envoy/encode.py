"""Encode: plain Envoy data to the bytes that Envoy reads, and back.

`tables` does the work, with one table per message type. Plain data becomes a resource with a version, or the
bytes of any message. Equal data gives equal bytes on every control plane.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from google.protobuf import json_format
from google.protobuf.message import EncodeError, Message

from koguma.envoy.conversion import ConversionError
from koguma.envoy.schema import Schema
from koguma.envoy.sensitive import SensitiveFields
from koguma.envoy.snapshot import TYPE_URLS, Id, XdsResource, version_of
from koguma.envoy.tables import Tables
from koguma.model import violation
from koguma.model.schema import Json
from koguma.model.violation import Violation

_json: Final = msgspec.json.Encoder()


class Unencodable(ValueError):
    """Data that Envoy would reject: all violations, with paths."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(
            "; ".join(f"{v.field}: {v.message}" if v.field else v.message for v in self.violations)
        )


class Encoder:
    """Turns plain data into bytes with the messages of one Envoy."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._tables = Tables(schema)
        self._sensitive = SensitiveFields(schema)
        # Shared resources, for as long as a snapshot holds them.
        self._known: WeakValueDictionary[bytes, XdsResource] = WeakValueDictionary()

    def resource(self, type: str, name: str, data: Json, needs: Iterable[Id] = ()) -> XdsResource:  # noqa: A002 - as the field is called
        """An encoded resource; `type` is one of `TYPES`. Raises `Unencodable`."""
        body = self.message(TYPE_URLS[type].rpartition("/")[2], data)
        return XdsResource(type, name, version_of(body), body, tuple(needs))

    def shared(self, type: str, name: str, data: Json, needs: Iterable[Id] = ()) -> XdsResource:  # noqa: A002 - as above
        """The same, but equal data is encoded once and is one object, for as long as somebody holds it."""
        needed = tuple(needs)
        try:
            text = _json.encode((type, name, needed, data))
        except (
            TypeError,
            ValueError,
            OverflowError,
        ):  # encoding it will report what is wrong
            return self.resource(type, name, data, needed)
        key = hashlib.blake2b(text, digest_size=16).digest()
        resource = self._known.get(key)
        if resource is None:
            resource = self._known[key] = self.resource(type, name, data, needed)
        return resource

    def message(self, full_name: str, data: Json) -> bytes:
        """Any message by its full name, encoded; equal data gives equal bytes."""
        pack = self._tables.pack(full_name)
        try:
            return pack(data)
        except ConversionError as error:
            raise Unencodable(error.violations) from None
        except RecursionError:
            raise Unencodable((Violation("", "is nested too deeply", "depth"),)) from None
        except (ValueError, TypeError, OverflowError, EncodeError) as error:
            broken = tuple(_broken_texts(data, "")) or (Violation("", str(error), "protobuf"),)
            raise Unencodable(broken) from error

    def decoded(self, resource: XdsResource) -> dict[str, Any]:
        """The plain data of a resource with the field names of protos, and with its secrets."""
        return self._plain(self._read(resource), json_names=False)

    def shown(self, resource: XdsResource, *, json_names: bool = True) -> dict[str, Any]:
        """The same for people: with JSON names (camelCase), and with sensitive fields hidden."""
        message = self._read(resource)
        self._sensitive.mask(message)
        return self._plain(message, json_names=json_names)

    def _read(self, resource: XdsResource) -> Message:
        return self.schema.resolve(TYPE_URLS[resource.type]).FromString(resource.body)

    def _plain(self, message: Message, *, json_names: bool) -> dict[str, Any]:
        return dict(
            json_format.MessageToDict(
                message, preserving_proto_field_name=not json_names, descriptor_pool=self.schema.pool
            )
        )


def _broken_texts(data: Json, path: str) -> Iterator[Violation]:
    """Texts that cannot be encoded as UTF-8; searched only after protobuf has refused the data."""
    if isinstance(data, str):
        try:
            data.encode()
        except UnicodeEncodeError:
            yield Violation(path, "contains half of a surrogate pair", "text")
    elif isinstance(data, Mapping):
        for name, value in data.items():
            yield from _broken_texts(value, violation.child(path, str(name)))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _broken_texts(value, violation.item(path, index))
