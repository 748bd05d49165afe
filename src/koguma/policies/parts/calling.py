"""Calling: whom an entry for calls that arrive is for, in the words of callers' certificates.

A service is `spiffe://<mesh>/<service>` and a tag `kuma://<tag>/<value>`; a certificate has the services
first. Who lets callers in asks for the whole certificate to be of the caller's own trust domain; who
refuses them does not, since a name that somebody wrongly wears is a reason too.
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy.callers import Caller, UriSan
from koguma.model import tags as tag_words
from koguma.model.overlay import InboundEntry
from koguma.model.schema import Json

_SCHEME: Final = "spiffe://"


def of_match(match: Json, *, trusting: bool = False) -> Caller:
    """The callers that a match with `spiffeID` and `sni` is for."""
    spiffe, sni = match.get("spiffeID") or {}, match.get("sni") or {}
    return _caller(spiffe.get("type", ""), spiffe.get("value", ""), sni.get("value", ""), trusting=trusting)


def of_entry(entry: InboundEntry) -> Caller:
    """The callers that an entry with such a match is for."""
    return _caller(*entry.spiffe_id, entry.sni[1], trusting=False)


def _caller(kind: str, identity: str, server_name: str, *, trusting: bool) -> Caller:
    if not identity:
        return Caller((), server_name)
    trust_domain, slash, _ = identity.removeprefix(_SCHEME).partition("/")
    domain = "" if trusting else f"{_SCHEME}{trust_domain}{slash}"
    return Caller((UriSan(identity, kind == "Prefix", domain),), server_name)


def of_tags(tags: Iterable[tuple[str, str]], mesh: str, *, trusting: bool = False) -> Caller:
    """The callers of a mesh that have all of these tags; `*` is any value."""
    domain = "" if trusting else f"{_SCHEME}{mesh}/"
    return Caller(tuple(_tag(name, value, mesh, domain) for name, value in tags))


def of_mesh(mesh: str) -> Caller:
    """All callers of a mesh."""
    domain = f"{_SCHEME}{mesh}/"
    return Caller((UriSan(domain, is_prefix=True, domain=domain),))


def _tag(name: str, value: str, mesh: str, domain: str) -> UriSan:
    before = f"{_SCHEME}{mesh}/" if name == tag_words.SERVICE else f"kuma://{name}/"
    if value == tag_words.ANY:
        return UriSan(before, is_prefix=True, domain=domain)
    return UriSan(before + value, domain=domain)


def specificity(entry: InboundEntry) -> tuple[bool, int, bool, int]:
    """More specific is greater: an exact identity, a longer beginning of one, a server name, more tags."""
    kind, identity = entry.spiffe_id
    return kind == "Exact", len(identity), bool(entry.sni[1]), len(entry.tags)


def covers(wider: InboundEntry, narrower: InboundEntry) -> bool:
    """Whether all callers of one entry are callers of the other."""
    kind, identity = wider.spiffe_id
    same = narrower.spiffe_id == wider.spiffe_id
    within = kind == "Prefix" and narrower.spiffe_id[1].startswith(identity)
    return (not identity or same or within) and wider.sni[1] in ("", narrower.sni[1])
