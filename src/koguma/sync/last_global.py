"""Last Global: which Global a zone got its objects from, and at which revision; stored beside these.

A Global that was restored from an older backup, or starts empty, would take from its zones what it has
forgotten. A zone notices by this note, and loses nothing until an operator agrees.
"""

from typing import Final

import msgspec

from koguma.model.internal_kinds import GLOBAL_SEEN
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put
from koguma.store.state import State

_KEY: Final = Key(GLOBAL_SEEN, "", "", "", "global")


class GlobalSeen(msgspec.Struct, frozen=True):
    """The source and its revision that were seen last."""

    source: str
    revision: int

    def __str__(self) -> str:
        return f"{self.source}@{self.revision}"

    def put(self) -> Put:
        """The operation that notes it."""
        spec = {"source": self.source, "revision": self.revision}
        return Put(Resource(kind=_KEY.kind, name=_KEY.name, core_name=_KEY.name, spec=spec))


def stored_in(state: State) -> GlobalSeen | None:
    """What is noted; None where nothing is, or nothing that can be read."""
    entry = state.entry(_KEY)
    try:
        return msgspec.convert(entry.spec, GlobalSeen) if isinstance(entry, Resource) else None
    except msgspec.ValidationError:
        return None
