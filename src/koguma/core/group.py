"""Group: a tuple for use as a key. Its hash is computed once, and equality compares hashes first."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Group(Generic[T]):
    """Some values in order, with a cached hash."""

    __slots__ = ("_hash", "members")

    def __init__(self, members: Iterable[T]) -> None:
        self.members = tuple(members)
        self._hash = hash(self.members)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Group) and self._hash == other._hash and self.members == other.members

    def __iter__(self) -> Iterator[T]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"Group{self.members!r}"
