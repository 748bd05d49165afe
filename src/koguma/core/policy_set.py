"""Policies: those of one kind that apply to a proxy, in parts that other proxies share.

A mesh can have thousands of policies for all of its proxies. So the policies of a proxy are no plain list:
those for the whole mesh come in parts that are the same values for all proxies which they select, and what
follows from a part (`rules`, `inbound`) is asked once. A new policy changes one part.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from koguma.core.group import Group
from koguma.model.resource import Key

PolicyPart = Group[Key]


class Policies:
    """Policies of one kind. Equal ones have equal parts."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: Iterable[PolicyPart]) -> None:
        self.parts = tuple(part for part in parts if part)
        self._hash = hash(self.parts)

    @classmethod
    def of(cls, keys: Iterable[Key]) -> "Policies":
        """Those with these keys, as one part."""
        return cls((Group(keys),))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Policies) and self._hash == other._hash and self.parts == other.parts

    def __iter__(self) -> Iterator[Key]:
        """In key order."""
        return iter(sorted(chain.from_iterable(self.parts)))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __repr__(self) -> str:
        return f"Policies{self.parts!r}"


NONE: Final = Policies(())
