"""Messages of the sync protocol. Either side of a connection publishes objects and subscribes to the other's.

1. Both send a `SyncGreeting`: who they are, what they can read, and sums over what they hold of the other.
2. Where sums differ, the publisher asks what is held there (`EntriesWanted`), and is told (`Entries`).
3. Then it sends `Objects` in numbered batches: at first what the subscriber lacks, later what changes. Each
   is answered by an `Ack` once it is stored, which names the objects that were refused, and why.

A batch with a number that was there already is ignored; one that is not the next ends the connection.
"""

from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from koguma.model.errors import BadRequest
from koguma.model.resource import Key

PROTOCOL: Final = 1  # raised when a side must understand something new to take part at all
KINDS_MAX: Final = 1000
BUCKETS: Final = 2048  # of sums
ENTRIES_MAX: Final = 5_000  # in one message
BATCH_OBJECTS: Final = 1000
REASON_MAX: Final = 1000  # characters
CONFIG_MAX: Final = 64 * 1024  # characters
_WORD_MAX: Final = 300  # characters
_KEY_MAX: Final = 1000  # characters

# Limits are part of the types, so that a message is refused before it is more than its bytes.
_Word = Annotated[str, msgspec.Meta(max_length=_WORD_MAX)]


class HeldEntry(NamedTuple):
    """An object that is held, and the hash of its content."""

    key: Key
    hash: bytes


class SyncedObject(NamedTuple):
    """An object on its way: its content is the JSON of a resource as the subscriber stores it."""

    key: Key
    content: bytes


class Refusal(NamedTuple):
    """An object that the subscriber did not store, in the version with this hash."""

    key: Key
    hash: bytes
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)]


class SyncGreeting(msgspec.Struct, frozen=True, kw_only=True, tag="greeting"):
    """The first message of either side."""

    protocol: int = PROTOCOL
    name: _Word  # of the zone; empty for Global
    version: _Word  # of the software
    instance: _Word
    source: _Word  # identifies the store that objects come from
    revision: int  # of that store
    kinds: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=KINDS_MAX)]  # that it can read
    sums: bytes  # over what it holds of the other side
    # Settings of a zone's control plane as JSON, secrets masked.
    config: Annotated[str, msgspec.Meta(max_length=CONFIG_MAX)] = ""


class EntriesWanted(msgspec.Struct, frozen=True, tag="entries wanted"):
    """The publisher asks what is held in these buckets."""

    buckets: Annotated[tuple[int, ...], msgspec.Meta(max_length=BUCKETS)]


class Entries(msgspec.Struct, frozen=True, tag="entries"):
    """What is held in the buckets that were asked for; in several messages if that is much."""

    entries: Annotated[tuple[HeldEntry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    is_last: bool


class Objects(msgspec.Struct, frozen=True, tag="objects"):
    """A batch of objects that are new or changed, and of keys that are gone."""

    number: int  # 1, 2, 3 on one connection
    objects: Annotated[tuple[SyncedObject, ...], msgspec.Meta(max_length=BATCH_OBJECTS)] = ()
    removed: Annotated[tuple[Key, ...], msgspec.Meta(max_length=BATCH_OBJECTS)] = ()
    is_comparison: bool = False  # it follows from comparing what both have, not from a change
    revision: int = 0  # of the store that it comes from


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The batch of this number, and all before it, are stored but for what was refused."""

    number: int
    refused: Annotated[tuple[Refusal, ...], msgspec.Meta(max_length=BATCH_OBJECTS)] = ()


Message = SyncGreeting | EntriesWanted | Entries | Objects | Ack

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


class BrokenProtocol(BadRequest):
    """The other side sent what it may not send now; the connection ends."""


def encoded(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decoded(data: bytes) -> Message:
    """The message in these bytes; BrokenProtocol if there is none."""
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BrokenProtocol(f"this is no message of the sync protocol: {error}") from None
    if any(sum(map(len, key)) > _KEY_MAX for key in _keys(message)):
        raise BrokenProtocol(
            f"this is no message of the sync protocol: a key has more than {_KEY_MAX} characters"
        )
    return message


def _keys(message: Message) -> Iterator[Key]:
    match message:
        case Entries():
            yield from (each.key for each in message.entries)
        case Objects():
            yield from (each.key for each in message.objects)
            yield from message.removed
        case Ack():
            yield from (each.key for each in message.refused)
        case _:
            return
