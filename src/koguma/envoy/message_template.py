"""Message template: a message that is the same for many proxies but for a few texts, encoded once.

A template is made of an encoded message with placeholders, texts that occur nowhere else. Filling it puts the
proxy's own texts in their place and serializes the message again. The bytes are those that encoding the same
data would give, without building and checking what all proxies share.

Only texts can be filled in, and Envoy's rules are not checked for them: a text has to be of the same sort as
its placeholder, a name for a name.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from operator import setitem
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from koguma.envoy.schema import Schema

_ANY: Final = "google.protobuf.Any"

Setter = Callable[[Any], None]


class MessageTemplate:
    """A message with placeholders. Filling it writes to it, so it is for one thread."""

    def __init__(self, schema: Schema, full_name: str, body: bytes, placeholders: Collection[str]) -> None:
        self._schema = schema
        self._placeholders = placeholders
        self._message = schema.message_class(full_name).FromString(body)
        self._slots: list[tuple[Setter, str]] = []  # with the text there, which has placeholders in it
        self._packed: list[tuple[Any, MessageTemplate]] = []  # messages inside Any that have slots too
        self._find(self._message)

    @property
    def has_slots(self) -> bool:
        """Whether there is anything to fill in."""
        return bool(self._slots or self._packed)

    def filled(self, texts: Mapping[str, str]) -> bytes:
        """The encoded message with these texts in place of their placeholders."""
        for set_, text in self._slots:
            set_(_replaced(text, texts))
        for any_, inner in self._packed:
            any_.value = inner.filled(texts)
        return self._message.SerializeToString(deterministic=True)

    def _find(self, message: Message) -> None:
        """Find the slots in a message and in all that it contains."""
        if message.DESCRIPTOR.full_name == _ANY:
            self._unpack(message)
            return
        for field, value in message.ListFields():
            for set_, item in _items(message, field, value):
                if isinstance(item, Message):
                    self._find(item)
                elif isinstance(item, str) and any(text in item for text in self._placeholders):
                    self._slots.append((set_, item))

    def _unpack(self, any_: Any) -> None:
        full_name = self._schema.resolve(any_.type_url).DESCRIPTOR.full_name
        inner = MessageTemplate(self._schema, full_name, any_.value, self._placeholders)
        if inner.has_slots:
            self._packed.append((any_, inner))


def _replaced(text: str, texts: Mapping[str, str]) -> str:
    """A text with others in place of their placeholders."""
    if text in texts:
        return texts[text]
    for placeholder, own in texts.items():
        text = text.replace(placeholder, own)
    return text


def _items(message: Message, field: FieldDescriptor, value: Any) -> Iterator[tuple[Setter, Any]]:
    """The values of a field, each with a function that sets another value there."""
    entry = field.message_type
    if not field.is_repeated:
        yield partial(setattr, message, field.name), value
    elif entry is not None and entry.GetOptions().map_entry:
        for key in value:
            yield partial(setitem, value, key), value[key]
    else:
        for index, item in enumerate(value):
            yield partial(setitem, value, index), item
