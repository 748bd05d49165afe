"""The state-of-the-world variant: one version for all resources, and the same request twice."""

from koguma.xds.contract import Offer
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.sotw import SotwRequest, SotwResponse, SotwSession
from tests.xds.script_player import snapshot

OFFERED = "cluster:a@1[endpoints:a] cluster:b@1[endpoints:b] endpoints:a@1 endpoints:b@1"


def connected(text: str = OFFERED) -> SotwSession:
    session = SotwSession(DeltaSession(30.0))
    session.offer(Offer(1, snapshot(text)), 0.0)
    return session


def requested(session: SotwSession, type_: str, *names: str, **fields: str) -> list[SotwResponse]:
    return session.receive(SotwRequest(type_, names, **fields), 0.0)


def names(response: SotwResponse) -> list[str]:
    return [resource.name for resource in response.resources]


def test_a_response_about_clusters_lists_all_of_them():
    session = connected()
    first = requested(session, "cluster")[0]
    requested(session, "cluster", version=first.version, nonce=first.nonce)
    changed = snapshot("cluster:a@1[endpoints:a] cluster:b@2[endpoints:b] endpoints:a@1 endpoints:b@1")
    second = session.offer(Offer(2, changed), 1.0)[0]
    assert names(second) == ["a", "b"]
    assert second.version != first.version


def test_a_response_about_endpoints_lists_what_is_new():
    session = connected()
    first = requested(session, "endpoints", "a", "b")[0]
    requested(session, "endpoints", "a", "b", version=first.version, nonce=first.nonce)
    changed = snapshot(OFFERED.replace("endpoints:b@1", "endpoints:b@2"))
    assert names(session.offer(Offer(2, changed), 1.0)[0]) == ["b"]


def test_a_proxy_that_names_the_current_version_gets_nothing():
    session = connected()
    clusters, endpoints = requested(session, "cluster")[0], requested(session, "endpoints", "a", "b")[0]
    other = connected()
    assert requested(other, "cluster", version=clusters.version) == []
    assert requested(other, "endpoints", "a", "b", version=endpoints.version) == []
    assert other.status.state == "synced"


def test_a_version_is_compared_when_there_is_something_to_compare_it_with():
    version = requested(connected(), "cluster")[0].version
    session = SotwSession(DeltaSession(30.0))
    assert requested(session, "cluster", version=version) == []
    assert session.offer(Offer(1, snapshot(OFFERED)), 0.0) == []
    assert session.status.acked_versions["cluster"] == {"a": "1", "b": "1"}


def test_a_proxy_that_names_another_version_gets_everything():
    assert names(requested(connected(), "cluster", version="other")[0]) == ["a", "b"]


def test_the_same_request_twice_asks_for_endpoints_again():
    session = connected()
    first = requested(session, "endpoints", "a", "b")[0]
    assert requested(session, "endpoints", "a", "b", version=first.version, nonce=first.nonce) == []
    again = requested(session, "endpoints", "a", "b", version=first.version, nonce=first.nonce)
    assert [names(response) for response in again] == [["a", "b"]]


def test_the_same_request_twice_about_clusters_is_one():
    session = connected()
    first = requested(session, "cluster")[0]
    requested(session, "cluster", nonce=first.nonce)
    assert requested(session, "cluster", nonce=first.nonce) == []


def test_names_that_come_before_the_first_answer_count():
    session = connected()
    first = requested(session, "endpoints", "a")[0]
    assert requested(session, "endpoints", "a", "b") == []
    assert [names(each) for each in requested(session, "endpoints", "a", "b", nonce=first.nonce)] == [["b"]]
