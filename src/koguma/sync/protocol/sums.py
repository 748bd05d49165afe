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


def packed(entries: Iterable[HeldEntry]) -> bytes:
    """The sums of some entries, as they are sent."""
    sums = [0] * BUCKETS
    for entry in entries:
        index = bucket(entry.key)
        sums[index] = (sums[index] + _summand(entry)) % _MODULUS
    return _SUMS.pack(*sums)


def differing(one: bytes, other: bytes) -> Iterator[int]:
    """The buckets in which two sides hold something else."""
    for sums in (one, other):
        if len(sums) != _SUMS.size:
            raise BrokenProtocol(f"sums are {len(sums)} bytes long, not {_SUMS.size}")
    pairs = zip(_SUMS.unpack(one), _SUMS.unpack(other), strict=True)
    return (index for index, (mine, theirs) in enumerate(pairs) if mine != theirs)
