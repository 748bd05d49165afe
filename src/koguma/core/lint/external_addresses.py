"""External addresses: MeshExternalServices that match the same addresses, and take each other's calls."""

import ipaddress
from collections.abc import Iterator, Mapping

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.lint.problem import SHARED_ADDRESSES, Problem
from koguma.model.resource import Key

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@question
def _networks(db: Db, key: Key) -> tuple[tuple[int, Network], ...]:
    """The ports and address ranges of a service's matches, in order."""
    resource = world.RESOURCES.get(db, key)
    found = []
    for match in world.external_matches(resource.spec) if resource else ():
        if isinstance(match, Mapping) and match.get("type") in ("IP", "CIDR"):
            try:
                network = ipaddress.ip_network(str(match.get("value")), strict=False)
            except ValueError:
                continue
            found.append((match.get("port") or 0, network))
    return tuple(found)


def shared(db: Db, key: Key) -> Iterator[Problem]:
    """A service and each other one of its mesh with addresses in common, on the same port.

    The sentence is the founding document's (seed 001).
    """
    own = _networks(db, key)
    for other in world.BY_KIND.keys(db, (key.kind, key.mesh)) if own else ():
        common = _common(own, _networks(db, other)) if other != key else None
        if common is not None:
            first, second = sorted((key, other))
            message = (
                f"{first.name} and {second.name} have overlapping IPs {common}, which can disrupt your"
                " traffic."
            )
            yield Problem(SHARED_ADDRESSES, message, (first, second), path="spec.match")


def _common(own: tuple[tuple[int, Network], ...], others: tuple[tuple[int, Network], ...]) -> str | None:
    """The first addresses that two services have in common, on one port."""
    for port, network in own:
        for other_port, other in others:
            if port == other_port and network.version == other.version and network.overlaps(other):
                smaller = max(network, other, key=lambda each: each.prefixlen)
                is_one = smaller.prefixlen == smaller.max_prefixlen
                return str(smaller.network_address if is_one else smaller)
    return None
