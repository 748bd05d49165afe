"""Held objects: what is stored here of each peer's objects, with the hashes of their contents.

What a peer's objects hash to follows from the store alone. Each connection needs it, so hashes are kept, and
only objects that have changed since the last connection are hashed again. A pass over many objects gives way
to other work, since a hundred zones may come back at the same time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from koguma.model.errors import Gone, Unavailable
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.store import Store
from koguma.store.watch import Watch
from koguma.sync.protocol import sums
from koguma.sync.protocol.messages import HeldEntry
from koguma.sync.protocol.sums import BucketSums

STEP: Final = 200  # objects between two turns of the event loop
CHANGES_MAX: Final = 5_000  # that are followed one by one; after more, all objects are looked at


class HeldSnapshot(NamedTuple):
    """What is held of a peer, at one moment."""

    hashes: dict[Key, bytes]
    sums: bytes


class _HashedVersion(NamedTuple):
    """The hash of an object in one version: after a failover that lost writes a revision may come again."""

    revision: int
    modification_time: str
    hash: bytes


class _PeerObjects:
    """The objects of one peer."""

    def __init__(self) -> None:
        self.versions: dict[Key, _HashedVersion] = {}
        self.sums = BucketSums()

    def put(self, key: Key, version: _HashedVersion) -> None:
        """Note a version of an object."""
        self.remove(key)
        self.versions[key] = version
        self.sums.add(HeldEntry(key, version.hash))

    def remove(self, key: Key) -> None:
        """Note that an object is gone."""
        if (known := self.versions.pop(key, None)) is not None:
            self.sums.subtract(HeldEntry(key, known.hash))


class HeldObjects:
    """What one control plane holds of its peers; brought up to date when somebody asks."""

    def __init__(
        self,
        store: Store,
        peer: Callable[[Key], str],  # whose object that would be
        is_held: Callable[[Resource], bool],  # whether it is
        content: Callable[[Resource], bytes],
    ) -> None:
        self._store = store
        self._peer = peer
        self._is_held = is_held
        self._content = content
        self._peers: dict[str, _PeerObjects] = {}
        self._changes: Watch | None = None
        self._turn = asyncio.Lock()

    async def of(self, peer: str) -> HeldSnapshot:
        """What is held of a peer as of the store's present revision."""
        async with self._turn:
            await self._catch_up()
            objects = self._peers.get(peer) or _PeerObjects()
            hashes = {key: version.hash for key, version in objects.versions.items()}
            return HeldSnapshot(hashes, objects.sums.packed())

    async def _catch_up(self) -> None:
        """Return when everything up to the store's revision is noted, without giving way after that."""
        while True:
            behind = self._store.state.revision - (self._changes.position if self._changes else 0)
            if self._changes is None or not 0 <= behind <= CHANGES_MAX:
                self._changes = self._store.watch(None, self._store.state.revision)
                await self._look_at_all()
            elif behind == 0:
                return
            else:
                await self._follow(self._changes)

    async def _follow(self, changes: Watch) -> None:
        try:
            batch: Iterable[Change] = await changes.next_batch(0)
        except (Gone, Unavailable):
            self._changes = None
            await asyncio.sleep(0)
            return
        for number, change in enumerate(batch):
            is_gone = change.op is Op.DELETE or bool(change.error)
            self._note(change.resource.key, None if is_gone else change.resource)
            await _give_way(number)

    async def _look_at_all(self) -> None:
        keys: set[Key] = set()
        for number, resource in enumerate(list(self._store.state.all())):
            keys.add(resource.key)
            self._note(resource.key, resource)
            await _give_way(number)
        for objects in self._peers.values():
            for key in [key for key in objects.versions if key not in keys]:
                objects.remove(key)

    def _note(self, key: Key, resource: Resource | None) -> None:
        """Note an object as it is now, or that it is gone."""
        peer = self._peer(key)
        objects = self._peers.get(peer)
        if resource is None or not self._is_held(resource):
            if objects is not None:
                objects.remove(key)
            return
        if objects is None:
            objects = self._peers[peer] = _PeerObjects()
        known, version = objects.versions.get(key), (resource.revision, resource.modification_time)
        if known is None or known[:2] != version:
            objects.put(key, _HashedVersion(*version, sums.content_hash(self._content(resource))))


async def _give_way(number: int) -> None:
    if number % STEP == STEP - 1:
        await asyncio.sleep(0)
