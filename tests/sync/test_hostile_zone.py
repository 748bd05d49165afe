"""A zone that lies, floods or never answers does no harm to Global, nor to other zones."""

from collections.abc import Iterator

import msgspec
import psutil
import pytest

from koguma.main import all_kinds
from koguma.model.resource import Key, Resource
from koguma.sync import mapping
from koguma.sync.protocol import messages, sums
from koguma.sync.protocol.messages import (
    Ack,
    Entries,
    EntriesWanted,
    HeldEntry,
    Objects,
    Refusal,
    SyncedObject,
)
from tests.build import timeout
from tests.sync.lying_zone import LyingZone
from tests.sync.test_zones import URL, Federation, _checks, _names, _token
from tests.waiting import until

pytestmark = pytest.mark.slow

KINDS = all_kinds()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("g"))
    with federation.stack:
        yield federation


def _liar(federation: Federation, zone: str = "east") -> LyingZone:
    ca = (federation.directory / "global" / "ca.pem").read_bytes()
    return LyingZone(federation.sync_port, ca, _token(federation.top, zone), zone)


def _policy(zone: str, name: str = "slow", **fields: object) -> Resource:
    written = Resource(
        kind="MeshTimeout",
        mesh="default",
        zone=zone,
        name=name,
        core_name=name,
        labels={"kuma.io/origin": "zone"},
        spec=timeout(name)["spec"],
        creation_time="2026-01-01T00:00:00Z",
    )
    sent = mapping.upward(written, KINDS["MeshTimeout"], zone)
    assert sent is not None
    return msgspec.structs.replace(sent, **fields)


def _sent(resource: Resource) -> SyncedObject:
    return SyncedObject(resource.key, msgspec.json.encode(resource))


def _acks(zone: LyingZone) -> Iterator[Ack]:
    return (message for message in zone.heard() if isinstance(message, Ack))


def test_what_is_not_its_own_is_refused_and_the_rest_is_stored(federation: Federation) -> None:
    good = _policy("east", "good", uid="mine", annotations={"a": "b"}, generation=99)
    secret = Resource(kind="Secret", mesh="default", name="s", core_name="s", spec={"data": "eA=="})
    internal = Resource(kind="control-plane-key", name="peers", core_name="peers", spec={"key": "x" * 64})
    lies = [
        (_policy("west"), 'it is of zone "west"'),
        (_policy("east", "hashed", core_name="all-mine"), "not those of an object of this zone"),
        (_policy("east", "a_b"), "name:"),
        (_policy("east", "x" * 400), "name:"),
        (_policy("east", "label", labels={**_policy("east", "label").labels, "": "x"}), "labels"),
        (_policy("east", "time", creation_time="yesterday"), "creationTime"),
        (_policy("east", "spec", spec={"to": 7}), "spec"),
        (secret, "Secret is written on Global"),
        (internal, "no kind control-plane-key"),
    ]
    with _liar(federation) as zone:
        zone.greet()
        other = SyncedObject(_policy("east", "other").key, b"{}")
        zone.say(Objects(1, (*(_sent(each) for each, _ in lies), other, _sent(good))))
        ack = next(_acks(zone))
        reasons = {refusal.key: refusal.reason for refusal in ack.refused}
        for each, words in lies:
            assert words in reasons.pop(each.key), each.key
        assert list(reasons) == [other.key]
        stored = federation.top("GET", "/_kri/kri_mt_default_east__good_").json
        assert "a" not in stored.get("annotations", {})
        # It cannot take away what it does not hold, and is shown as the one that it is.
        assert federation.top("PUT", f"{URL}/ours", timeout("ours")).status == 201
        zone.say(Objects(2, (), (Key("MeshTimeout", "default", "", "", "ours"), good.key)))
        next(_acks(zone))
        assert list(_names(federation.top)) == ["ours"]
        assert federation.top("DELETE", f"{URL}/ours").status == 200
        assert "not those of an object of this zone" in str(_checks(federation.top, "sync"))


def _long_key() -> Key:
    return Key("MeshTimeout", "default", "east", "", "x" * 2000)


