"""External overlaps: MeshExternalServices that match the same calls, of which one gets them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import external_matches, world
from koguma.core.external_matches import ExternalMatch
from koguma.core.incremental import Db, question
from koguma.model import ip_range
from koguma.model.ip_range import IpRange
from koguma.model.resource import Key

_KIND: Final = "MeshExternalService"
_NEAREST_MAX: Final = 8  # of many ranges around one, the smallest ones are named


class ServiceOverlap(msgspec.Struct, frozen=True, order=True):
    """Two services and the calls that both match; `first` is the one with the smaller key."""

    first: Key
    second: Key
    message: str
    indices: tuple[int, int]  # in their `spec.match`


_Claim = tuple[Key, ExternalMatch]


@question
def of_mesh(db: Db, mesh: str) -> Mapping[Key, tuple[ServiceOverlap, ...]]:
    """The overlaps of each service, one for each other service; asked once for all of a mesh."""
    claims = [
        (key, match)
        for key in world.BY_KIND.keys(db, (_KIND, mesh))
        for match in external_matches.of(db, key)
    ]
    overlaps: dict[tuple[Key, Key], ServiceOverlap] = {}
    for overlap in sorted((*_of_domains(claims), *_of_addresses(claims))):
        overlaps.setdefault((overlap.first, overlap.second), overlap)
    by_service: dict[Key, list[ServiceOverlap]] = {}
    for overlap in overlaps.values():
        by_service.setdefault(overlap.first, []).append(overlap)
        by_service.setdefault(overlap.second, []).append(overlap)
    return {key: tuple(found) for key, found in by_service.items()}


def _of_domains(claims: Iterable[_Claim]) -> Iterator[ServiceOverlap]:
    by_domain: dict[tuple[int, str, str], list[_Claim]] = {}
    for key, match in claims:
        if match.domain:
            # A tcp connection carries no name: every domain of such a port is the whole port.
            name = "" if match.protocol == "tcp" else match.domain
            layer = match.protocol if match.protocol in ("tcp", "tls") else "http"
            by_domain.setdefault((match.port, layer, name), []).append((key, match))
    for (port, _, name), same in by_domain.items():
        first, *others = same
        for other in others:
            what = f'the domain "{name}" on port {port}' if name else f"all tcp connections on port {port}"
            yield from _overlap(first, other, "and {} both match " + what)


def _of_addresses(claims: Iterable[_Claim]) -> Iterator[ServiceOverlap]:
    """Ranges are nested or disjoint, so in the order of their beginnings each meets what is around it."""
    by_port: dict[tuple[int, int], list[tuple[IpRange, _Claim]]] = {}
    for key, match in claims:
        if match.addresses is not None:
            at_port = by_port.setdefault((match.port, match.addresses.version), [])
            at_port.append((match.addresses, (key, match)))
    for ranges in by_port.values():
        around: list[tuple[IpRange, _Claim]] = []
        for addresses, claim in sorted(ranges, key=lambda each: (each[0], each[1][0])):
            while around and not ip_range.covers(around[-1][0], addresses):
                around.pop()
            for _, outer in around[-_NEAREST_MAX:]:
                what = f"have overlapping IPs {ip_range.text(addresses)}"
                yield from _overlap(outer, claim, "and {} " + what)
            around.append((addresses, claim))


def _overlap(one: _Claim, other: _Claim, words: str) -> Iterator[ServiceOverlap]:
    """The overlap of two services, in the founding document's words (seed 001); none within one of them.

    Services of two zones do not meet: each is called in its own zone only.
    """
    (first, match), (second, other_match) = sorted((one, other), key=lambda claim: claim[0])
    if first == second or (first.zone and second.zone and first.zone != second.zone):
        return
    message = f"{first.name} {words.format(second.name)}, which can disrupt your traffic."
    yield ServiceOverlap(first, second, message, (match.index, other_match.index))
