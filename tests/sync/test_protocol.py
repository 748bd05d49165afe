"""The sync protocol: whatever happens to its connections, a subscriber ends with what a new one would get."""

from random import Random

import pytest

from koguma.model.resource import Key
from koguma.sync.protocol import catalog, messages, publisher, sums
from koguma.sync.protocol.catalog import SyncCatalog, SyncReach
from koguma.sync.protocol.messages import Ack, BrokenProtocol, Entries, EntriesWanted, HeldEntry, Objects
from koguma.sync.protocol.publisher import Publisher
from koguma.sync.protocol.subscriber import Subscriber
from tests.sync.sync_link import PublishingSide, SyncLink

pytestmark = pytest.mark.slow


def _key(number: int, zone: str = "") -> Key:
    return Key("MeshTimeout", "default", zone, "", f"timeout-{number}")


def _is_odd(content: bytes) -> bool:
    return content.startswith(b"odd")


def _everybody(_reach: SyncReach) -> bool:
    return True


class _History:
    """Random changes, losses, repetitions and reconnects of two zones, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.side = PublishingSide()
        self.links = [SyncLink(self.side, zone, _is_odd) for zone in ("east", "west")]

    def step(self) -> None:
        random, side = self.random, self.side
        link = random.choice(self.links)
        key = _key(random.randrange(12), random.choice(("", "", "east", "west")))
        match random.randrange(12):
            case 0 | 1 | 2:
                word = random.choice((b"good", b"good", b"odd"))
                side.put(key, word + bytes([random.randrange(4)]), random.choice(("", "", "", "east")))
            case 3:
                side.remove(key)
            case 4 | 5 | 6:
                link.deliver_down(twice=random.random() < 0.3)
            case 7 | 8:
                link.deliver_up()
            case 9 | 10:
                link.send()
            case _:
                link.connect()

    def fresh(self, zone: str) -> dict[Key, bytes]:
        link = SyncLink(self.side, zone, _is_odd)
        link.settle()
        return link.stored


@pytest.mark.parametrize("seed", range(150))
def test_ends_with_what_a_new_subscriber_would_get(seed: int) -> None:
    history = _History(seed)
    for _ in range(300):
        history.step()
    for link in history.links:
        link.settle()
        expected = history.fresh(link.zone)
        refused = {key for key, content in history.side.contents.items() if _is_odd(content)}
        assert {key: link.stored[key] for key in link.stored if key not in refused} == expected
        # A version that was refused leaves the one before it in place, and both sides know of it.
        assert set(link.stored) - set(expected) <= refused
        shown = {key for key in refused if link._gets(history.side.catalog.get(key).reach)}
        assert set(link.publisher.refused) >= shown


def test_a_reconnect_sends_nothing_that_is_there() -> None:
    side = PublishingSide()
    for number in range(3000):
        side.put(_key(number), b"x" * 1000)
    link = SyncLink(side, "east")
    link.settle()
    assert len(link.stored) == 3000
    first, link.n_bytes = link.n_bytes, 0
    link.connect()
    link.settle()
    assert link.n_bytes < 0.01 * first
    side.put(_key(7), b"new")
    side.remove(_key(8))
    link.connect()
    link.settle()
    assert link.n_bytes < 0.03 * first
    assert link.stored == side.contents


def test_what_is_on_the_way_is_bounded_and_the_newest_version_wins() -> None:
    side = PublishingSide()
    for number in range(100):
        side.put(_key(number), b"x" * 50_000)
    link = SyncLink(side, "east")
    link.deliver_down()
    link.deliver_up()
    n_sent = 0
    while link.send():
        n_sent += 1
    on_the_way = sum(map(len, link.down))
    assert on_the_way < publisher.WINDOW_BYTES + publisher.BATCH_BYTES + 100_000
    for version in range(50):
        side.put(_key(0), b"version %d" % version)
    link.settle()
    assert link.stored == side.contents
    versions = link.stored[_key(0)]
    assert versions == b"version 49"


def test_removals_that_were_forgotten_are_found_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "REMOVALS_KEPT", 3)
    side = PublishingSide()
    for number in range(20):
        side.put(_key(number), b"x")
    link = SyncLink(side, "east")
    link.settle()
    for number in range(10):
        side.remove(_key(number))
    assert link.publisher.is_too_late
    link.settle()
    assert link.stored == side.contents


def test_whoever_is_behind_a_catalog_that_was_read_again_is_compared() -> None:
    side = PublishingSide()
    side.put(_key(1), b"x")
    link = SyncLink(side, "east")
    assert not link.publisher.is_all_sent
    link.settle()
    assert link.publisher.is_all_sent
    side.remove(_key(1))
    side.catalog.forget_removals()
    assert not link.send()
    assert link.publisher.is_too_late
    link.keeps_surplus = True
    link.settle()
    assert link.subscriber.surplus == set(link.stored) == {_key(1)}


def test_a_publisher_with_another_history_takes_nothing_away_until_somebody_agrees() -> None:
    side = PublishingSide()
    for number in range(5):
        side.put(_key(number), b"x")
    link = SyncLink(side, "east")
    link.settle()
    link.side, link.keeps_surplus = PublishingSide(), True  # a store that was restored empty
    link.side.put(_key(4), b"y")
    link.connect()
    link.settle()
    assert link.subscriber.surplus == {_key(number) for number in range(4)}
    assert link.stored == {**side.contents, _key(4): b"y"}
    link.side.put(_key(0), b"back")  # again in the publisher's hands
    link.settle()
    assert link.subscriber.surplus == {_key(number) for number in (1, 2, 3)}
    link.keeps_surplus = False  # somebody agreed
    link.connect()
    link.settle()
    assert link.stored == link.side.contents


def test_an_object_for_one_zone_leaves_the_others() -> None:
    side = PublishingSide()
    side.put(_key(1), b"x")
    east, west = SyncLink(side, "east"), SyncLink(side, "west")
    east.settle()
    west.settle()
    side.put(_key(1), b"x", only_to="west")
    east.settle()
    west.settle()
    assert (east.stored, west.stored) == ({}, {_key(1): b"x"})


def test_what_may_not_be_sent_ends_the_connection() -> None:
    subscriber = Subscriber({})
    with pytest.raises(BrokenProtocol, match="batch 2 came after batch 0"):
        subscriber.receive(Objects(2))
    with pytest.raises(BrokenProtocol, match="no such bucket"):
        list(subscriber.entries(EntriesWanted((messages.BUCKETS,))))
    sender = Publisher(SyncCatalog(), _everybody, lambda _key: None)
    with pytest.raises(BrokenProtocol, match="nobody asked"):
        sender.receive_entries(Entries((), is_last=True))
    with pytest.raises(BrokenProtocol, match="before it was sent"):
        sender.receive_ack(Ack(1))
    with pytest.raises(BrokenProtocol, match="3 bytes long"):
        sender.compare(b"abc")
    asked = Publisher(SyncCatalog(), _everybody, lambda _key: None)
    key = _key(1)
    wanted = asked.compare(sums.packed([HeldEntry(key, b"h" * 16)]))
    assert wanted is not None
    other = next(_key(number) for number in range(2, 99) if sums.bucket(_key(number)) != sums.bucket(key))
    with pytest.raises(BrokenProtocol, match="of a bucket that nobody asked for"):
        asked.receive_entries(Entries((HeldEntry(other, b"h" * 16),), is_last=True))
    for data in (b"", b"\xc1", b"\x00", messages.encoded(Objects(1))[:-1], b"\x91" * 100_000):
        with pytest.raises(BrokenProtocol, match="no message of the sync protocol"):
            messages.decoded(data)


def test_the_order_of_changes_is_swept() -> None:
    published = SyncCatalog()
    for version in range(5000):
        published.put(_key(version % 3), b"%d" % version)
    assert len(published._order) < 2 * catalog._STALE_MIN
    assert [key for _, key in published.changes(0, 10)] == [
        _key(version % 3) for version in (4997, 4998, 4999)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_sums_that_are_kept_up_to_date_are_those_of_all_entries(seed: int) -> None:
    random, published, expected = Random(seed), SyncCatalog(), {}
    for _ in range(300):
        key = _key(random.randrange(40), random.choice(("", "east", "west")))
        if random.random() < 0.3:
            published.remove(key)
            expected.pop(key, None)
        else:
            expected[key] = random.randbytes(16), random.choice(("", "west"))
            published.put(key, *expected[key])
    for zone in ("east", "west", "north"):
        entries = {
            HeldEntry(key, hash_)
            for key, (hash_, only_to) in expected.items()
            if key.zone != zone and only_to in ("", zone)
        }

        def gets(reach: SyncReach, zone: str = zone) -> bool:
            return reach.zone != zone and reach.only_to in ("", zone)

        assert published.sums(gets) == sums.packed(entries)
        assert set(published.entries(gets, range(messages.BUCKETS))) == entries
    for key in expected:
        published.remove(key)
    assert published.sums(_everybody) == sums.packed(())
