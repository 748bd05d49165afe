"""Last Global: which Global a zone got its objects from, and at which revision; stored beside these.

A Global that was restored from an older backup, or starts empty, would take from its zones what it has
forgotten. A zone notices by this note, and loses nothing until an operator agrees. A restored Global soon
has the same revisions again, so the note has the transaction too, which is a random number. That Global is in
doubt is noted as well, so that it outlives the connection.
"""

from typing import Final

import msgspec

from koguma.model.internal_kinds import GLOBAL_SEEN
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put
from koguma.store.state import State
from koguma.store.store import Store

_NOTES_MAX: Final = 200  # that are looked at
KEY: Final = Key(GLOBAL_SEEN, "", "", "", "global")


class GlobalSeen(msgspec.Struct, frozen=True):
    """The source, its revision and the transaction of that, as seen last; and why Global is in doubt."""

    source: str
    revision: int
    transaction: str = ""
    doubt: str = ""

    def __str__(self) -> str:
        return f"{self.source}@{self.revision}"

    def put(self, expect: int | None = None) -> Put:
        """The operation that notes it, over the note of a revision where one is given."""
        spec = msgspec.to_builtins(self)
        return Put(Resource(kind=KEY.kind, name=KEY.name, core_name=KEY.name, spec=spec), expect)

    def doubt_about(self, revision: int, transaction: str | None) -> str:
        """Why Global may have forgotten something; empty where it surely has not.

        It is at a revision, and a transaction wrote the noted one there: empty where Global has none at it
        any more, None where it is of a version that does not say.
        """
        if revision < self.revision:
            text = f"Global is at revision {revision}, and was at {self.revision}"
            return f"{text}: it was restored from a backup"
        if transaction is None or not self.transaction or transaction == self.transaction:
            return self.doubt
        if not transaction:
            text = f"Global does not keep revision {self.revision} any more, which this zone saw last"
            return self.doubt or f"{text}: nobody knows whether it was restored from a backup"
        text = f"Global has another change at revision {self.revision} than before"
        return f"{text}: it was restored from a backup"


def stored_in(state: State) -> GlobalSeen | None:
    """What is noted; None where nothing is, or nothing that can be read."""
    entry = state.entry(KEY)
    try:
        return msgspec.convert(entry.spec, GlobalSeen) if isinstance(entry, Resource) else None
    except msgspec.ValidationError:
        return None


async def had_before(store: Store, revision: int) -> int:
    """A revision of this store at which nothing had come of one of Global's, nor of later ones; 0: not known.

    It is that of the last note of an earlier one: each delivery notes the revision with which it was sent.
    """
    for change in await store.history(KEY, _NOTES_MAX):
        noted = (change.resource.spec or {}).get("revision")
        if isinstance(noted, int) and noted < revision:
            return change.revision
    return 0
