"""What a publisher knows that its subscriber has: never more than that one has stored."""

from random import Random

import pytest

from koguma.model.resource import Key
from koguma.model.sync_receipt import RefusedObject
from koguma.sync.protocol import publisher
from tests.sync.sync_link import PublishingSide, SyncLink


def _key(number: int) -> Key:
    return Key("MeshTimeout", "default", "", "", f"timeout-{number}")


def _is_odd(content: bytes) -> bool:
    return content.startswith(b"odd")


class _Versions:
    """Random changes and deliveries; each content has the revision at which it was written."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.side = PublishingSide()
        self.link = SyncLink(self.side, "east", _is_odd)
        self.changes: list[tuple[Key, bool]] = []  # by revision: the object, and whether it was written

    def step(self) -> None:
        random = self.random
        key = _key(random.randrange(8))
        match random.randrange(14):
            case 0 | 1 | 2:
                word = random.choice((b"good", b"good", b"good", b"odd"))
                self.changes.append((key, True))
                self.side.put(key, b"%s %d" % (word, len(self.changes)))
            case 3:
                self.changes.append((key, False))
                self.side.remove(key)
            case 4 | 5 | 6 | 7:
                self.link.deliver_down(twice=random.random() < 0.3)
            case 8 | 9:
                self.link.deliver_up()
            case 10 | 11 | 12:
                self.link.send()
            case _ if random.random() < 0.2:
                self.link.connect()

    def check(self) -> None:
        """Of each object it has the last version up to that revision, or a later one, or refused it."""
        has, stored = self.link.publisher.has_revision, self.link.stored
        last = {key: (number, is_put) for number, (key, is_put) in enumerate(self.changes[:has], 1)}
        for key, (number, is_put) in last.items():
            version = int(stored[key].split()[1]) if key in stored else 0
            later = any(other == key for other, _ in self.changes[has:])
            is_refused = self.link.publisher.refused_after.get(key, number) < number
            if version >= number or is_refused:
                continue
            assert not version, f"it has {key} of {version}, and not of {number}, up to {has}"
            assert not is_put or later, f"it lacks {key} of {number}, up to {has}"


@pytest.mark.parametrize("batch", [2, publisher.BATCH_OBJECTS])
def test_it_has_everything_up_to_the_revision_whatever_is_skipped_lost_or_refused(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    # Small ones: several for what is there at one moment, so that objects move behind what was sent.
    monkeypatch.setattr(publisher, "BATCH_OBJECTS", batch)
    monkeypatch.setattr(publisher, "WINDOW_BYTES", 450 * batch)
    reached = 0
    for seed in range(60):
        versions = _Versions(seed)
        for _ in range(150):
            versions.step()
            versions.check()
        reached += versions.link.publisher.has_revision > 0
        versions.link.settle()
        versions.check()
        assert versions.link.publisher.has_revision == versions.side.revision
    assert reached > 10


def test_what_is_written_twice_is_not_there_before_its_second_version_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "BATCH_OBJECTS", 1)
    side = PublishingSide()
    link = SyncLink(side, "east")
    link.settle()
    for number in (1, 2, 3):
        side.put(_key(number), b"first")
    assert link.send()  # the first object
    side.put(_key(2), b"second")  # which moves behind the third one
    assert link.send()
    while link.deliver_down() or link.deliver_up():
        pass
    assert set(link.stored) == {_key(1), _key(3)}
    assert link.publisher.has_revision == 0, "it has the third one, and the second in no version"
    link.settle()
    assert link.publisher.has_revision == 4


def test_a_refusal_is_about_what_came_since_it_had_everything() -> None:
    side = PublishingSide()
    link = SyncLink(side, "east", _is_odd)
    side.put(_key(1), b"good")
    link.settle()
    side.put(_key(2), b"odd")
    link.settle()
    assert (link.publisher.has_revision, link.publisher.refused_after) == (2, {_key(2): 1})
    refused = RefusedObject(_key(2), "it is odd", 1, 2)
    assert [refused.is_about(revision) for revision in (1, 2, 3)] == [False, True, False]
    side.put(_key(2), b"good")
    assert link.send()
    assert link.publisher.refused_after == {_key(2): 1}, "the next version is on its way"
    link.settle()
    assert (link.publisher.has_revision, link.publisher.refused_after) == (3, {})


def test_refusals_that_are_not_remembered_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "REFUSALS_MAX", 1)
    side = PublishingSide()
    link = SyncLink(side, "east", _is_odd)
    side.put(_key(1), b"odd")
    link.settle()
    assert not link.publisher.is_refusal_forgotten
    side.put(_key(2), b"odd")
    link.settle()
    assert link.publisher.is_refusal_forgotten
