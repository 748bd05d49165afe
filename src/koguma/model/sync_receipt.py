"""Sync receipt: what a zone has of Global's objects, as Global knows it, as a plain value."""

import msgspec

from koguma.model.resource import Key


class RefusedObject(msgspec.Struct, frozen=True):
    """An object that a zone did not store as it is on Global."""

    key: Key
    reason: str
    had: int  # the zone had everything up to this revision before
    revision: int  # of the object on Global

    def is_about(self, revision: int) -> bool:
        """Whether what was refused is a part of a revision, and not of what came before or comes later."""
        return self.had < revision <= self.revision


class SyncReceipt(msgspec.Struct, frozen=True):
    """How far a zone is, over one connection."""

    connection: str  # its id
    revision: int  # of Global's store: the zone has stored everything up to it, but for what it refused
    refused: tuple[RefusedObject, ...] = ()
    has_more: bool = False  # it refused so many that not all are remembered
