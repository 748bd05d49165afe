"""AckedVersions: what a proxy said it has, read from its session without a copy.

A proxy may have thousands of resources and its status is told often, so the versions are looked up by whoever
asks for one.
"""

from collections.abc import Iterator, Mapping

from koguma.xds.protocol.channel import Channel


class _Versions(Mapping[str, str]):
    """Versions by name."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getitem__(self, name: str) -> str:
        version = self._channel.version(name)
        if version is None:
            raise KeyError(name)
        return version

    def __iter__(self) -> Iterator[str]:
        return iter(self._channel.held)

    def __len__(self) -> int:
        return len(self._channel.held)


class AckedVersions(Mapping[str, Mapping[str, str]]):
    """Versions by type, of those types of which the proxy has something."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels

    def __getitem__(self, type_: str) -> Mapping[str, str]:
        return _Versions(self._channels[type_])

    def __iter__(self) -> Iterator[str]:
        return (type_ for type_, channel in self._channels.items() if channel.held)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({type_: dict(versions) for type_, versions in self.items()})
