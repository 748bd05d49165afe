"""What this process knows of the log's history, to notice that the server has another one.

After a failover to a standby that had not received everything, or after a restored backup, revisions that
were read before are gone, and others get their numbers. Then everything has to be read again: to go on from
the last known revision would mix two histories. The statements that read or append ask about the newest known
revision themselves: behind a pooler, the next one may already reach another server.
"""

from koguma.store.log import log_replaced


class KnownHistory:
    """The newest revision that was read or written here, and the transaction that it belongs to."""

    def __init__(self) -> None:
        self.newest: tuple[int, str] = 0, ""

    def forget(self) -> None:
        """Everything is about to be read again, from whatever server answers."""
        self.newest = 0, ""

    def follow(self, revision: int, transaction: str) -> None:
        """Note the newest revision, and the transaction that it belongs to."""
        if revision > self.newest[0]:
            self.newest = revision, transaction

    def transaction_at(self, revision: int) -> str | None:
        """The transaction of the newest revision; None for another one."""
        newest, transaction = self.newest
        return transaction if revision == newest else None


def check(known: tuple[int, str], newest: int, transaction: str | None) -> None:
    """Raise Gone if a server, whose newest revision is given, has another transaction at a known revision.

    Superseded changes are compacted away, and say nothing then.
    """
    if newest < known[0] or transaction not in (None, known[1]):
        raise log_replaced(known[0])
