"""Proxy types: what a proxy can be, which object describes it, and which token it needs."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class ProxyType(NamedTuple):
    """A type of proxy, by Kuma's word for it in bootstrap requests and in the metadata of xDS nodes."""

    word: str
    kind: str  # of the object that describes it
    scope: str = ""  # that its zone token must have; empty for a proxy of a mesh, which has a dataplane token

    @property
    def is_of_zone(self) -> bool:
        """Whether it belongs to a zone, and to no mesh."""
        return bool(self.scope)


SIDECAR: Final = ProxyType("dataplane", "Dataplane")
EGRESS: Final = ProxyType("egress", "ZoneEgress", "egress")
INGRESS: Final = ProxyType("ingress", "ZoneIngress", "ingress")

SERVED: Final[Mapping[str, ProxyType]] = {each.word: each for each in (SIDECAR, EGRESS, INGRESS)}
BY_KIND: Final[Mapping[str, ProxyType]] = {each.kind: each for each in SERVED.values()}


def named(word: str) -> ProxyType | None:
    """The type of a word; a sidecar where a proxy does not say, None where no such proxies are served."""
    return SERVED.get(word or SIDECAR.word)
