"""Inbound: what policies say about calls that arrive, and about whose calls.

`from` and `rules` become one ordered list of entries, each with the clients that it is for. Combinations of
tags are never enumerated: whoever applies the list merges all entries that fit a client.
"""

from collections.abc import Iterator

import msgspec

from koguma.core import items, match, order, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, Policies
from koguma.core.world import Pairs, pairs
from koguma.model.resource import Key
from koguma.model.schema import Json


class Client(msgspec.Struct, frozen=True):
    """Whom an inbound rule is for; nothing set means everybody."""

    tags: Pairs = ()
    spiffe_id: tuple[str, str] = ("", "")  # type and value
    sni: tuple[str, str] = ("", "")

    @property
    def specificity(self) -> tuple[bool, bool, bool, int]:
        """More specific is greater: an exact identity, a prefix, a server name, more tags."""
        return (self.spiffe_id[0] == "Exact", bool(self.spiffe_id[1]), bool(self.sni[1]), len(self.tags))


class InboundRule(msgspec.Struct, frozen=True):
    """One entry for one sort of client."""

    client: Client
    entry: ItemId


@question
def entries(db: Db, policies: Policies) -> tuple[InboundRule, ...]:
    """The entries for calls that arrive, with whom each is for: most specific client first, then by order.

    Combinations of tags are never enumerated: whoever applies the list merges all entries that fit a client.
    """
    found = [rule for policy in policies for rule in _inbound_entries(db, policy)]
    found.sort(key=lambda rule: order.key(items.rank(db, rule.entry)))
    return tuple(sorted(found, key=lambda rule: rule.client.specificity, reverse=True))


def _inbound_entries(db: Db, policy: Key) -> Iterator[InboundRule]:
    record = world.kind_of(db, policy.kind).policy
    if record is not None and record.rules_are_routes:
        return
    spec = items.clean_spec(db, policy)
    for index, entry in enumerate(spec.get("from") or ()):
        yield InboundRule(_from_client(entry.get("targetRef") or {}), ItemId(policy, "from", index))
    for index, entry in enumerate(spec.get("rules") or ()):
        matches: list[Json] = entry.get("matches") or [{}]
        for one in matches:
            yield InboundRule(_match_client(one), ItemId(policy, "rules", index))


def _from_client(ref: Json) -> Client:
    own = dict(ref.get("tags") or {})
    if ref.get("kind") in ("MeshService", "MeshServiceSubset") and ref.get("name"):
        own["kuma.io/service"] = ref["name"]
    return Client(tags=pairs(own))


def _match_client(one: Json) -> Client:
    spiffe, sni = one.get("spiffeID") or {}, one.get("sni") or {}
    return Client(
        spiffe_id=(spiffe.get("type", ""), spiffe.get("value", "")),
        sni=(sni.get("type", ""), sni.get("value", "")),
    )


@question
def policies_of(db: Db, seen: match.Traits, section: str) -> tuple[tuple[str, Policies], ...]:
    """The policies that select one inbound of proxies with these traits, by kind."""
    found = []
    for kind in match.policy_kinds(db):
        chosen = Group(one.policy for one in match.matched(db, kind, seen) if section in one.sections)
        if chosen:
            found.append((kind, chosen))
    return tuple(found)


@question
def of(db: Db, seen: match.Traits, section: str) -> tuple[tuple[str, tuple[InboundRule, ...]], ...]:
    """What holds for calls that arrive at one inbound, by kind."""
    found = ((kind, entries(db, chosen)) for kind, chosen in policies_of(db, seen, section))
    return tuple((kind, entries) for kind, entries in found if entries)
