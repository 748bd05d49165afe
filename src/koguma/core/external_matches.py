"""External matches: the calls to existing domains and addresses that MeshExternalServices take.

Matches of type InternalVIP are no part of it: they are virtual addresses (`vips`) with own listeners.
"""

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import ip_range, whole_port
from koguma.model.ip_range import IpRange
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.whole_port import TypePortProtocol


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
    if world.is_of_another_zone(db, resource):
        return ()
    matches = []
    written = [type_port_protocol(match) for match in world.external_matches(resource.spec)]
    for index, match in enumerate(world.external_matches(resource.spec)):
        (type_, port, protocol), value = written[index], match.get("value") or ""
        addresses = ip_range.parsed(type_, value)
        if type_ == "Domain" and value and not whole_port.is_idle(written[index], written):
            domain = value.lower().removesuffix(".")
            matches.append(ExternalMatch(index, port, protocol, domain=domain))
        elif addresses is not None:
            matches.append(ExternalMatch(index, port, protocol, addresses=addresses))
    return tuple(matches)


def type_port_protocol(match: Json) -> TypePortProtocol:
    """What a match says beside its value."""
    return match.get("type") or "", match.get("port") or 0, match.get("protocol") or "tcp"


def on_port(db: Db, service: Key, section: str) -> tuple[ExternalMatch, ...]:
    """The matches of one port; with another protocol than the port's, which is its first, they do not act."""
    port = world.port(db, service, section)
    if port is None:
        return ()
    speaks = port.number, port.protocol
    return tuple(match for match in of(db, service) if (match.port, match.protocol) == speaks)
