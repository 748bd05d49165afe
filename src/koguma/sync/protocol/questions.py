"""Questions: what Global asks a zone over its connection, and the answers in parts.

Neither side can make the other hold more than was agreed: an answer is taken up to the size that its question
allows, parts of answers that nobody waits for any more are counted, and a zone has so many questions at once.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.sync.protocol.messages import (
    CHUNK_BYTES,
    AnswerPart,
    BrokenProtocol,
    NoAnswer,
    QuestionWithdrawn,
    ZoneQuestion,
)

QUESTIONS_MAX: Final = 32  # that a zone has under way
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_PART_OVERHEAD: Final = 64  # bytes that count for each part, so that empty ones are not free


class Answer(msgspec.Struct, frozen=True):
    """The whole answer to a question."""

    number: int
    body: bytes


class _PartialAnswer:
    """An answer that is under way."""

    __slots__ = ("body", "bytes_left")

    def __init__(self, bytes_max: int) -> None:
        self.body = bytearray()
        self.bytes_left = bytes_max + _PART_OVERHEAD * (bytes_max // CHUNK_BYTES + 2)


class Asker:
    """The side that asks."""

    def __init__(self) -> None:
        self._number = 0
        self._pending: dict[int, _PartialAnswer] = {}
        self._unwanted_bytes = 0  # that may still come of answers that nobody waits for

    def ask(self, name: str, body: bytes, bytes_max: int, seconds_max: float) -> ZoneQuestion:
        """A question to be sent."""
        self._number += 1
        bytes_max = min(bytes_max, ANSWER_BYTES_MAX)
        self._pending[self._number] = _PartialAnswer(bytes_max)
        return ZoneQuestion(self._number, name, body, bytes_max, seconds_max)

    def withdraw(self, number: int) -> QuestionWithdrawn | None:
        """Nobody waits for an answer any more; None where it is there already."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return None
        self._unwanted_bytes += max(pending.bytes_left, 0)
        return QuestionWithdrawn(number)

    def receive(self, message: AnswerPart | NoAnswer) -> Answer | NoAnswer | None:
        """An answer, once it is there as a whole, or why there is none."""
        size = _PART_OVERHEAD + (len(message.chunk) if isinstance(message, AnswerPart) else 0)
        pending = self._pending.get(message.number)
        if pending is None:
            self._unwanted_bytes -= size
            if self._unwanted_bytes < 0:
                raise BrokenProtocol("it answers what nobody asked")
            return None
        pending.bytes_left -= size
        if pending.bytes_left < 0:
            raise BrokenProtocol("its answer is larger than was asked for")
        if isinstance(message, NoAnswer):
            del self._pending[message.number]
            return message
        pending.body += message.chunk
        if not message.is_last:
            return None
        del self._pending[message.number]
        return Answer(message.number, bytes(pending.body))


class Answerer:
    """The side that is asked."""

    def __init__(self) -> None:
        self._number = 0
        self.under_way: set[int] = set()

    def receive(self, question: ZoneQuestion) -> NoAnswer | None:
        """Take a question; returns a refusal where there are too many already."""
        if question.number <= self._number:
            raise BrokenProtocol(f"question {question.number} came after question {self._number}")
        self._number = question.number
        if len(self.under_way) >= QUESTIONS_MAX:
            reason = f"the zone has {QUESTIONS_MAX} questions to answer already; try again"
            return NoAnswer(question.number, "Unavailable", reason)
        self.under_way.add(question.number)
        return None

    def withdrawn(self, number: int) -> None:
        """Nobody waits for an answer any more."""
        self.under_way.discard(number)

    def parts(self, number: int, body: bytes) -> Iterator[AnswerPart | NoAnswer]:
        """The answer to be sent, part by part; it ends where the question is withdrawn."""
        for start in range(0, max(len(body), 1), CHUNK_BYTES):
            if number not in self.under_way:
                return
            is_last = start + CHUNK_BYTES >= len(body)
            if is_last:
                self.under_way.discard(number)
            yield AnswerPart(number, body[start : start + CHUNK_BYTES], is_last)

    def refused(self, refusal: NoAnswer) -> Iterator[AnswerPart | NoAnswer]:
        """The same where there is no answer."""
        if refusal.number in self.under_way:
            self.under_way.discard(refusal.number)
            yield refusal
