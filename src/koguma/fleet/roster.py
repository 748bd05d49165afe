"""Roster: which proxies have a stream to this control plane, and which run of each of them.

Two runs of one proxy would take each other's place for ever, so the later run keeps it and the earlier one is
refused when it reconnects.
"""

from collections.abc import Iterator, Mapping

from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.model.resource import Key


class Roster(Mapping[Key, ConnectedProxy]):
    """The connected proxies by key."""

    def __init__(self) -> None:
        self._connections: dict[Key, ConnectedProxy] = {}
        self._replaced_runs: dict[Key, set[str]] = {}
        self._keys: frozenset[Key] | None = None

    def __getitem__(self, key: Key) -> ConnectedProxy:
        return self._connections[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def connected(self) -> frozenset[Key]:
        """The keys of the connected proxies; the same set object until one connects or disconnects."""
        if self._keys is None:
            self._keys = frozenset(self._connections)
        return self._keys

    def add(self, connection: ConnectedProxy) -> None:
        """A proxy has connected; an earlier stream of it is replaced."""
        earlier = self._connections.get(connection.key)
        if earlier is not None and earlier.run not in ("", connection.run):
            self._replaced_runs.setdefault(connection.key, set()).add(earlier.run)
        self._connections[connection.key] = connection
        self._keys = None

    def remove(self, connection: ConnectedProxy) -> bool:
        """A stream has ended; False where a later stream of the same proxy has replaced it already."""
        if self._connections.get(connection.key) is not connection:
            return False
        del self._connections[connection.key]
        self._replaced_runs.pop(connection.key, None)
        self._keys = None
        return True

    def is_current(self, connection: ConnectedProxy) -> bool:
        """Whether no later stream of the same proxy has replaced this one, and it has not ended."""
        return self._connections.get(connection.key) is connection

    def was_replaced(self, key: Key, run: str) -> bool:
        """Whether a later run of a proxy that is connected has replaced this run."""
        return run in self._replaced_runs.get(key, ())