@pytest.mark.expected_errors("the stream of a zone ended|not let in")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"nonsense", "no message of the sync protocol"),
        (messages.encoded(Ack(1)), "before it was sent"),
        (messages.encoded(Objects(2)), "batch 2 came after batch 0"),
        (messages.encoded(Objects(1, (), (_long_key(),))), "a key has more than"),
        (messages.encoded(Objects(1, (), (_long_key()._replace(name="x"),) * 1001)), "length <= 1000"),
        (messages.encoded(EntriesWanted((1, 2))) * 2, "no message"),
        (messages.encoded(EntriesWanted((5000,))), "no such bucket"),
        (
            messages.encoded(Ack(0, (Refusal(_long_key()._replace(name="x"), b"", "x" * 1001),))),
            "length <= 1000",
        ),
        (b"\x00" * (9 * 1024 * 1024), "larger than max"),
    ],
)
def test_what_may_not_be_said_ends_the_stream_with_a_reason(
    federation: Federation, said: bytes, words: str
) -> None:
    with _liar(federation) as zone:
        zone.greet()
        zone.say(said)
        assert words in zone.end()


@pytest.mark.expected_errors("the stream of a zone ended")
def test_who_it_is_must_be_said_once_and_truly(federation: Federation) -> None:
    with _liar(federation) as zone:
        zone.say(Ack(0))
        assert "no greeting" in zone.end()
    with _liar(federation) as zone:
        zone.greet("west")
        assert 'says that it is "west"' in zone.end()
    with _liar(federation) as zone:
        for _ in range(50):
            zone.greet()
        assert "a second greeting" in zone.end()
    with _liar(federation) as zone:
        zone.greet()
        zone.say(EntriesWanted((1,)))
        zone.say(EntriesWanted((1,)))
        assert "twice" in zone.end()


def test_floods_are_read_at_a_walk_and_do_not_fill_memory(federation: Federation) -> None:
    """Entries without end, refusals of what was never sent, and no acknowledgement."""
    top = federation.top
    for number in range(40):
        big = timeout(f"big-{number}")
        assert top("PUT", f"{URL}/big-{number}", {**big, "labels": {"a": "x" * 60}}).status == 201
    key = Key("MeshTimeout", "default", "", "", "never-sent")
    with _liar(federation, "flood") as zone:
        zone.greet(kinds=("MeshTimeout", "Mesh"))
        wanted = next(each for each in zone.heard() if isinstance(each, EntriesWanted))
        buckets = frozenset(wanted.buckets)
        names = (key._replace(name=f"n{number}") for number in range(10_000_000))
        before = psutil.Process().memory_info().rss
        for _ in range(200):
            some = [each for each, _ in zip(names, range(6000), strict=False) if sums.bucket(each) in buckets]
            zone.say(Entries(tuple(HeldEntry(each, b"h" * 16) for each in some[:5000]), is_last=False))
            zone.say(Ack(0, (Refusal(key, b"", "y" * 1000),) * 100))
        zone.say(Entries((), is_last=True))
        until(lambda: "flood" in str(top("GET", "/zones").json), "Global answers all the while")
        assert _checks(top, "sync") == []
        assert psutil.Process().memory_info().rss - before < 300 * 1024 * 1024
    for number in range(40):
        assert top("DELETE", f"{URL}/big-{number}").status == 200


@pytest.mark.expected_errors("the stream of a zone ended")
def test_one_control_plane_of_a_zone_is_connected_at_a_time(federation: Federation) -> None:
    with _liar(federation, "shared") as first:
        first.greet(instance="a")
        next(first.heard())
        until(lambda: "koguma_zones_connected 1" in federation.top("GET", "/metrics").text, "it is connected")
        with _liar(federation, "shared") as second:
            second.greet(instance="b")
            assert 'zone "shared" is connected by its control plane a; this one has to wait' in second.end()
        with _liar(federation, "shared") as again:  # the first died, and nobody noticed yet
            again.greet(instance="a")
            assert "newer stream" in first.end()
            next(again.heard())
