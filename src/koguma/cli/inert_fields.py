"""Inert fields: values that are set for a port but have no effect, because it has another protocol."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koguma.core import world
from koguma.model import kri

# Sections of policies that have an effect on these protocols only.
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
    """The protocol-specific section that a field is in; empty where it is in none."""
    first = field.partition(".")[0].partition("[")[0]
    return first if first in _SECTIONS else ""


def acts(field: str, protocol: str) -> bool:
    """Whether a field of a policy has an effect on a port of this protocol."""
    name = section(field)
    return not name or not protocol or protocol in _SECTIONS[name]


def reasons(
    fields: Iterable[tuple[str, str]], protocols: Mapping[str, str], asked: str = ""
) -> Iterator[str]:
    """A sentence for each port (by KRI) with fields that have no effect on it, and how to change that.

    Limits for gRPC beside those for HTTP are usual, as in the default policies of a mesh; on an HTTP port
    they are reported only where such a field was `asked` for.
    """
    inert: dict[str, set[str]] = {}
    for port, field in fields:
        if not acts(field, protocols.get(port, "")):
            inert.setdefault(port, set()).add(section(field))
    for port, names in sorted(inert.items()):
        if protocols[port] in world.HTTP_PROTOCOLS and section(asked) not in names:
            continue
        identifier = kri.parse(port)
        name = section(asked) or max(names)
        remedy = _REMEDIES.get(identifier.short, 'set the protocol of the port to "{0}"')
        remedy = remedy.format(name, identifier.name)
        subject = f"port {identifier.section} of {identifier.name} speaks {protocols[port]}"
        yield f"{subject}, so {' and '.join(sorted(names, reverse=True))} fields do not act on it; {remedy}"
