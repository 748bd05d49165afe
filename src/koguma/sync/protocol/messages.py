"""Messages of the sync protocol. Either side of a connection publishes objects and subscribes to the other's.

1. Both send a `SyncGreeting`: who they are, what they can read, and sums over what they hold of the other.
2. Where sums differ, the publisher asks what is held there (`EntriesWanted`), and is told (`Entries`).
3. Then it sends `Objects` in numbered batches: at first what the subscriber lacks, later what changes. Each
   is answered by an `Ack` once it is stored, which names the objects that were refused, and why.

A batch with a number that was there already is ignored; one that is not the next ends the connection.
"""

from typing import Final, NamedTuple

import msgspec

from koguma.model.errors import BadRequest
from koguma.model.resource import Key

PROTOCOL: Final = 1  # raised when a side must understand something new to take part at all
KINDS_MAX: Final = 1000
ENTRIES_MAX: Final = 5_000  # in one message
REASON_MAX: Final = 1000  # characters


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
    reason: str


class SyncGreeting(msgspec.Struct, frozen=True, kw_only=True, tag="greeting"):
    """The first message of either side."""

    protocol: int = PROTOCOL
    name: str  # of the zone; empty for Global
    version: str  # of the software
    instance: str
    source: str  # identifies the store that objects come from
    revision: int  # of that store
    kinds: tuple[str, ...]  # that it can read
    sums: bytes  # over what it holds of the other side


class EntriesWanted(msgspec.Struct, frozen=True, tag="entries wanted"):
    """The publisher asks what is held in these buckets."""

    buckets: tuple[int, ...]


class Entries(msgspec.Struct, frozen=True, tag="entries"):
    """What is held in the buckets that were asked for; in several messages if that is much."""

    entries: tuple[HeldEntry, ...]
    is_last: bool


class Objects(msgspec.Struct, frozen=True, tag="objects"):
    """A batch of objects that are new or changed, and of keys that are gone."""

    number: int  # 1, 2, 3 on one connection
    objects: tuple[SyncedObject, ...] = ()
    removed: tuple[Key, ...] = ()
    is_comparison: bool = False  # it follows from comparing what both have, not from a change


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The batch of this number, and all before it, are stored but for what was refused."""

    number: int
    refused: tuple[Refusal, ...] = ()


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
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BrokenProtocol(f"this is no message of the sync protocol: {error}") from None
