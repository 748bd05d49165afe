"""Snapshot watcher: which proxies get another snapshot by a change.

Thousands of proxies share their outbound part. It is watched once for all that share it, and the part of a
proxy's own for each; so a change for all of them costs each proxy no more than a new tuple.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from koguma.core.build import snapshot
from koguma.core.build.snapshot import OwnBundles, SharedSpec
from koguma.core.incremental import Db, Watcher
from koguma.envoy.snapshot import Snapshot
from koguma.model.resource import Key

_FAILED: Final = Snapshot()  # stands for the snapshot of a proxy whose questions raised; equals no other


class _Watched(NamedTuple):
    """What a watched proxy had last."""

    own: OwnBundles | None
    snapshot: Snapshot | None


class SnapshotWatcher:
    """The watched proxies, and the snapshot of each."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._watcher = Watcher(db)
        self._watched: dict[Key, _Watched] = {}
        self._sharing: dict[SharedSpec, dict[Key, None]] = {}  # the proxies that share an outbound part
        self._mixed: dict[SharedSpec, None] = {}  # the newest proxy has a newer outbound part than others

    def add(self, proxy: Key) -> None:
        """Watch a proxy: `changed` reports it from now on when its snapshot differs from the present one."""
        if proxy in self._watched:
            self.remove(proxy)  # else it would be compared with what it had when it was added before
        self._watcher.watch(snapshot.own, proxy)
        self._refresh(proxy)

    def remove(self, proxy: Key) -> None:
        """Watch a proxy no longer."""
        self._watcher.unwatch(snapshot.own, proxy)
        watched = self._watched.pop(proxy, None)
        spec = watched.own.shared_spec if watched is not None and watched.own is not None else None
        if spec is not None:
            self._leave(proxy, spec)

    def of(self, proxy: Key) -> Snapshot | None:
        """The snapshot of a proxy as of the last `add` or `changed`; raises what its questions raise."""
        latest = self._watched[proxy].snapshot
        return snapshot.of(self.db, proxy) if latest is _FAILED else latest

    def changed(self) -> list[Key]:
        """The proxies whose snapshot differs from the one that they had when added or last reported."""
        answers = self._watcher.changed()
        moved = {subject: None for question, (subject,) in answers if question is snapshot.own}
        proxies = [proxy for proxy in moved if self._refresh(proxy)]
        mixed, self._mixed = self._mixed, {}
        for spec in {
            subject: None for question, (subject,) in answers if question is snapshot.shared
        } | mixed:
            others = [proxy for proxy in self._sharing.get(spec, ()) if proxy not in moved]
            if others:  # else nobody has this spec any more, and to ask about it would build all of it again
                proxies += self._refresh_shared(spec, others, are_alike=spec not in mixed)
        return proxies

    def _refresh(self, proxy: Key) -> bool:
        """Compute the snapshot of a proxy; whether it differs."""
        before = self._watched.get(proxy, _Watched(None, _FAILED))
        now = self._computed(proxy)
        self._watched[proxy] = now
        old, new = (each.own.shared_spec if each.own is not None else None for each in (before, now))
        if new is not None and new != old:
            self._enter(proxy, new)
        if old is not None and new != old:
            self._leave(proxy, old)
        return now.snapshot is _FAILED or now.snapshot != before.snapshot

    def _computed(self, proxy: Key) -> _Watched:
        own: OwnBundles | None = None
        try:
            own = snapshot.own(self.db, proxy)
            shared = snapshot.shared_of(self.db, own) if own else None
            return _Watched(own, snapshot.whole(own, shared) if own else None)
        except Exception:  # noqa: BLE001 - `of` raises it for this proxy; the others must not wait for that
            return _Watched(own, _FAILED)

    def _refresh_shared(self, spec: SharedSpec, proxies: Iterable[Key], *, are_alike: bool) -> Iterator[Key]:
        """Give proxies their new shared outbound part; those whose snapshot differs by it.

        Where all had the same one before, that is each of them.
        """
        try:
            shared = snapshot.shared(self.db, spec)
        except Exception:  # noqa: BLE001 - as above
            yield from filter(self._refresh, proxies)
            return
        for proxy in proxies:
            own, before = self._watched[proxy]
            assert own is not None
            after = snapshot.whole(own, shared)
            if are_alike or after != before:
                self._watched[proxy] = _Watched(own, after)
                yield proxy

    def _enter(self, proxy: Key, spec: SharedSpec) -> None:
        sharing = self._sharing.get(spec)
        if sharing is None:
            sharing = self._sharing[spec] = {}
            self._watcher.watch(snapshot.shared, spec)
        elif not self._have_same_shared(proxy, next(iter(sharing))):
            self._mixed[spec] = None
        sharing[proxy] = None

    def _have_same_shared(self, one: Key, other: Key) -> bool:
        """Whether the last snapshots of two proxies hold the same shared bundles."""
        first, second = self._watched[one].snapshot, self._watched[other].snapshot
        if first is None or second is None or not first.bundles or not second.bundles:
            return False
        places = (0, 1, -1)  # of the shared bundles (`snapshot.whole`)
        return all(first.bundles[place] is second.bundles[place] for place in places)

    def _leave(self, proxy: Key, spec: SharedSpec) -> None:
        del self._sharing[spec][proxy]
        if not self._sharing[spec]:
            del self._sharing[spec]
            self._mixed.pop(spec, None)
            self._watcher.unwatch(snapshot.shared, spec)
