"""Questions to zones as a protocol: sizes, order, refusals, and messages of later versions."""

import msgspec
import pytest

from koguma.model.resource import Key
from koguma.sync.protocol import messages, questions
from koguma.sync.protocol.messages import (
    CHUNK_BYTES,
    AnswerPart,
    BrokenProtocol,
    EncodedState,
    NoAnswer,
    ProxyStates,
    SyncGreeting,
    UnknownMessage,
    ZoneQuestion,
)
from koguma.sync.protocol.questions import Answer, Answerer, Asker


def test_an_answer_comes_in_parts_and_those_of_others_in_between() -> None:
    asker, answerer = Asker(), Answerer()
    small, large = (asker.ask("page", b"", size, 1.0) for size in (10, 4 * CHUNK_BYTES))
    for question in (small, large):
        assert answerer.receive(question) is None
    body = bytes(range(256)) * (CHUNK_BYTES // 256 * 3)
    parts = list(answerer.parts(large.number, body))
    assert len(parts) == 3
    assert asker.receive(parts[0]) is None
    (only,) = answerer.parts(small.number, b"short")
    assert asker.receive(only) == Answer(small.number, b"short")
    assert asker.receive(parts[1]) is None
    assert asker.receive(parts[2]) == Answer(large.number, body)
    assert not answerer.under_way
    # Nothing is as short as an answer can be.
    empty = asker.ask("page", b"", 10, 1.0)
    answerer.receive(empty)
    (only,) = answerer.parts(empty.number, b"")
    assert asker.receive(only) == Answer(empty.number, b"")


def test_a_refusal_is_an_answer_too() -> None:
    asker, answerer = Asker(), Answerer()
    question = asker.ask("weather", b"", 10, 1.0)
    answerer.receive(question)
    refusal = NoAnswer(question.number, "NotSupported", "no such question")
    (sent,) = answerer.refused(refusal)
    assert asker.receive(sent) == refusal
    assert asker.withdraw(question.number) is None


def test_a_withdrawn_question_is_answered_no_further_and_late_parts_are_counted() -> None:
    asker, answerer = Asker(), Answerer()
    question = asker.ask("page", b"", 2 * CHUNK_BYTES, 1.0)
    answerer.receive(question)
    parts = answerer.parts(question.number, b"x" * 2 * CHUNK_BYTES)
    first = next(parts)
    assert asker.withdraw(question.number) is not None
    answerer.withdrawn(question.number)
    assert list(parts) == []
    assert asker.receive(first) is None
    assert asker.receive(first) is None
    with pytest.raises(BrokenProtocol, match="nobody asked"):
        asker.receive(first)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (AnswerPart(1, b"x" * 500, is_last=False), "larger than was asked for"),
        (AnswerPart(7, b"", is_last=True), "nobody asked"),
        (NoAnswer(7, "Unavailable", ""), "nobody asked"),
    ],
)
def test_more_than_was_asked_for_ends_the_connection(part: AnswerPart | NoAnswer, words: str) -> None:
    asker = Asker()
    asker.ask("page", b"", 100, 1.0)
    with pytest.raises(BrokenProtocol, match=words):
        asker.receive(part)


def test_empty_parts_are_not_free() -> None:
    asker = Asker()
    asker.ask("page", b"", 100, 1.0)
    part = AnswerPart(1, b"", is_last=False)
    with pytest.raises(BrokenProtocol, match="larger"):
        list(map(asker.receive, [part] * 100))


def test_a_zone_has_so_many_questions_at_once_and_each_number_once() -> None:
    answerer = Answerer()
    for number in range(1, questions.QUESTIONS_MAX + 1):
        assert answerer.receive(ZoneQuestion(number, "page", b"", 10, 1.0)) is None
    refusal = answerer.receive(ZoneQuestion(99, "page", b"", 10, 1.0))
    assert refusal is not None
    assert (refusal.number, refusal.error) == (99, "Unavailable")
    with pytest.raises(BrokenProtocol, match="came after"):
        answerer.receive(ZoneQuestion(99, "page", b"", 10, 1.0))


def test_a_message_of_a_later_version_is_known_by_its_name_alone() -> None:
    later = msgspec.msgpack.encode({"type": "weather", "number": 7})
    assert messages.decoded(later) == UnknownMessage("weather")
    for broken in (b"", b"nonsense", msgspec.msgpack.encode({"type": "ack"}), msgspec.msgpack.encode(7)):
        with pytest.raises(BrokenProtocol):
            messages.decoded(broken)


def test_a_greeting_of_an_earlier_version_has_no_features_and_a_later_one_more() -> None:
    greeting = SyncGreeting(
        name="east",
        version="1",
        instance="i",
        source="s",
        revision=1,
        kinds=(),
        sums=b"",
        features=("questions",),
    )
    fields = msgspec.msgpack.decode(messages.encoded(greeting))
    del fields["features"]
    earlier = messages.decoded(msgspec.msgpack.encode(fields))
    assert isinstance(earlier, SyncGreeting)
    assert earlier.features == ()
    later = messages.decoded(msgspec.msgpack.encode({**fields, "weather": "fine", "features": ["a", "b"]}))
    assert isinstance(later, SyncGreeting)
    assert later.features == ("a", "b")


def test_what_is_too_large_is_no_message() -> None:
    key = Key("Dataplane", "default", "east", "", "web-1")
    for message in (
        ProxyStates(1, (EncodedState(key, b"x" * (messages.STATE_BYTES_MAX + 1)),)),
        ProxyStates(1, (EncodedState(key, b""),) * (messages.STATES_MAX + 1)),
        ProxyStates(1, (), (key._replace(name="x" * 2000),)),
        AnswerPart(1, b"x" * (CHUNK_BYTES + 1), is_last=True),
        ZoneQuestion(1, "page", b"x" * (messages.QUESTION_BYTES_MAX + 1), 1, 1.0),
    ):
        with pytest.raises(BrokenProtocol):
            messages.decoded(messages.encoded(message))
