"""Outbound shards: how what a proxy class calls is partitioned, by destination, and joined again."""

from collections.abc import Iterable
from typing import TypeVar
from zlib import crc32

from koguma.core.group import Group
from koguma.envoy.snapshot import Bundle, Failure, Id, XdsResource
from koguma.model.resource import Key

_SHARDS = 16  # more shards: fewer ports are built again for a change of one, and more bundles are joined
_BATCH = 4  # shards that are joined before all are
T = TypeVar("T")


def shard_number(destination: Key) -> int:
    """The shard of all ports of a destination; it depends on nothing else, so that it is stable."""
    return crc32(destination.name.encode()) % _SHARDS


def batches(shards: Iterable[T]) -> tuple[Group[T], ...]:
    """Shards, a few at a time."""
    every = tuple(shards)
    return tuple(Group(every[at : at + _BATCH]) for at in range(0, len(every), _BATCH))


def joined(bundles: tuple[Bundle, ...]) -> Bundle:
    """The resources and failures of several bundles as one."""
    by_id: dict[Id, XdsResource] = {}
    failures: dict[Failure, None] = {}
    for bundle in bundles:
        by_id.update(bundle.resources)
        if bundle.failures:
            failures.update(dict.fromkeys(bundle.failures))
    ordered = tuple(sorted(failures, key=lambda failure: (failure.id, failure.text)))
    return Bundle(by_id, ordered, bundles)
