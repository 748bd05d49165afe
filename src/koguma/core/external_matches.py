"""External matches: the calls to existing domains and addresses that MeshExternalServices take.

Matches of type InternalVIP are no part of it: they are virtual addresses (`vips`) with own listeners.
"""

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import ip_range
from koguma.model.ip_range import IpRange
from koguma.model.resource import Key


class ExternalMatch(msgspec.Struct, frozen=True):
    """Calls on one port, to a domain or to addresses; one of the two is set."""

    index: int  # in `spec.match`
    port: int
    protocol: str
    domain: str = ""  # in lower case; may begin with `*.`
    addresses: IpRange | None = None


@question
def of(db: Db, service: Key) -> tuple[ExternalMatch, ...]:
    """The matches of a service, in their order. Values that cannot be read match nothing."""
    resource = world.RESOURCES.get(db, service)
    if resource is None or service.kind != "MeshExternalService":
        return ()
    matches = []
    for index, match in enumerate(world.external_matches(resource.spec)):
        port, protocol = match.get("port") or 0, match.get("protocol") or "tcp"
        type_, value = match.get("type") or "", match.get("value") or ""
        addresses = ip_range.parsed(type_, value)
        if type_ == "Domain" and value:
            domain = value.lower().removesuffix(".")
            matches.append(ExternalMatch(index, port, protocol, domain=domain))
        elif addresses is not None:
            matches.append(ExternalMatch(index, port, protocol, addresses=addresses))
    return tuple(matches)


def on_port(db: Db, service: Key, section: str) -> tuple[ExternalMatch, ...]:
    """The matches of one port; with another protocol than the port's, which is its first, they do not act."""
    port = world.port(db, service, section)
    if port is None:
        return ()
    speaks = port.number, port.protocol
    return tuple(match for match in of(db, service) if (match.port, match.protocol) == speaks)
