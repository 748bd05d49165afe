"""Compare-and-swap: writes over the revision that was read, and what follows where another was first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from koguma.model.errors import AlreadyExists, Conflict, GoneMeanwhile, NotFound
from koguma.store.contract import Transaction
from koguma.store.store import Store

ATTEMPTS: Final = 50  # each one lost means that another writer has made progress

BATCH: Final = 256  # writes at a time; the store commits them together

R = TypeVar("R")
T = TypeVar("T")


async def retried(
    attempt: Callable[[], Awaitable[R]], what: str, may_retry: Callable[[], bool] = lambda: True
) -> R:
    """Run `attempt`, which reads, decides and writes, again while other writers are first.

    `may_retry` is asked after each attempt that was lost; where it says no, the caller gets the conflict.
    """
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except (AlreadyExists, Conflict, GoneMeanwhile):
            if not may_retry():
                raise
    raise Conflict(f"{what} is being written by others all the time; try again")


async def written_if_first(store: Store, transaction: Transaction) -> bool:
    """Write, unless another writer was first, whose write is a change that the caller will see too."""
    try:
        await store.write(transaction)
    except (AlreadyExists, Conflict, NotFound):
        return False
    return True


async def in_batches(
    write: Callable[[T], Awaitable[R]], changes: Iterable[T]
) -> AsyncIterator[tuple[Sequence[T], Sequence[R]]]:
    """Write changes, each in a transaction of its own, many at a time; yields each batch with its answers."""
    left = iter(changes)
    while batch := list(islice(left, BATCH)):
        yield batch, await asyncio.gather(*map(write, batch))
