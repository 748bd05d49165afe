"""What one proxy may ask for: many names and long ones end its stream with words, and nobody else's."""

import pytest

from koguma.model.errors import BadRequest
from koguma.xds.protocol.delta import DeltaRequest
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.protocol.subscription import CHARACTERS_MAX, NAMES_MAX
from tests.xds.fake_gate import FakeGate, client, serving
from tests.xds.script_player import snapshot

NODE = "default.web-1.ns"
ONE = snapshot("cluster:a@1 cluster:b@1")


def names(begin: int, end: int) -> tuple[str, ...]:
    return tuple(f"name-{number}" for number in range(begin, end))


def test_as_many_names_as_allowed_are_taken():
    session = DeltaSession(30.0)
    session.receive(DeltaRequest("endpoints", names(0, NAMES_MAX)), 0.0)
    session.receive(DeltaRequest("endpoints", names(0, NAMES_MAX)), 0.0)  # the same once more
    session.receive(DeltaRequest("routes", names(0, NAMES_MAX)), 0.0)  # and as many of another type


def test_names_are_counted_over_all_requests_of_a_stream():
    session = DeltaSession(30.0)
    session.receive(DeltaRequest("endpoints", names(0, NAMES_MAX)), 0.0)
    with pytest.raises(BadRequest, match=f"{NAMES_MAX + 1} resources of the type endpoints"):
        session.receive(DeltaRequest("endpoints", names(NAMES_MAX, NAMES_MAX + 1)), 0.0)


def test_characters_are_counted_over_all_requests_of_a_stream():
    session = DeltaSession(30.0)
    for letter in "abcd":
        session.receive(DeltaRequest("endpoints", (letter * (CHARACTERS_MAX // 4),)), 0.0)
    with pytest.raises(BadRequest, match=f"{CHARACTERS_MAX} characters are the most"):
        session.receive(DeltaRequest("endpoints", ("e",)), 0.0)


def test_names_that_are_left_make_room():
    session = DeltaSession(30.0)
    session.receive(DeltaRequest("endpoints", names(0, NAMES_MAX)), 0.0)
    session.receive(DeltaRequest("endpoints", unsubscribe=names(0, 10)), 0.0)
    session.receive(DeltaRequest("endpoints", names(NAMES_MAX, NAMES_MAX + 10)), 0.0)


@pytest.mark.parametrize(
    "request_",
    [
        DeltaRequest("endpoints", names(0, NAMES_MAX + 1)),
        DeltaRequest("endpoints", unsubscribe=names(0, NAMES_MAX + 1)),
        DeltaRequest("cluster", initial_versions=dict.fromkeys(names(0, NAMES_MAX + 1), "1")),
        DeltaRequest("endpoints", ("x" * (CHARACTERS_MAX + 1),)),
    ],
)
def test_one_request_that_is_too_much_is_refused(request_):
    with pytest.raises(BadRequest):
        DeltaSession(30.0).receive(request_, 0.0)


async def test_a_proxy_that_asks_for_too_much_loses_its_stream_and_others_keep_theirs():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port) as greedy, client(port) as other:
        await other.send("cluster", node="default.web-2.ns")
        assert await other.receive_and_ack() == "a b"
        await greedy.send("cluster", node=NODE)
        assert await greedy.receive_and_ack() == "a b"
        await greedy.send("endpoints", resource_names_subscribe=names(0, NAMES_MAX + 1))
        code, text = await greedy.end()
        assert code == "INVALID_ARGUMENT"
        assert f"{NAMES_MAX} names of {CHARACTERS_MAX} characters are the most that one stream may" in text
        gate.connections[0].offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await other.receive_and_ack() == "a"
