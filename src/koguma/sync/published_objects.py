"""Published objects: a catalog of what this control plane sends to others, kept up to date with the store."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from koguma.model.errors import Gone, Unavailable
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.store import Store
from koguma.store.unavailable import log_unavailable
from koguma.store.watch import Watch
from koguma.sync import mapping
from koguma.sync.mapping import Travelling
from koguma.sync.protocol import sums
from koguma.sync.protocol.catalog import SyncCatalog

RETRY_SECONDS: Final = 1.0
CONTENTS_BYTES_MAX: Final = (
    16 * 1024 * 1024
)  # that are kept: subscribers often need the same at the same time
_STEP: Final = 500  # objects between two turns of the event loop

Outgoing = Callable[[Resource], Travelling | None]
Others = Callable[[Sequence[Change]], Iterable[Resource]]  # objects about which changes of others decide

_log = structlog.get_logger("koguma.sync")


class PublishedObjects:
    """The catalog of one control plane; `outgoing` decides what of an object is published.

    `others` is told of changes before they are taken, and at first of none: objects whose publication
    depends on them are decided anew.
    """

    def __init__(self, store: Store, outgoing: Outgoing, others: Others = lambda _changes: ()) -> None:
        self.catalog = SyncCatalog()
        self.is_loaded = asyncio.Event()
        self._store = store
        self._outgoing = outgoing
        self._others = others
        self._log: Watch | None = None
        self._taken = 0
        self._listeners: set[Callable[[], None]] = set()
        self._published: dict[Key, Key] = {}  # by the stored one, where they differ
        self._stored: dict[Key, Key] = {}
        self._contents: OrderedDict[Key, tuple[bytes, bytes]] = OrderedDict()  # with their hashes
        self._contents_bytes = 0

    @property
    def revision(self) -> int:
        """That of the store."""
        return self._store.state.revision

    @property
    def transaction(self) -> str:
        """That of the revision."""
        return self._store.state.transaction

    @property
    def taken(self) -> int:
        """The revision of the store up to which the catalog has everything; 0 where that is not known."""
        return self._taken if self._log is not None and not self._log.is_replaced else 0

    def log(self) -> Watch:
        """Tells by `is_replaced` that the store has read another history since."""
        return self._store.watch(None, self._store.state.revision, of_one_log=True)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, until what this returns is called."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def content(self, key: Key) -> bytes | None:
        """The content of a published object as it is now; None where it is gone."""
        published = self.catalog.get(key)
        kept = self._contents.get(key)
        if published is not None and kept is not None and kept[1] == published.hash:
            return kept[0]
        stored = self._store.state.get(self._stored.get(key, key))
        travelling = self._outgoing(stored) if stored is not None else None
        if travelling is None or travelling.resource.key != key:
            return None
        content = mapping.content(travelling.resource)
        self._keep(key, content, sums.content_hash(content))
        return content

    def revision_of(self, key: Key) -> int:
        """The revision of a published object, or one that is not before its end where it is gone."""
        stored = self._store.state.get(self._stored.get(key, key))
        return stored.revision if stored is not None else self.revision

    def _keep(self, key: Key, content: bytes, hash_: bytes) -> None:
        before = self._contents.pop(key, None)
        self._contents_bytes += len(content) - (len(before[0]) if before else 0)
        self._contents[key] = content, hash_
        while self._contents_bytes > CONTENTS_BYTES_MAX:
            _, (dropped, _) = self._contents.popitem(last=False)
            self._contents_bytes -= len(dropped)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            self._taken, changes = 0, self.log()
            self._log, began_at = changes, changes.position
            self._others(())
            await self._load()
            self._taken = began_at
            self._notify()
            try:
                while True:
                    batch = await changes.next_batch()
                    await self._decide_again(self._others(batch))
                    for change in batch:
                        is_gone = change.op is Op.DELETE or bool(change.error)
                        self._take(change.resource.key, None if is_gone else change.resource)
                    self._taken = changes.position
                    self._notify()
            except (Gone, Unavailable) as error:
                log_unavailable(_log, "what is published is read again", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _load(self) -> None:
        resources = list(self._store.state.all())
        await self._decide_again(resources)
        left = {self._published.get(resource.key, resource.key) for resource in resources}
        for key in (gone := [key for key in self.catalog if key not in left]):
            self.catalog.remove(key)
        if (
            gone
        ):  # nobody has seen them deleted: the store may be a restored one, which subscribers have to know
            self.catalog.forget_removals()
        self.is_loaded.set()

    async def _decide_again(self, resources: Iterable[Resource]) -> None:
        for number, resource in enumerate(resources):
            self._take(resource.key, self._store.state.get(resource.key))
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)

    def _take(self, key: Key, resource: Resource | None) -> None:
        travelling = self._outgoing(resource) if resource is not None else None
        if travelling is None:
            published = self._published.pop(key, key)
            self._stored.pop(published, None)
            self.catalog.remove(published)
            return
        sent = travelling.resource
        if sent.key != key:
            self._published[key], self._stored[sent.key] = sent.key, key
        content = mapping.content(sent)
        hash_ = sums.content_hash(content)
        if self.catalog.put(sent.key, hash_, travelling.only_to) and self.is_loaded.is_set():
            self._keep(sent.key, content, hash_)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()
