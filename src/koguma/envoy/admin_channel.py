"""The admin channel's messages: what a control plane asks an agent for, and the answer in frames.

The agent of a proxy holds a WebSocket to a control plane, which greets it first. A request is a text message
(JSON). An answer is any number of binary messages, each with the number of its request, one byte that says
what it is, and a chunk of the answer. Several answers may be under way at once.
"""

import enum
from typing import Final

import msgspec

from koguma.envoy import admin_pages, masking

PATH: Final = "/admin-channel"
FEATURE: Final = "feature-admin-channel"  # of an agent that opens one
CHUNK_BYTES: Final = 64 * 1024
REQUESTS_MAX: Final = 2  # that a control plane has under way on one channel
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
PING_SECONDS: Final = 60.0
MESSAGE_BYTES_MAX: Final = CHUNK_BYTES + 1024

_NUMBER_BYTES: Final = 4
_OPENED_PER_SECOND: Final = 100  # channels, when those of a whole fleet are opened again
_SPREAD_SECONDS_MAX: Final = 120.0
_HEADER_BYTES: Final = _NUMBER_BYTES + 1


class Greeting(msgspec.Struct, frozen=True):
    """What a control plane says first: over how long agents spread their return after it has ended.

    Opening a channel costs it 2 ms, and that of a whole fleet must not delay the streams that move to it.
    """

    spread_seconds: float


def greeting(n_proxies: int) -> Greeting:
    """The greeting of a control plane whose fleet has so many proxies."""
    return Greeting(min(n_proxies / _OPENED_PER_SECOND, _SPREAD_SECONDS_MAX))


def read_greeting(message: str) -> Greeting:
    """The greeting in a message; BadChannelMessage where it is none."""
    try:
        greeted = msgspec.json.decode(message, type=Greeting)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadChannelMessage("it is no greeting") from error
    return Greeting(min(max(greeted.spread_seconds, 0.0), _SPREAD_SECONDS_MAX))


class PageRequest(msgspec.Struct, frozen=True):
    """A page of the admin interface that a control plane asks for."""

    number: int
    path: str
    bytes_max: int = ANSWER_BYTES_MAX


class FrameType(enum.IntEnum):
    """What a frame is: a part of an answer, its last part, or the reason why there is none."""

    PART = 0
    LAST = 1
    ERROR = 2


class Frame(msgspec.Struct, frozen=True):
    """One binary message of an answer."""

    number: int
    type: FrameType
    chunk: bytes


class BadChannelMessage(ValueError):
    """A message that is not of this protocol."""


def encoded(frame: Frame) -> bytes:
    """The frame as a message."""
    return frame.number.to_bytes(_NUMBER_BYTES, "big") + bytes([frame.type]) + frame.chunk


def read_frame(message: bytes) -> Frame:
    """The frame in a message; BadChannelMessage where it is none."""
    if len(message) < _HEADER_BYTES or message[_NUMBER_BYTES] > max(FrameType):
        raise BadChannelMessage("it is no frame of an answer")
    number = int.from_bytes(message[:_NUMBER_BYTES], "big")
    return Frame(number, FrameType(message[_NUMBER_BYTES]), message[_HEADER_BYTES:])


def read_request(message: str) -> PageRequest:
    """The request in a message; BadChannelMessage where it is none."""
    try:
        request = msgspec.json.decode(message, type=PageRequest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadChannelMessage("it is no request for a page") from error
    if not 0 <= request.number < 1 << 8 * _NUMBER_BYTES:
        raise BadChannelMessage("its number is too large")
    return request


def frames(number: int, answer: bytes) -> list[Frame]:
    """An answer in chunks; the last one may be empty."""
    starts = range(0, max(len(answer), 1), CHUNK_BYTES)
    last = starts[-1]
    return [
        Frame(
            number, FrameType.LAST if start == last else FrameType.PART, answer[start : start + CHUNK_BYTES]
        )
        for start in starts
    ]


def failure(number: int, reason: str) -> Frame:
    """The frame that says why there is no answer."""
    return Frame(number, FrameType.ERROR, reason.encode()[:1000])


def masked(path: str, answer: bytes) -> bytes:
    """The answer to a path without secrets; NotJson where it should be JSON and is none."""
    if admin_pages.page_of(path) == admin_pages.CONFIG_DUMP:
        return masking.masked_json(answer)
    return masking.masked_text(answer.decode("utf-8", "replace")).encode()
