"""Messages of the sync protocol. Either side of a connection publishes objects and subscribes to the other's.

1. Both send a `SyncGreeting`: who they are, what they can read, and sums over what they hold of the other.
2. Where sums differ, the publisher asks what is held there (`EntriesWanted`), and is told (`Entries`).
3. Then it sends `Objects` in numbered batches: at first what the subscriber lacks, later what changes. Each
   is answered by an `Ack` once it is stored, which names the objects that were refused, and why.

A zone says in its greeting which revision of Global's it has seen last, and Global answers by its own which
transaction it has there: the number alone does not tell a restored Global from the one of before. So Global
waits for the zone's greeting. After the comparison, and later now and then, it says that it has sent
everything (`UpToDate`), to a zone that knows how to take it.

A batch with a number that was there already is ignored; one that is not the next ends the connection.

Beside that, where both sides know how (`features`), a zone reports the states of its proxies (`ProxyStates`),
and Global asks it questions about them (`ZoneQuestion`), which it answers in parts. A message of unknown name
is of a later version, and ignored.
"""

from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple, get_args

import msgspec

from koguma.model.errors import BadRequest
from koguma.model.proxy_report import STATE_BYTES_MAX
from koguma.model.resource import Key

PROTOCOL: Final = 1  # raised when a side must understand something new to take part at all
KINDS_MAX: Final = 1000
BUCKETS: Final = 2048  # of sums
ENTRIES_MAX: Final = 5_000  # in one message
BATCH_OBJECTS: Final = 1000
REASON_MAX: Final = 1000  # characters
CONFIG_MAX: Final = 64 * 1024  # characters
PROXY_STATES: Final = "proxy-states"  # a feature: it takes the states of proxies
QUESTIONS: Final = "questions"  # a feature: it answers questions
LARGE_QUESTIONS: Final = "large-questions"  # a feature: also those that are larger than small ones
UP_TO_DATE: Final = "up-to-date"  # a feature: it wants to know when it was sent everything
ALIVE: Final = "alive"  # a feature: it gives signs of life, and expects them
FEATURES_MAX: Final = 100
STATES_MAX: Final = 500  # in one message
QUESTION_BYTES_MAX: Final = 6 * 1024 * 1024
SMALL_QUESTION_BYTES_MAX: Final = 16 * 1024
CHUNK_BYTES: Final = 256 * 1024  # of an answer
_WORD_MAX: Final = 300  # characters
_KEY_MAX: Final = 1000  # characters
_REVISION_MAX: Final = 2**63 - 1

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
    """An object that the subscriber did not store, in the version with this hash; without one: not delete."""

    key: Key
    hash: bytes
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)]

    @property
    def is_of_removal(self) -> bool:
        """Whether the object stays, which is gone on the other side."""
        return not self.hash


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
    features: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=FEATURES_MAX)] = ()
    transaction: _Word = ""  # that wrote `revision`
    # Of a zone: the revision of Global's that it has noted.
    seen: Annotated[int, msgspec.Meta(ge=0, le=_REVISION_MAX)] = 0
    # Of Global: what wrote that revision; empty where it has none there, None where it is too old to say.
    seen_transaction: _Word | None = None


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
    transaction: _Word = ""  # that wrote this revision


class UpToDate(msgspec.Struct, frozen=True, tag="up to date"):
    """The subscriber was compared, and sent everything until this revision."""

    revision: int
    transaction: _Word


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The batch of this number, and all before it, are stored but for what was refused."""

    number: int
    refused: Annotated[tuple[Refusal, ...], msgspec.Meta(max_length=BATCH_OBJECTS)] = ()


class EncodedState(NamedTuple):
    """The state of a proxy as JSON; what is in it is the business of those who read it."""

    key: Key
    data: Annotated[bytes, msgspec.Meta(max_length=STATE_BYTES_MAX)]


class ProxyStates(msgspec.Struct, frozen=True, tag="proxy states"):
    """States of proxies that are new or changed, and proxies that are known no more."""

    revision: int  # of the zone's store: what its synced proxies have
    states: Annotated[tuple[EncodedState, ...], msgspec.Meta(max_length=STATES_MAX)] = ()
    removed: Annotated[tuple[Key, ...], msgspec.Meta(max_length=STATES_MAX)] = ()


class ZoneQuestion(msgspec.Struct, frozen=True, tag="question"):
    """What Global asks a zone; a question of a name that the zone does not know is refused by that name."""

    number: int
    name: _Word
    body: Annotated[bytes, msgspec.Meta(max_length=QUESTION_BYTES_MAX)]
    bytes_max: int  # of the answer
    seconds_max: float


class AnswerPart(msgspec.Struct, frozen=True, tag="answer part"):
    """A part of the answer to the question of this number, in order."""

    number: int
    chunk: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES)]
    is_last: bool


class NoAnswer(msgspec.Struct, frozen=True, tag="no answer"):
    """Why there is no answer: the sort of error, and words."""

    number: int
    error: _Word
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)]


class QuestionWithdrawn(msgspec.Struct, frozen=True, tag="question withdrawn"):
    """Nobody waits for the answer any more."""

    number: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A sign of life, since the connection of a process that hangs stays open."""


class UnknownMessage(msgspec.Struct, frozen=True):
    """A message of a later version; never sent."""

    name: str


Message = (
    SyncGreeting
    | EntriesWanted
    | Entries
    | Objects
    | UpToDate
    | Ack
    | ProxyStates
    | ZoneQuestion
    | AnswerPart
    | NoAnswer
    | QuestionWithdrawn
    | Alive
)


class _Tagged(msgspec.Struct, frozen=True):
    """Any message: its name alone."""

    type: str


_NAMES: Final = frozenset(str(each.__struct_config__.tag) for each in get_args(Message))
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_tag_decoder: Final = msgspec.msgpack.Decoder(_Tagged)


class BrokenProtocol(BadRequest):
    """The other side sent what it may not send now; the connection ends."""


def encoded(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decoded(data: bytes) -> Message | UnknownMessage:
    """The message in these bytes; BrokenProtocol if there is none."""
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        if (unknown := _unknown(data)) is not None:
            return unknown
        raise BrokenProtocol(f"this is no message of the sync protocol: {error}") from None
    if any(sum(map(len, key)) > _KEY_MAX for key in _keys(message)):
        raise BrokenProtocol(
            f"this is no message of the sync protocol: a key has more than {_KEY_MAX} characters"
        )
    return message


def _unknown(data: bytes) -> UnknownMessage | None:
    try:
        name = _tag_decoder.decode(data).type
    except (msgspec.DecodeError, RecursionError):
        return None
    return UnknownMessage(name[:_WORD_MAX]) if name not in _NAMES else None


def _keys(message: Message) -> Iterator[Key]:
    match message:
        case Entries():
            yield from (each.key for each in message.entries)
        case Objects():
            yield from (each.key for each in message.objects)
            yield from message.removed
        case Ack():
            yield from (each.key for each in message.refused)
        case ProxyStates():
            yield from (each.key for each in message.states)
            yield from message.removed
        case _:
            return
