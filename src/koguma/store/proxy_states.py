"""Proxy states as rows: the tables through which control planes tell each other of their proxies.

They stand beside the log of revisions: what is in them changes with every connection, and is worth nothing
once its writer has gone. Each control plane (instance) writes its own rows alone, in numbered flushes; a
reader remembers the last flush that it has read of each, and reads what is newer. No clock is in it: the beat
of an instance counts up while it lives.

A flush need not reach the disk or a standby before it succeeds. A writer notices that one was lost, or that
somebody took it for gone and removed its rows, by the beat in its row, and then writes everything again.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from koguma.model.resource import Key

LEFT: Final = 0  # the beat of an instance that has stopped properly


class InstanceRow(NamedTuple):
    """A control plane: its sign of life, its last flush, the revision that its synced proxies have."""

    instance: str
    beat: int
    version: int
    revision: int
    data: bytes


class StateRow(NamedTuple):
    """A proxy of an instance, and the flush that it was last written in."""

    key: Key
    version: int
    data: bytes


class ProxyStateTable(Protocol):
    """The rows of all instances. Every method may raise LogLost."""

    async def write(
        self, row: InstanceRow, after: int, states: Sequence[StateRow], removed: Collection[Key]
    ) -> bool:
        """Write a flush, all of it or nothing; False if the row of the instance has a beat below `after`.

        Then, and where there is no such row, nothing is written.
        """

    async def begin(self, row: InstanceRow, states: Sequence[StateRow]) -> None:
        """Write everything about an instance anew; what it had before is removed."""

    async def leave(self, instance: str) -> None:
        """Let an instance's beat say that it has stopped; its rows stay."""

    async def instances(self) -> list[InstanceRow]:
        """All instances."""

    async def states(self, instance: str, after: int) -> list[StateRow]:
        """The rows of an instance that were written in later flushes than this one."""

    async def remove(self, instance: str, beat: int) -> None:
        """Remove an instance with all its rows, unless it has given a sign of life since that beat."""


class MemoryProxyStates:
    """The rows in memory, for dry runs and tests. Nothing here waits, so every method is atomic."""

    def __init__(self) -> None:
        self.rows: dict[str, InstanceRow] = {}
        self.by_instance: dict[str, dict[Key, StateRow]] = {}
        self.n_written = 0  # rows so far

    async def write(
        self, row: InstanceRow, after: int, states: Sequence[StateRow], removed: Collection[Key]
    ) -> bool:
        """Write a flush."""
        known = self.rows.get(row.instance)
        if known is None or known.beat < after:
            return False
        self.rows[row.instance] = row
        stored = self.by_instance.setdefault(row.instance, {})
        for key in removed:
            stored.pop(key, None)
        stored.update((state.key, state) for state in states)
        self.n_written += 1 + len(states) + len(removed)
        return True

    async def begin(self, row: InstanceRow, states: Sequence[StateRow]) -> None:
        """Write everything anew."""
        self.rows[row.instance] = row
        self.by_instance[row.instance] = {state.key: state for state in states}
        self.n_written += 1 + len(states)

    async def leave(self, instance: str) -> None:
        """Note that it has stopped."""
        if instance in self.rows:
            self.rows[instance] = self.rows[instance]._replace(beat=LEFT)

    async def instances(self) -> list[InstanceRow]:
        """All instances."""
        return list(self.rows.values())

    async def states(self, instance: str, after: int) -> list[StateRow]:
        """What is newer."""
        return [row for row in self.by_instance.get(instance, {}).values() if row.version > after]

    async def remove(self, instance: str, beat: int) -> None:
        """Remove an instance that is gone."""
        row = self.rows.get(instance)
        if row is not None and row.beat == beat:
            del self.rows[instance]
            self.by_instance.pop(instance, None)
