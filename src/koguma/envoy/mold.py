"""Mold: a message that many have alike but for a few texts of their own; encoded once, and filled for each.

A mold is made of bytes with marks in them, texts that stand nowhere else. To fill it is to put texts in the
places of the marks and to write the message again. That gives the bytes that encoding the same data would
give, without building and checking all that is alike.

Only texts can be filled in, and no rule of Envoy is checked for them: they have to be such as the marks
stand for, a name for a name.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from operator import setitem
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from koguma.envoy.schema import Schema

_ANY: Final = "google.protobuf.Any"

Put = Callable[[Any], None]


class Mold:
    """A message with places for texts. It is written to while it is filled: for one thread."""

    def __init__(self, schema: Schema, full_name: str, body: bytes, marks: Collection[str]) -> None:
        self._schema = schema
        self._marks = marks
        self._message = schema.message_class(full_name).FromString(body)
        self._places: list[tuple[Put, str]] = []  # with the text that stands there, a mark or more
        self._packed: list[tuple[Any, Mold]] = []  # messages of any type that have places too
        self._find(self._message)

    @property
    def has_places(self) -> bool:
        """Whether there is anything to fill in."""
        return bool(self._places or self._packed)

    def filled(self, texts: Mapping[str, str]) -> bytes:
        """The bytes with these texts in the places of their marks."""
        for put, text in self._places:
            put(_replaced(text, texts))
        for any_, inner in self._packed:
            any_.value = inner.filled(texts)
        return self._message.SerializeToString(deterministic=True)

    def _find(self, message: Message) -> None:
        """Find the places in a message and all that it contains."""
        if message.DESCRIPTOR.full_name == _ANY:
            self._unpack(message)
            return
        for field, value in message.ListFields():
            for put, item in _items(message, field, value):
                if isinstance(item, Message):
                    self._find(item)
                elif isinstance(item, str) and any(mark in item for mark in self._marks):
                    self._places.append((put, item))

    def _unpack(self, any_: Any) -> None:
        full_name = self._schema.resolve(any_.type_url).DESCRIPTOR.full_name
        inner = Mold(self._schema, full_name, any_.value, self._marks)
        if inner.has_places:
            self._packed.append((any_, inner))


def _replaced(text: str, texts: Mapping[str, str]) -> str:
    """A text with others in the places of their marks."""
    if text in texts:
        return texts[text]
    for mark, own in texts.items():
        text = text.replace(mark, own)
    return text


def _items(message: Message, field: FieldDescriptor, value: Any) -> Iterator[tuple[Put, Any]]:
    """What a field contains, each with how to write something else there."""
    entry = field.message_type
    if not field.is_repeated:
        yield partial(setattr, message, field.name), value
    elif entry is not None and entry.GetOptions().map_entry:
        for key in value:
            yield partial(setitem, value, key), value[key]
    else:
        for index, item in enumerate(value):
            yield partial(setitem, value, index), item
