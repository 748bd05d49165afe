"""Touched proxies: how many proxies got another configuration by past transactions.

It is computed when somebody asks: an engine is loaded with what was stored before the oldest of them, then
it gets one transaction after the other, and the proxies whose snapshot differs are counted. Nothing of that
is stored. One such question is answered at a time, in a thread, within limits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from koguma.application.context import Context
from koguma.application.live_engine import ObjectChanges
from koguma.application.past_engines import PastEngine, short_kinds
from koguma.core import pipeline, world
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.identity.proxy_types import EGRESS, INGRESS, SIDECAR
from koguma.model.errors import KogumaError
from koguma.model.resource import Key
from koguma.store.contract import Change
from koguma.store.past_queries import ChangeFilter

CHANGES_MAX: Final = 2_000  # between the oldest and the newest transaction
PROXIES_MAX: Final = 5_000
_KINDS: Final = (SIDECAR.kind, EGRESS.kind, INGRESS.kind)


class TooManyToCount(KogumaError):
    """The question is over its limits; the text says over which."""


# By transaction: the number of proxies that it touched, by their kind and mesh.
Touched = Mapping[str, Counter[tuple[str, str]]]


async def by_transaction(context: Context, oldest: int, newest: int) -> Touched:
    """How many proxies each transaction from one revision to another touched."""
    store = context.store
    if newest - oldest >= CHANGES_MAX:
        raise TooManyToCount(f"proxies are counted for {CHANGES_MAX} revisions at most; ask for fewer")
    n_proxies = sum(len(context.store.state.listed(kind)) for kind in _KINDS)
    if n_proxies > PROXIES_MAX:
        raise TooManyToCount(f"proxies are counted where there are {PROXIES_MAX} at most, not {n_proxies}")
    async with context.past.counting:
        changes = await store.changes(ChangeFilter(), oldest - 1, newest + 1, CHANGES_MAX)
        state = await store.state_at(oldest - 1, short_kinds(context.kinds))
        past = PastEngine(state, await context.database(), context.past.nodes_elsewhere())
        return await past.ask(lambda db: _counted(db, changes[::-1]))


def _counted(db: Db, changes: Sequence[Change]) -> Touched:
    watcher = SnapshotWatcher(db)
    watched: set[Key] = set()
    _watch_new(db, watcher, watched)
    touched: dict[str, Counter[tuple[str, str]]] = {}
    for transaction, parts in _grouped(changes).items():
        pipeline.take(db, *ObjectChanges.of(parts))
        gone = {key for key in watched if world.RESOURCES.get(db, key) is None}
        for key in gone:
            watcher.remove(key)
        watched -= gone
        proxies = {*watcher.changed(), *_watch_new(db, watcher, watched), *gone}
        touched[transaction] = Counter((key.kind, key.mesh) for key in proxies)
    return touched


def _watch_new(db: Db, watcher: SnapshotWatcher, watched: set[Key]) -> set[Key]:
    """Watch the proxies that are not watched yet."""
    new = {key for kind in _KINDS for key in world.BY_KIND_EVERYWHERE.keys(db, kind)} - watched
    for key in sorted(new):
        watcher.add(key)
    watched |= new
    return new


def _grouped(changes: Sequence[Change]) -> dict[str, list[Change]]:
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        grouped.setdefault(change.transaction, []).append(change)
    return grouped
