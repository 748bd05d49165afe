"""Watching: for which proxies a change means another snapshot.

Thousands of proxies share what they call others with. So that is watched once for all who share it, a proxy's
own part by itself, and a change for all of them costs each no more than a new tuple.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from koguma.core.build import snapshot
from koguma.core.build.snapshot import Own, Place
from koguma.core.incremental import Db, Watcher
from koguma.envoy.snapshot import Snapshot
from koguma.model.resource import Key

_UNMADE: Final = Snapshot()  # what stands for one whose questions raised; equals no other


class _Found(NamedTuple):
    """What was found of a proxy last."""

    own: Own | None
    made: Snapshot | None


class Watching:
    """The proxies that somebody waits for, and what each gets."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._watcher = Watcher(db)
        self._found: dict[Key, _Found] = {}
        self._places: dict[Place, dict[Key, None]] = {}
        self._mixed: dict[Place, None] = {}  # who came last has something newer there than the others

    def add(self, proxy: Key) -> None:
        """Let `changed` tell from now on when a proxy gets something else than now."""
        self._watcher.watch(snapshot.own, proxy)
        self._look(proxy)

    def remove(self, proxy: Key) -> None:
        """Stop that."""
        self._watcher.unwatch(snapshot.own, proxy)
        found = self._found.pop(proxy, None)
        if found is not None and found.own is not None:
            self._leave(proxy, found.own.place)

    def of(self, proxy: Key) -> Snapshot | None:
        """What a proxy gets, as of the last `add` or `changed`; raises what its questions raise."""
        made = self._found[proxy].made
        return snapshot.of(self.db, proxy) if made is _UNMADE else made

    def changed(self) -> list[Key]:
        """The proxies that get something else than when they were added, or last told."""
        said = self._watcher.changed()
        moved = {about: None for question, (about,) in said if question is snapshot.own}
        news = [proxy for proxy in moved if self._look(proxy)]
        mixed, self._mixed = self._mixed, {}
        for place in {about: None for question, (about,) in said if question is snapshot.shared} | mixed:
            others = [proxy for proxy in self._places.get(place, ()) if proxy not in moved]
            news += self._share(place, others, are_alike=place not in mixed)
        return news

    def _look(self, proxy: Key) -> bool:
        """Find out what a proxy gets; whether that is something else."""
        before = self._found.get(proxy, _Found(None, _UNMADE))
        now = self._made(proxy)
        self._found[proxy] = now
        old, new = (each.own.place if each.own is not None else None for each in (before, now))
        if new is not None and new != old:
            self._enter(proxy, new)
        if old is not None and new != old:
            self._leave(proxy, old)
        return now.made is _UNMADE or now.made != before.made

    def _made(self, proxy: Key) -> _Found:
        mine: Own | None = None
        try:
            mine = snapshot.own(self.db, proxy)
            return _Found(mine, mine and snapshot.whole(mine, snapshot.shared(self.db, mine.place)))
        except Exception:  # noqa: BLE001 - whoever asks for it is told; the others are not to wait for that
            return _Found(mine, _UNMADE)

    def _share(self, place: Place, proxies: Iterable[Key], *, are_alike: bool) -> Iterator[Key]:
        """Give proxies what their place has now; those that get something else by it.

        If they were alike, that is all of them.
        """
        try:
            now = snapshot.shared(self.db, place)
        except Exception:  # noqa: BLE001 - as above
            yield from filter(self._look, proxies)
            return
        for proxy in proxies:
            mine, before = self._found[proxy]
            assert mine is not None
            made = snapshot.whole(mine, now)
            if are_alike or made != before:
                self._found[proxy] = _Found(mine, made)
                yield proxy

    def _enter(self, proxy: Key, place: Place) -> None:
        there = self._places.get(place)
        if there is None:
            there = self._places[place] = {}
            self._watcher.watch(snapshot.shared, place)
        elif not self._are_alike(proxy, next(iter(there))):
            self._mixed[place] = None
        there[proxy] = None

    def _are_alike(self, one: Key, other: Key) -> bool:
        """Whether two proxies of a place have the same of it."""
        first, second = self._found[one].made, self._found[other].made
        if first is None or second is None or not first.bundles or not second.bundles:
            return False
        return first.bundles[0] is second.bundles[0] and first.bundles[-1] is second.bundles[-1]

    def _leave(self, proxy: Key, place: Place) -> None:
        del self._places[place][proxy]
        if not self._places[place]:
            del self._places[place]
            self._mixed.pop(place, None)
            self._watcher.unwatch(snapshot.shared, place)
