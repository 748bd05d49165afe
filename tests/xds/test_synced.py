"""A synced proxy: nothing is kept for it alone, and it works like any other."""

import pytest

from koguma.envoy.snapshot import Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer, ResponseCount
from koguma.xds.protocol.delta import DeltaRequest
from koguma.xds.protocol.session import DeltaSession

CALLS = bundle(
    [
        XdsResource("cluster", "a", "1", b"", (("endpoints", "a"),)),
        XdsResource("listener", "l", "1", b"", (("routes", "r"),)),
        XdsResource("routes", "r", "1", b"", (("cluster", "a"),)),
    ]
)
ENDPOINTS = {version: bundle([XdsResource("endpoints", "a", version, b"")]) for version in "123"}
ASKED = (("cluster", ()), ("endpoints", ("a",)), ("listener", ()), ("routes", ("r",)))
HAS = {"cluster": {"a": "1"}, "endpoints": {"a": "1"}, "listener": {"l": "1"}, "routes": {"r": "1"}}


def offer(revision: int) -> Offer:
    return Offer(revision, Snapshot((CALLS, ENDPOINTS[str(revision)])))


def ack(session: DeltaSession, responses: list) -> None:
    """ACK all responses."""
    for response in responses:
        ack(session, session.receive(DeltaRequest(response.type, nonce=response.nonce), 0.0))


@pytest.fixture
def session() -> DeltaSession:
    session = DeltaSession(30.0)
    ack(session, session.offer(offer(1), 0.0))
    for type_, names in ASKED:
        ack(session, session.receive(DeltaRequest(type_, names), 0.0))
    return session


def test_a_proxy_that_holds_everything_is_synced_and_its_versions_are_known(session):
    assert session.is_synced
    assert session.status.state == "synced"
    assert session.status.acked_versions == HAS


def test_a_content_update_keeps_a_proxy_synced(session):
    (response,) = session.offer(offer(2), 0.0)
    assert (response.type, response.diff is not None, session.status.state) == ("endpoints", True, "behind")
    assert session.status.acked_versions == HAS
    ack(session, [response])
    assert session.is_synced
    assert (session.status.state, session.status.acked) == ("synced", 2)
    assert session.status.acked_versions["endpoints"] == {"a": "2"}


def test_an_ack_of_an_older_response_changes_nothing(session):
    session.offer(offer(2), 0.0)
    assert session.receive(DeltaRequest("endpoints", nonce="0"), 0.0) == []
    assert session.status.state == "behind"


def test_a_nacked_update_is_reported_and_the_held_versions_are_still_known(session):
    (response,) = session.offer(offer(2), 0.0)
    session.receive(DeltaRequest("endpoints", nonce=response.nonce, error="a: boom"), 0.0)
    assert not session.is_synced
    assert [(each.type, each.names) for each in session.status.rejections] == [("endpoints", ("a",))]
    assert session.status.acked_versions == HAS


def test_responses_are_counted_by_type_and_answer(session):
    before = session.status.responses
    assert before == {type_: ResponseCount(1, 1) for type_ in HAS}
    (response,) = session.offer(offer(2), 0.0)
    ack(session, [response])
    assert before["endpoints"] == ResponseCount(2, 2)  # read anew, from the same object
    (refused,) = session.offer(offer(3), 0.0)
    session.receive(DeltaRequest("endpoints", nonce=refused.nonce, error="a: boom"), 0.0)
    assert session.status.responses["endpoints"] == ResponseCount(3, 2, 1)
    assert session.status.responses["cluster"] == ResponseCount(1, 1)
    assert "secret" not in session.status.responses


def test_a_second_update_waits_for_the_ack_of_the_first(session):
    (first,) = session.offer(offer(2), 0.0)
    assert session.offer(offer(3), 0.0) == []
    (second,) = session.receive(DeltaRequest("endpoints", nonce=first.nonce), 0.0)
    assert [resource.version for resource in second.resources] == ["3"]
    ack(session, [second])
    assert (session.is_synced, session.status.acked) == (True, 3)


def test_a_synced_proxy_may_subscribe_to_more(session):
    (response,) = session.receive(DeltaRequest("routes", ("missing",)), 0.0)
    assert response.removed == ("missing",)


@pytest.mark.parametrize("revision", [1, 2])
def test_a_reconnecting_proxy_gets_what_it_lacks_and_nothing_else(revision):
    session = DeltaSession(30.0)
    for type_, names in ASKED:
        session.receive(DeltaRequest(type_, names, initial_versions=HAS[type_]), 0.0)
    sent = session.offer(offer(revision), 0.0)
    assert [resource.id for each in sent for resource in each.resources] == [("endpoints", "a")] * (
        revision - 1
    )
    assert (session.is_synced) == (revision == 1)
    ack(session, sent)
    assert (session.status.state, session.status.acked) == ("synced", revision)
