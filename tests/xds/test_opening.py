"""The first requests of a stream get the same responses as if every version had been parsed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from koguma.envoy.snapshot import (
    TYPE_URLS,
    TYPES,
    VIRTUAL_HOST,
    Bundle,
    Failure,
    Snapshot,
    XdsResource,
    bundle,
    version_entry,
)
from koguma.xds.contract import Offer
from koguma.xds.messages import DeltaRequestDecoder
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest, DeltaResponse
from koguma.xds.protocol.opening import UnparsedVersions
from koguma.xds.protocol.session import DeltaSession
from tests.xds.fake_gate import schema

Named = Mapping[str, Mapping[str, str]]

CALLS = bundle(
    [
        XdsResource("cluster", "a", "1", b"", (("endpoints", "a"),)),
        XdsResource("cluster", "b", "1", b"", (("endpoints", "b"),)),
        XdsResource("listener", "l", "1", b"", (("routes", "r"),)),
        XdsResource("routes", "r", "1", b"", (("cluster", "a"),)),
    ]
)
OWN = bundle(
    [XdsResource("listener", "in", "1", b"", (("extension", "x"),)), XdsResource("extension", "x", "1", b"")]
)
ENDS = bundle([XdsResource("endpoints", "a", "1", b""), XdsResource("endpoints", "b", "1", b"")])
HAS: Named = {
    "cluster": {"a": "1", "b": "1"},
    "endpoints": {"a": "1", "b": "1"},
    "extension": {"x": "1"},
    "listener": {"l": "1", "in": "1"},
    "routes": {"r": "1"},
}
OFFER = Offer(1, Snapshot((CALLS, OWN, ENDS)))


def first_request(
    type_: str, versions: Mapping[str, str], names: Iterable[str] | None = None
) -> DeltaRequest:
    """The first request of a type, decoded from bytes."""
    subscribed = () if type_ in WILDCARD_TYPES else tuple(versions if names is None else names)
    return decoded(message(type_, subscribed, versions)).request


def message(type_: str, names: Sequence[str] = (), versions: Mapping[str, str] | None = None) -> Any:
    class_ = schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
    return class_(
        type_url=TYPE_URLS[type_], resource_names_subscribe=names, initial_resource_versions=versions or {}
    )


def decoded(sent: Any) -> Any:
    data = sent if isinstance(sent, bytes) else sent.SerializeToString()
    return DeltaRequestDecoder(schema()).decode(data)


def reconnected(session: DeltaSession, has: Named) -> list[DeltaResponse]:
    return [
        each for type_, names in has.items() for each in session.receive(first_request(type_, names), 0.0)
    ]


def sent_names(responses: Iterable[DeltaResponse]) -> list[tuple[str, list[str], list[str]]]:
    return [(each.type, [p.name for p in each.resources], list(each.removed)) for each in responses]


@pytest.mark.parametrize("place", range(6))
def test_a_proxy_that_holds_everything_gets_no_response_whenever_the_offer_comes(place: int):
    session, sent = DeltaSession(30.0), []
    types = list(HAS)
    for number in range(6):
        if number == place:
            sent += session.offer(OFFER, 0.0)
        if number < len(types):
            assert not session.is_synced
            sent += session.receive(first_request(types[number], HAS[types[number]]), 0.0)
            assert (session.status.state == "synced") == session.is_synced
    assert sent == []
    assert session.is_synced
    assert (session.status.state, session.status.acked_versions) == ("synced", HAS)


@pytest.mark.parametrize(
    ("type_", "versions", "expected"),
    [
        ("routes", {"r": "0"}, [("routes", ["r"], [])]),
        ("listener", {"l": "1"}, [("listener", ["in"], [])]),
        ("listener", {"l": "1", "in": "1", "old": "1"}, [("listener", [], ["old"])]),
        ("cluster", {"a": "1", "b": "0"}, [("cluster", ["b"], []), ("endpoints", ["b"], [])]),
        ("cluster", {"a": "1", "c": "1"}, [("cluster", ["b"], []), ("endpoints", ["b"], [])]),
        ("extension", {}, [("extension", ["x"], [])]),
    ],
    ids=["one differs", "one is missing", "one is too many", "a cluster differs", "another name", "none"],
)
def test_a_proxy_gets_the_difference(type_, versions, expected):
    session = DeltaSession(30.0)
    has = {**HAS, type_: versions}
    for each, names in has.items():
        assert session.receive(first_request(each, names, HAS[each]), 0.0) == []
    assert sent_names(session.offer(OFFER, 0.0)) == expected
    assert not session.is_synced


def test_a_name_that_a_proxy_asks_for_and_has_not_is_answered():
    session = DeltaSession(30.0)
    session.offer(OFFER, 0.0)
    reconnected(session, {type_: HAS[type_] for type_ in ("cluster", "endpoints", "extension", "listener")})
    assert sent_names(session.receive(first_request("routes", HAS["routes"], ("r", "s")), 0.0)) == [
        ("routes", [], ["s"])
    ]


def test_a_version_of_a_name_that_a_proxy_does_not_ask_for_does_not_count():
    session = DeltaSession(30.0)
    session.receive(first_request("routes", {"r": "1", "s": "1"}, ("r",)), 0.0)
    assert session.status.acked_versions == {"routes": {"r": "1"}}


def test_a_piece_that_hides_another_one_is_the_one_that_counts():
    other = bundle([XdsResource("endpoints", "a", "2", b"")])
    session = DeltaSession(30.0)
    reconnected(session, HAS)
    assert session.offer(Offer(1, Snapshot((CALLS, OWN, ENDS, other))), 0.0) == []
    assert (session.status.state, session.is_synced) == ("synced", False)
    session = DeltaSession(30.0)
    reconnected(session, HAS)
    sent = session.offer(Offer(1, Snapshot((other, CALLS, OWN, ENDS))), 0.0)
    assert sent_names(sent) == [("endpoints", ["a"], [])]


def test_proxies_that_share_a_large_bundle_are_each_told_what_they_lack():
    names = [f"r-{number}" for number in range(100)]
    shared = bundle([XdsResource("routes", name, "1", b"") for name in names])
    for missed in (None, "r-7", None, "r-99"):
        session = DeltaSession(30.0)
        has = {name: "0" if name == missed else "1" for name in reversed(names)}
        session.receive(first_request("routes", has), 0.0)
        sent = session.offer(Offer(1, Snapshot((shared,))), 0.0)
        assert sent_names(sent) == ([("routes", [missed], [])] if missed else [])
        assert session.is_synced == (missed is None)


def test_versions_of_two_names_in_exchange_are_not_the_same():
    session = DeltaSession(30.0)
    session.receive(first_request("routes", {"a": "2", "b": "1"}), 0.0)
    resources = bundle([XdsResource("routes", "a", "1", b""), XdsResource("routes", "b", "2", b"")])
    assert sent_names(session.offer(Offer(1, Snapshot((resources,))), 0.0)) == [("routes", ["a", "b"], [])]


def test_an_offer_with_failures_is_looked_at():
    session = DeltaSession(30.0)
    reconnected(session, HAS)
    failed = bundle([], [Failure("cluster", "c", "broken")])
    assert session.offer(Offer(1, Snapshot((CALLS, OWN, ENDS, failed))), 0.0) == []
    assert (session.status.state, session.is_synced) == ("synced", False)


def test_a_second_offer_before_all_was_said_counts():
    session = DeltaSession(30.0)
    some = {type_: HAS[type_] for type_ in ("cluster", "endpoints")}
    reconnected(session, some)
    session.offer(OFFER, 0.0)
    assert session.status.acked_versions == some
    changed = bundle([XdsResource("endpoints", "a", "1", b""), XdsResource("endpoints", "b", "2", b"")])
    sent = session.offer(Offer(2, Snapshot((CALLS, OWN, changed))), 0.0)
    assert sent_names(sent) == [("endpoints", ["b"], [])]


def test_initial_versions_that_match_the_offer_are_not_parsed(monkeypatch: pytest.MonkeyPatch):
    def never(_self: UnparsedVersions) -> Mapping[str, str]:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(UnparsedVersions, "_parsed", never)
    session = DeltaSession(30.0)
    reconnected(session, HAS)
    assert session.offer(OFFER, 0.0) == []
    assert session.is_synced


def test_a_proxy_without_resources_is_not_tracked_before_an_offer(
    monkeypatch: pytest.MonkeyPatch,
):
    def never(*_arguments: object) -> None:
        raise AssertionError("it was tracked")

    session = DeltaSession(30.0)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSession, "_replayed", never)
        assert reconnected(session, {type_: {} for type_ in WILDCARD_TYPES}) == []
    assert sent_names(session.offer(OFFER, 0.0)) == [("cluster", ["a", "b"], []), ("listener", ["in"], [])]


# Encoded requests.

NAMES = ("a", "größe", "n" * 127, "n" * 128, "m" * 20_000, "a\nb\x12c", "")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["1", "", "v" * 130])
def test_an_entry_is_written_as_protobuf_writes_it(name: str, version: str):
    data = message("routes", versions={name: version}).SerializeToString()
    assert data.endswith(version_entry(name, version))


def test_whatever_the_names_they_are_read_and_recognised():
    resources = bundle([XdsResource("routes", name, "1", b"") for name in NAMES])
    versions = dict.fromkeys(NAMES, "1")
    sent = message("routes", NAMES, versions)
    sent.node.id = "default.web"
    found = decoded(sent)
    assert (found.request, found.node.id) == (DeltaRequest("routes", NAMES, (), versions), "default.web")
    session = DeltaSession(30.0)
    session.receive(found.request, 0.0)
    assert session.offer(Offer(1, Snapshot((resources,))), 0.0) == []
    assert session.is_synced


A = b"\x2a\x06\x0a\x01a\x12\x011"
ROUTES = b"\x12" + bytes((len(TYPE_URLS["routes"]),)) + TYPE_URLS["routes"].encode()
ODD = {
    "another order": A + b"\x1a\x01a" + ROUTES,
    "an unknown field": ROUTES + b"\x1a\x01a" + A + b"\xfa\x3e\x03xyz",
    "a field of later days": ROUTES + b"\x1a\x01a" + A + b"\x42\x03\x0a\x01b",
    "the value before the key": ROUTES + b"\x1a\x01a" + b"\x2a\x06\x12\x011\x0a\x01a",
    "no value": ROUTES + b"\x1a\x01a" + b"\x2a\x03\x0a\x01a",
    "no key": ROUTES + b"\x1a\x01a" + b"\x2a\x00",
    "more in an entry": ROUTES + b"\x1a\x01a" + b"\x2a\x08\x0a\x01a\x12\x011\x18\x05",
    "the same twice": ROUTES + b"\x1a\x01a" + A + b"\x2a\x06\x0a\x01a\x12\x012",
    "a longer number": ROUTES + b"\x1a\x81\x00a" + b"\x2a\x86\x00\x0a\x01a\x12\x011",
    "two types": b"\x12\x01x" + A + b"\x1a\x01a" + ROUTES,
    "two nodes": b"\x0a\x03\x0a\x01x" + ROUTES + A + b"\x1a\x01a" + b"\x0a\x03\x12\x01c",
    "an answer too": ROUTES + b"\x1a\x01a" + A + b"\x32\x011",
    "a refusal too": ROUTES + b"\x1a\x01a" + A + b"\x3a\x02\x08\x0d",
    "something left": ROUTES + b"\x1a\x01a\x22\x01b" + A,
    "a type that is not served": b"\x12\x01x\x1a\x01a" + A,
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_an_unusual_request_is_read_as_protobuf_reads_it(data: bytes):
    sent = schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest").FromString(data)
    found = decoded(data)
    assert found.type_url == sent.type_url
    assert (found.node is not None, found.node.id if found.node else "") == (
        sent.HasField("node"),
        sent.node.id,
    )
    if found.request is None:
        assert sent.type_url == "x"
        return
    assert found.request.subscribe == tuple(sent.resource_names_subscribe)
    assert found.request.unsubscribe == tuple(sent.resource_names_unsubscribe)
    assert found.request.initial_versions == dict(sent.initial_resource_versions)
    assert (found.request.nonce, bool(found.request.error)) == (
        sent.response_nonce,
        sent.HasField("error_detail"),
    )


@pytest.mark.parametrize(
    "garbage",
    [b"\x1a\x05a", b"\x1a\x01\xff", b"\x0a\x02\x0a\x05", b"\xff\xff", b"\x2a"],
    ids=["cut off", "no text", "a node cut off", "no field", "no length"],
)
def test_bytes_that_are_no_request_are_refused_at_once(garbage: bytes):
    with pytest.raises(DecodeError):
        decoded(ROUTES + A + garbage)


@pytest.mark.parametrize("entry", [b"\x2a\x03\x0a\x05a", b"\x2a\x03\x0a\x01\xff"], ids=["cut off", "no text"])
def test_a_version_that_cannot_be_read_is_refused_when_it_is_looked_at(entry: bytes):
    session = DeltaSession(30.0)
    session.receive(decoded(ROUTES + b"\x1a\x01a" + entry).request, 0.0)
    with pytest.raises(DecodeError):
        session.offer(Offer(1, Snapshot((bundle([XdsResource("routes", "a", "1", b"")]),))), 0.0)


# Any requests in any order.

VERSION = st.sampled_from(("1", "1", "1", "2"))
SOME = st.dictionaries(st.sampled_from("ab"), VERSION, max_size=2)


@st.composite
def offers(draw) -> Offer:
    plain_types = [type_ for type_ in TYPES if type_ != VIRTUAL_HOST]
    versions = {(type_, name): version for type_ in plain_types for name, version in draw(SOME).items()}
    routes = [name for type_, name in versions if type_ == "routes"]
    hosts = {f"{name}/{host}": version for name in routes for host, version in draw(SOME).items()}
    versions |= {(VIRTUAL_HOST, name): version for name, version in hosts.items()}

    def resource(type_: str, name: str, version: str) -> XdsResource:
        needed = {"cluster": "endpoints", "listener": "routes", "routes": "cluster"}.get(type_)
        needs = ((needed, name),) if needed and (needed, name) in versions else ()
        return XdsResource(type_, name, f"{version}{len(needs)}", b"", needs)

    resources = [resource(*id_, version) for id_, version in versions.items()]
    cut = draw(st.integers(0, len(resources)))
    again = resources[:1] if draw(st.integers(0, 9)) == 0 else []
    return Offer(
        draw(st.integers(1, 9)), Snapshot((bundle(resources[:cut]), bundle([*resources[cut:], *again])))
    )


@st.composite
def stories(draw) -> list[Offer | DeltaRequest]:
    """Offers, and requests of a proxy that holds most of the first one."""
    first = draw(offers())
    history: list[Offer | DeltaRequest] = []
    for type_ in draw(st.permutations(TYPES)):
        versions = {name: resource.version for name, resource in first.snapshot.of_type(type_).items()}
        if draw(st.integers(0, 5)) == 0:
            versions = draw(SOME)
        names = () if type_ in WILDCARD_TYPES else tuple(versions)
        if draw(st.integers(0, 9)) == 0:
            names = draw(st.sampled_from((("*",), ("a",), ("a", "b"), ("c", *names))))
        if versions or draw(st.booleans()):
            history.append(DeltaRequest(type_, names, initial_versions=versions))
    for offer in [first, *draw(st.lists(offers(), max_size=1))]:
        history.insert(draw(st.integers(0, len(history))), offer)
    again = draw(st.lists(st.sampled_from(history), max_size=2))
    return [*history, *again]


@pytest.mark.property
@given(stories())
def test_first_requests_are_answered_as_if_they_were_tracked(story):
    lazy, eager = DeltaSession(30.0), DeltaSession(30.0)
    eager._tracked()
    for now, event in enumerate(story):
        if isinstance(event, Offer):
            untracked, tracked = lazy.offer(event, now), eager.offer(event, now)
        else:
            sent = message(event.type, event.subscribe, event.initial_versions)
            untracked, tracked = lazy.receive(decoded(sent).request, now), eager.receive(event, now)
        assert untracked == tracked
        assert lazy.status == eager.status
        assert lazy.tick(now) == eager.tick(now)
        assert lazy.next_tick == eager.next_tick
    untracked, tracked = lazy.tick(100.0), eager.tick(100.0)
    assert untracked == tracked


@pytest.mark.parametrize("n_shared", [0, 3])
def test_the_sums_of_parts_are_those_of_the_whole_also_where_parts_have_one_name(n_shared):
    resources = [
        XdsResource(type_, f"n{n}", str(n), b"") for n in range(20) for type_ in ("cluster", "routes")
    ]
    halves = bundle(resources[: 20 + n_shared]), bundle(resources[20:])
    whole = bundle(resources)
    joined = Bundle(whole.resources, (), halves)
    assert joined.version_sums == whole.version_sums
    assert [half.version_sums for half in halves] == [
        bundle(half.resources.values()).version_sums for half in halves
    ]
