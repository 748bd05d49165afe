"""AckedVersions: the versions that a proxy has, read from its session without a copy.

A proxy may hold thousands of resources and its status is reported often, so versions are looked up only when
somebody reads them.
"""

from collections.abc import Callable, Iterator, Mapping

from koguma.envoy.snapshot import TYPES, XdsResource
from koguma.xds.protocol.type_state import HeldResource


class AckedVersions(Mapping[str, Mapping[str, str]]):
    """Versions by type and name, for types of which the proxy holds something.

    The session makes a new object after each ACK, so the same object has not changed since it was read last.
    """

    __slots__ = ("_held", "n_acks")

    def __init__(self, held: Callable[[str], Mapping[str, HeldResource]], n_acks: int) -> None:
        self._held = held
        self.n_acks = n_acks

    def __getitem__(self, type_: str) -> Mapping[str, str]:
        held = self._held(type_)
        return {name: item.version if isinstance(item, XdsResource) else item for name, item in held.items()}

    def __iter__(self) -> Iterator[str]:
        return (type_ for type_ in TYPES if self._held(type_))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({type_: dict(versions) for type_, versions in self.items()})
