"""Control: keeps the engine's inputs in step with the store.

The engine is told of changes in revision order, in batches, before it is asked. It answers for the state of the
revision that the store had when it was asked, never for an older one.
"""

import asyncio
from collections.abc import Sequence

from koguma.core import pipeline
from koguma.core.incremental import Db
from koguma.model.errors import Gone
from koguma.model.kind import Kinds
from koguma.model.place import Place
from koguma.store.contract import Change, Op
from koguma.store.store import Store


class Control:
    """The engine of a control plane, always as new as the store."""

    def __init__(self, store: Store, kinds: Kinds, place: Place) -> None:
        self._store = store
        self._kinds = kinds
        self._place = place
        self._lock = asyncio.Lock()
        self._load()

    async def database(self) -> Db:
        """The engine's database, with every change that the store has."""
        async with self._lock:
            while self._changes.position < self._store.state.revision:
                try:
                    self._take(await self._changes.next_batch(0))
                except Gone:
                    self._load()
        return self._db

    def _load(self) -> None:
        state = self._store.state
        self._changes = self._store.watch(None, state.revision)
        self._db = pipeline.load(self._kinds, self._place, state.all())

    def _take(self, changes: Sequence[Change]) -> None:
        last = {change.resource.key: change for change in changes}
        written = [c.resource for c in last.values() if c.op is not Op.DELETE and not c.error]
        gone = [key for key, c in last.items() if c.op is Op.DELETE or c.error]
        pipeline.take(self._db, written, gone)
