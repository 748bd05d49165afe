"""Inert fields: values that are set for a port and do not act there, since it speaks another protocol."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koguma.core import world
from koguma.model import kri

# Sections of policies that act on these protocols only.
_SECTIONS: Final = {"http": world.HTTP_PROTOCOLS, "grpc": ("grpc",)}
_REMEDIES: Final = {
    "msvc": (
        'set "appProtocol: {0}" at the port in MeshService "{1}"; where that is made from proxies, give them'
        " the tag kuma.io/protocol: {0} (`koguma dp run --protocol {0}`)"
    ),
    "extsvc": 'set "protocol: {0}" in spec.match of MeshExternalService "{1}"',
    "mzsvc": 'set "appProtocol: {0}" at the port in MeshMultiZoneService "{1}"',
}


def section(field: str) -> str:
    """The section of a field that is for one protocol only; empty where it is for all."""
    first = field.partition(".")[0].partition("[")[0]
    return first if first in _SECTIONS else ""


def acts(field: str, protocol: str) -> bool:
    """Whether a field of a policy acts on a port of this protocol."""
    name = section(field)
    return not name or not protocol or protocol in _SECTIONS[name]


def reasons(
    fields: Iterable[tuple[str, str]], protocols: Mapping[str, str], asked: str = ""
) -> Iterator[str]:
    """A sentence for each port (by KRI) that has fields which do not act on it, and how to change that.

    Limits for gRPC beside those for HTTP are usual, as in the policies of a new mesh; on a port that speaks
    HTTP they are told only where somebody `asked` for such a field.
    """
    idle: dict[str, set[str]] = {}
    for port, field in fields:
        if not acts(field, protocols.get(port, "")):
            idle.setdefault(port, set()).add(section(field))
    for port, names in sorted(idle.items()):
        if protocols[port] in world.HTTP_PROTOCOLS and section(asked) not in names:
            continue
        own = kri.parse(port)
        name = section(asked) or max(names)
        remedy = _REMEDIES.get(own.short, 'set the protocol of the port to "{0}"').format(name, own.name)
        spoken = f"port {own.section} of {own.name} speaks {protocols[port]}"
        yield f"{spoken}, so {' and '.join(sorted(names, reverse=True))} fields do not act on it; {remedy}"
