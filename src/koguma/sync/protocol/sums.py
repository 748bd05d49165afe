"""Sums: whether two sides hold the same objects, told by a few kilobytes however many objects there are.

Keys are spread over buckets by their hash. The sum of a bucket adds up hashes of keys with their contents, in
any order, so that it is kept up to date by adding and subtracting.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

from koguma.model.resource import Key
from koguma.sync.protocol.messages import BUCKETS, BrokenProtocol, HeldEntry

_SUMS: Final = Struct(f"<{BUCKETS}Q")
_HASH: Final = Struct("<Q")
_MODULUS: Final = 1 << 64
_HASH_BYTES: Final = 16


def content_hash(content: bytes) -> bytes:
    """The hash of an object's content."""
    return hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()


@lru_cache(maxsize=100_000)
def _key_hash(key: Key) -> int:
    return int(_HASH.unpack(hashlib.blake2b("\0".join(key).encode(), digest_size=_HASH.size).digest())[0])


def bucket(key: Key) -> int:
    """The bucket of a key."""
    return _key_hash(key) % BUCKETS


def _summand(entry: HeldEntry) -> int:
    data = _HASH.pack(_key_hash(entry.key)) + entry.hash
    return int(_HASH.unpack(hashlib.blake2b(data, digest_size=_HASH.size).digest())[0])


class BucketSums:
    """The sums of some entries; those of a bucket that has none are not kept."""

    def __init__(self, entries: Iterable[HeldEntry] = ()) -> None:
        self._sums: dict[int, int] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: HeldEntry) -> None:
        """Add an entry."""
        self._add(bucket(entry.key), _summand(entry))

    def subtract(self, entry: HeldEntry) -> None:
        """Take away an entry that was added."""
        self._add(bucket(entry.key), _MODULUS - _summand(entry))

    def add_all(self, other: "BucketSums") -> None:
        """Add the entries of other sums."""
        for index, summand in other._sums.items():  # noqa: SLF001 - of the same class
            self._add(index, summand)

    def _add(self, index: int, summand: int) -> None:
        total = (self._sums.get(index, 0) + summand) % _MODULUS
        if total:
            self._sums[index] = total
        else:
            self._sums.pop(index, None)

    @property
    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return not self._sums

    def packed(self) -> bytes:
        """The sums as they are sent."""
        sums = [0] * BUCKETS
        for index, total in self._sums.items():
            sums[index] = total
        return _SUMS.pack(*sums)


def packed(entries: Iterable[HeldEntry]) -> bytes:
    """The sums of some entries, as they are sent."""
    return BucketSums(entries).packed()


def differing(one: bytes, other: bytes) -> Iterator[int]:
    """The buckets in which two sides hold something else."""
    for sums in (one, other):
        if len(sums) != _SUMS.size:
            raise BrokenProtocol(f"sums are {len(sums)} bytes long, not {_SUMS.size}")
    pairs = zip(_SUMS.unpack(one), _SUMS.unpack(other), strict=True)
    return (index for index, (mine, theirs) in enumerate(pairs) if mine != theirs)
