"""AckedVersions: what a proxy said it has, read from its session without a copy.

A proxy may have thousands of resources and its status is told often, so the versions are looked up by whoever
asks for one.
"""

from collections.abc import Callable, Iterator, Mapping

from koguma.envoy.snapshot import TYPES, XdsResource
from koguma.xds.protocol.channel import Held


class AckedVersions(Mapping[str, Mapping[str, str]]):
    """Versions by type, of those types of which the proxy has something.

    It is another one after each response that the proxy has taken; whoever has seen one need not look again.
    """

    __slots__ = ("_held", "n_accepted")

    def __init__(self, held: Callable[[str], Mapping[str, Held]], n_accepted: int) -> None:
        self._held = held
        self.n_accepted = n_accepted

    def __getitem__(self, type_: str) -> Mapping[str, str]:
        found = self._held(type_)
        return {name: each.version if isinstance(each, XdsResource) else each for name, each in found.items()}

    def __iter__(self) -> Iterator[str]:
        return (type_ for type_ in TYPES if self._held(type_))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({type_: dict(versions) for type_, versions in self.items()})
