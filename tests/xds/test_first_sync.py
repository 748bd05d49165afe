"""The first configuration of a new proxy is sent type by type, and the result is as resource by resource."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from koguma.envoy.snapshot import Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer
from koguma.xds.protocol import first_sync
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.protocol.session import DeltaSession
from tests.xds.test_properties import ContentChange, World, check_end, resource_of

NAMES = "abc"


def snapshot(names: str = NAMES) -> Snapshot:
    """What a sidecar with mTLS gets: for each name a cluster, its endpoints, a listener and its routes."""
    needs = {name: (("endpoints", name), ("secret", "identity")) for name in names}
    own = [
        resource_of("secret", "identity", "1"),
        resource_of("secret", "inbound", "1"),
        resource_of("extension", "filter", "1", [("cluster", names[0])]),
        resource_of("listener", "inbound", "1", [("secret", "inbound"), ("extension", "filter")]),
    ]
    calls = [resource_of("cluster", name, "1", needs[name]) for name in names]
    calls += [resource_of("listener", name, "1", [("routes", name)]) for name in names]
    calls += [resource_of("routes", name, "1", [("cluster", name)]) for name in names]
    endpoints = [resource_of("endpoints", name, "1") for name in names]
    return Snapshot((bundle(calls), bundle(own), bundle(endpoints)))


def new_world() -> World:
    """A world whose Envoy has no routes with virtual hosts apart, as that of a sidecar."""
    world = World()
    world.envoy.discovers_hosts = True
    return world


def types_of(responses: list[DeltaResponse]) -> list[str]:
    return [response.type for response in responses]


def test_each_type_is_sent_at_once_after_what_it_references(monkeypatch):
    monkeypatch.delattr(first_sync.FirstSyncState, "tracked")  # it is not needed
    world = new_world()
    sent = []
    world.offer(snapshot())
    while world.envoy.outbox or world.envoy.inbox:
        world.deliver_request()
        sent += [(each.type, len(each.resources)) for each in world.envoy.inbox]
        while world.envoy.inbox:
            world.deliver_response()
    assert sent == [
        ("cluster", 3),
        ("secret", 1),
        ("endpoints", 3),
        ("listener", 4),
        ("secret", 1),
        ("extension", 1),
        ("routes", 3),
    ]
    assert world.session.is_synced
    assert world.session.status.acked_versions["routes"].keys() == set(NAMES)


def test_a_listener_waits_for_all_that_is_in_flight():
    session = DeltaSession(30.0)
    session.receive(DeltaRequest("cluster"), 0.0)
    (clusters,) = session.offer(Offer(1, snapshot()), 0.0)
    (endpoints,) = session.receive(DeltaRequest("endpoints", tuple(NAMES)), 0.0)
    assert session.receive(DeltaRequest("listener"), 0.0) == []
    assert session.receive(DeltaRequest("cluster", nonce=clusters.nonce), 0.0) == []
    assert types_of(session.receive(DeltaRequest("endpoints", nonce=endpoints.nonce), 0.0)) == ["listener"]
    assert session.status.state == "connecting"


@pytest.mark.parametrize("n_delivered", range(12))
def test_endpoints_that_change_on_the_way_are_sent_again(monkeypatch, n_delivered):
    monkeypatch.delattr(first_sync.FirstSyncState, "tracked")  # it is not needed
    world = new_world()
    world.apply(snapshot())
    for number in range(n_delivered):
        world.apply("request" if number % 2 == 0 else "response")
    world.apply(ContentChange("endpoints"))
    world.settle()
    assert {each.version for each in world.envoy.has["endpoints"].values()} == {"2"}
    assert set(world.session.status.acked_versions["endpoints"].values()) == {"2"}
    assert world.session.is_synced


def test_what_nobody_references_is_not_waited_for():
    unneeded = bundle([XdsResource("secret", "unneeded", "1", b"")])
    world = new_world()
    world.offer(Snapshot((*snapshot().bundles, unneeded)))
    world.settle()
    assert (world.session.status.state, world.session.is_synced) == ("synced", False)


@pytest.mark.parametrize(
    "request_",
    [
        DeltaRequest("endpoints", ("nowhere",)),
        DeltaRequest("endpoints", ("a",)),  # again
        DeltaRequest("endpoints", (), ("a",)),
        DeltaRequest("cluster", nonce="1", error="Error adding/updating a: boom"),
        DeltaRequest("cluster", ("*",)),
        DeltaRequest("cluster", nonce="0"),
        DeltaRequest("virtual_host"),
    ],
)
def test_an_unusual_request_is_answered_as_for_any_other_proxy(monkeypatch, request_):
    def play() -> tuple:
        session = DeltaSession(30.0)
        session.receive(DeltaRequest("cluster"), 0.0)
        responses = session.offer(Offer(1, snapshot()), 0.0)
        responses += session.receive(DeltaRequest("endpoints", ("a", "b")), 0.0)
        responses += session.receive(request_, 0.0)
        responses += session.receive(DeltaRequest("cluster", nonce=responses[0].nonce), 0.0)
        responses += session.receive(DeltaRequest("endpoints", nonce=responses[1].nonce), 0.0)
        responses += session.receive(DeltaRequest("listener"), 0.0)
        held = {type_: session.held(type_) for type_ in ("cluster", "endpoints")}
        return responses, session.status.rejections, held

    quick = play()
    monkeypatch.setattr(first_sync, "begun", lambda *_: None)
    assert quick == play()


@given(st.lists(st.sampled_from(("request", "response", "endpoints", "routes", "cluster", "ab", "abcd"))))
def test_other_offers_on_the_way_end_with_the_newest(steps):
    world = new_world()
    world.apply(snapshot())
    for step in steps:
        match step:
            case "request" | "response":
                world.apply(step)
            case "ab" | "abcd":
                world.apply(snapshot(step))
            case type_:
                world.apply(ContentChange(type_))
    check_end(world, snapshot())
    assert not world.envoy.n_warming_timeouts
    assert world.session.status.state == "synced"
