"""Inbound: the policy entries that hold for calls that arrive at an inbound, each with the clients it is for.

`from` and `rules` become one ordered list of entries. Combinations of tags are never enumerated: who applies
the list merges all entries that match a client.
"""

from collections.abc import Iterator
from itertools import chain
from operator import itemgetter

import msgspec

from koguma.core import items, match, order, world
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId
from koguma.core.policy_set import Policies, PolicyPart
from koguma.core.world import Pairs, pairs
from koguma.model.resource import Key
from koguma.model.schema import Json


class Client(msgspec.Struct, frozen=True):
    """The clients that an inbound rule is for; with no field set, all clients."""

    tags: Pairs = ()
    spiffe_id: tuple[str, str] = ("", "")  # type and value
    sni: tuple[str, str] = ("", "")

    @property
    def specificity(self) -> tuple[bool, bool, bool, int]:
        """Greater is more specific: an exact identity, then a prefix, a server name, more tags."""
        return (self.spiffe_id[0] == "Exact", bool(self.spiffe_id[1]), bool(self.sni[1]), len(self.tags))


class InboundRule(msgspec.Struct, frozen=True):
    """One entry, for the clients of one of its matches."""

    client: Client
    entry: ItemId


@question
def entries(db: Db, policies: Policies) -> tuple[InboundRule, ...]:
    """The entries for calls that arrive: most specific client first, then in ascending precedence."""
    ranked = chain.from_iterable(_ranked(db, part) for part in policies.parts)
    rules = [rule for _, rule in sorted(ranked, key=itemgetter(0))]
    return tuple(sorted(rules, key=lambda rule: rule.client.specificity, reverse=True))


@question
def _ranked(db: Db, part: PolicyPart) -> tuple[tuple[order.Precedence, InboundRule], ...]:
    """The entries of some policies, each with what sorts it."""
    rules = (rule for policy in part for rule in of_policy(db, policy))
    return tuple((order.key(items.rank(db, rule.entry)), rule) for rule in rules)


@question
def of_policy(db: Db, policy: Key) -> tuple[InboundRule, ...]:
    """The entries of one policy; a question, so that editing a conf orders no entries again."""
    record = world.kind_of(db, policy.kind).policy
    if record is not None and record.rules_are_routes:
        return ()
    return tuple(_rules(policy, items.clean_spec(db, policy)))


def _rules(policy: Key, spec: Json) -> Iterator[InboundRule]:
    for index, entry in enumerate(spec.get("from") or ()):
        yield InboundRule(_from_client(entry.get("targetRef") or {}), ItemId(policy, "from", index))
    for index, entry in enumerate(spec.get("rules") or ()):
        matches: list[Json] = entry.get("matches") or [{}]
        for match_ in matches:
            yield InboundRule(_match_client(match_), ItemId(policy, "rules", index))


def _from_client(ref: Json) -> Client:
    own = dict(ref.get("tags") or {})
    if ref.get("kind") in ("MeshService", "MeshServiceSubset") and ref.get("name"):
        own["kuma.io/service"] = ref["name"]
    return Client(tags=pairs(own))


def _match_client(match_: Json) -> Client:
    spiffe, sni = match_.get("spiffeID") or {}, match_.get("sni") or {}
    return Client(
        spiffe_id=(spiffe.get("type", ""), spiffe.get("value", "")),
        sni=(sni.get("type", ""), sni.get("value", "")),
    )


@question
def policies_of(db: Db, traits: match.Traits, section: str) -> tuple[tuple[str, Policies], ...]:
    """The policies that select one inbound of proxies with these traits, by kind."""
    by_kind = ((kind, match.policies(db, kind, traits, section)) for kind in match.policy_kinds(db))
    return tuple((kind, policies) for kind, policies in by_kind if policies)


@question
def of(db: Db, traits: match.Traits, section: str) -> tuple[tuple[str, tuple[InboundRule, ...]], ...]:
    """The entries for calls that arrive at one inbound, by kind."""
    by_kind = ((kind, entries(db, policies)) for kind, policies in policies_of(db, traits, section))
    return tuple((kind, entries) for kind, entries in by_kind if entries)
