"""Order: the total order of precedence of policy entries.

A `Rank` holds what the comparison needs to know of one item of a policy (an entry of `to`, `from` or `rules`,
or the whole policy). `key` turns it into a tuple that sorts in ascending precedence, so the later item
overwrites the earlier one. The first step at which two ranks differ decides, and `reason` names that step in
words.

1. tier: on a mesh or service < on a route by the deprecated top-level targetRef < on a route in `to`
2. kind of the top-level targetRef: Mesh < Dataplane < MeshSubset < ... < MeshHTTPRoute
3. both Dataplane: by labels < by name; both Dataplane or MeshGateway: whole proxy < one inbound or listener
4. origin: global < unknown < zone
5. both MeshGateway: fewer tags < more tags
6. role: system < producer < consumer < workload-owner
7. kind of the item's targetRef, in the order of step 2; whole destination < one port
8. both routes of a MeshGateway: the older one wins
9. name: the one that comes first in the alphabet wins
10. stored name and index in the policy: the later one wins

Step 1 comes from the founding document on routes (decision 0006), step 8 from the Gateway API, which ranks by
age, the others from Kuma 2.13. Kuma leaves step 10 to the order in which its store lists, and compares ports
of MeshService only; here both hold for all.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

from koguma.core.role import PolicyRole
from koguma.model import target_ref


class Tier(IntEnum):
    """What an item targets; a route is more specific than its service, so it wins."""

    SERVICE = 0
    OLD_ROUTE = 1  # a policy whose top-level targetRef is a route, which is deprecated
    ROUTE = 2  # an entry of `to` whose targetRef is a route


class Rank(msgspec.Struct, frozen=True, gc=False):
    """The properties that decide between items. Kinds and origin may be empty where there are none.

    `top_by_name` counts among Dataplane targets only, `gateway_tags` among MeshGateway, `top_section` among
    both.
    """

    tier: Tier
    top_kind: str
    top_by_name: bool
    top_section: bool
    origin: str  # "global", "zone" or empty
    gateway_tags: int
    role: PolicyRole
    to_kind: str
    to_section: bool
    display_name: str
    core_name: str
    index: int
    created: str = ""  # when a route of a gateway was created; empty for all else, and before it is stored


Precedence = tuple[int, int, bool, bool, int, int, int, int, bool, bytes, bytes, str, int]

_KINDS: Final = {
    "Mesh": 1,
    "Dataplane": 2,
    "MeshSubset": 3,
    "MeshGateway": 4,
    "MeshService": 5,
    "MeshExternalService": 6,
    "MeshMultiZoneService": 7,
    "MeshServiceSubset": 8,
    target_ref.HTTP_ROUTE: 9,
    target_ref.TCP_ROUTE: 9,
}
_SECTIONED: Final = frozenset({"Dataplane", "MeshGateway"})
_ORIGINS: Final = {"global": 0, "": 1, "zone": 2}
_UNKNOWN_ORIGIN: Final = _ORIGINS[""]
_ROLES: Final = {role: number for number, role in enumerate(PolicyRole)}


def key(rank: Rank) -> Precedence:
    """The sort key of a rank: of two items, the one with the greater key wins."""
    is_dataplane = rank.top_kind == "Dataplane"
    return (
        rank.tier,
        _KINDS.get(rank.top_kind, 0),
        is_dataplane and rank.top_by_name,
        rank.top_kind in _SECTIONED and rank.top_section,
        _ORIGINS.get(rank.origin, _UNKNOWN_ORIGIN),
        rank.gateway_tags if rank.top_kind == "MeshGateway" else 0,
        _ROLES[rank.role],
        _KINDS.get(rank.to_kind, 0),
        rank.to_section,
        _descending(rank.created) if rank.created else b"",
        _descending(rank.display_name),
        rank.core_name,
        rank.index,
    )


# No byte of UTF-8 is above 0xF4, so the end marker sorts above all of them.
_END: Final = b"\xff"
_INVERTED: Final = bytes(max(0xFE - byte, 0) for byte in range(256))


def _descending(name: str) -> bytes:
    """Bytes that sort in descending order of names, also where one name is a prefix of the other."""
    return name.encode("utf-8", "surrogatepass").translate(_INVERTED) + _END


def reason(winner: Rank, loser: Rank) -> str:
    """Why the loser lost to the winner, as a clause about the loser."""
    winner_key, loser_key = key(winner), key(loser)
    assert winner_key >= loser_key, f"{loser} wins against {winner}"
    for describe, own, other in zip(_WORDS, winner_key, loser_key, strict=True):
        if own != other:
            return describe(winner, loser)
    return "it ranks the same, the later one wins"


_TIERS: Final = {
    Tier.SERVICE: "a mesh or service",
    Tier.OLD_ROUTE: "a route by its top-level targetRef",
    Tier.ROUTE: "a route in to[]",
}


def _tier(winner: Rank, loser: Rank) -> str:
    return f"it targets {_TIERS[loser.tier]}, one that targets {_TIERS[winner.tier]} wins"


def _top_kind(winner: Rank, loser: Rank) -> str:
    return f"its targetRef is {loser.top_kind or 'empty'}, {winner.top_kind} wins"


def _top_by_name(_winner: Rank, _loser: Rank) -> str:
    return "it selects proxies by labels, one by name wins"


def _top_section(winner: Rank, _loser: Rank) -> str:
    if winner.top_kind == "MeshGateway":
        return "it selects the whole gateway, one with a sectionName wins"
    return "it selects whole proxies, one for a single inbound wins"


def _origin(winner: Rank, loser: Rank) -> str:
    return f"its origin is {loser.origin or 'unknown'}, {winner.origin or 'unknown'} wins"


def _gateway_tags(winner: Rank, loser: Rank) -> str:
    noun = "tag" if loser.gateway_tags == 1 else "tags"
    return f"its targetRef has {loser.gateway_tags} {noun}, one with {winner.gateway_tags} wins"


def _role(winner: Rank, loser: Rank) -> str:
    return f"its role is {loser.role.value}, {winner.role.value} wins"


def _to_kind(winner: Rank, loser: Rank) -> str:
    return f"its to[].targetRef is {loser.to_kind or 'empty'}, {winner.to_kind} wins"


def _to_section(_winner: Rank, _loser: Rank) -> str:
    return "it targets all ports, one for a single port wins"


def _created(_winner: Rank, _loser: Rank) -> str:
    return "it is younger, on a gateway the older route wins"


def _display_name(winner: Rank, loser: Rank) -> str:
    return f'its name is "{loser.display_name}", "{winner.display_name}" comes first in the alphabet and wins'


def _core_name(winner: Rank, loser: Rank) -> str:
    return f'it is stored as "{loser.core_name}", "{winner.core_name}" comes later and wins'


def _index(winner: Rank, loser: Rank) -> str:
    return f"it is item {loser.index} of the policy, the later item {winner.index} wins"


# One function for each element of a key.
_WORDS: Final[tuple[Callable[[Rank, Rank], str], ...]] = (
    _tier,
    _top_kind,
    _top_by_name,
    _top_section,
    _origin,
    _gateway_tags,
    _role,
    _to_kind,
    _to_section,
    _created,
    _display_name,
    _core_name,
    _index,
)
