"""What this process knows of the log's history, to notice on a new connection that a server has another one.

After a failover to a standby that had not received everything, or after a restored backup, revisions that
were read before are gone, and others get their numbers. Then everything has to be read again: to go on from
the last known revision would mix two histories.
"""

from typing import Final
from weakref import WeakSet

from koguma.store.log import log_replaced
from koguma.store.postgres_hosts import Connection

_NEWEST: Final = """
SELECT k.revision, c.transaction_id FROM counter k LEFT JOIN changes c ON c.revision = $1 WHERE k.id = 1
"""


class KnownHistory:
    """The newest revision that was read or written here, and the connections whose server has it."""

    def __init__(self) -> None:
        self._newest: tuple[int, str] | None = None
        self._checked: WeakSet[Connection] = WeakSet()

    def forget(self) -> None:
        """Everything is about to be read again, from whatever server answers."""
        self._newest = None
        self._checked.clear()

    def follow(self, revision: int, transaction: str) -> None:
        """Note the newest revision, and the transaction that it belongs to."""
        if self._newest is None or revision > self._newest[0]:
            self._newest = revision, transaction

    async def check(self, db: Connection) -> None:
        """Raise Gone where the server of a new connection does not have the newest known revision."""
        if self._newest is None or db in self._checked:
            return
        revision, transaction = self._newest
        stored = await db.fetchrow(_NEWEST, revision)
        # Superseded changes are compacted away, and say nothing then.
        if stored is None or stored[0] < revision or stored[1] not in (None, transaction):
            raise log_replaced(revision)
        self._checked.add(db)
