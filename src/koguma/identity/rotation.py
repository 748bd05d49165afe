"""Rotation: how the CA of a mesh changes without a failed call.

Trust comes first and leaves last. A new CA goes into the bundle of all proxies at once, beside the old one;
it issues only when every proxy has said that it trusts it; and the old one is trusted until nobody shows a
certificate of it any more. So it does not matter whether somebody adds, enables and removes backends one by
one or in a single write.

This is a latch: a pure step from what was decided to what is decided next, given what is seen. The proxies
that are seen are those of one control plane. Those of others are given time: a moment after all of ours have
answered, and as long as ours may take where one does not answer.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

PATIENCE: Final = timedelta(seconds=10)  # with a proxy that does not say that it trusts a new CA
SETTLE: Final = timedelta(seconds=2)  # until proxies of other control planes trust it too
LINGER: Final = timedelta(seconds=20)  # until proxies of other control planes have dropped the old one


class Observed(msgspec.Struct, frozen=True):
    """What is seen. CAs are named by id; `wanted` is empty where the one that is to issue cannot."""

    now: datetime
    listed: frozenset[str]  # the CAs of all backends
    wanted: str
    written: datetime  # when somebody last changed the backends
    n_proxies: int = 0
    n_trusting: Mapping[str, int] = {}  # by CA: the proxies that said that they trust it
    n_showing: Mapping[str, int] = {}  # by CA: the proxies that may show a certificate of it


class Rotation(msgspec.Struct, frozen=True):
    """What is decided: who issues, and who is trusted since when."""

    issuer: str = ""
    trusted: Mapping[str, datetime] = {}
    leaving: Mapping[str, datetime] = {}  # of the trusted: since when they neither issue nor are listed


def step(before: Rotation, seen: Observed) -> Rotation:
    """What is decided next."""
    # A control plane that has just started goes by what was decided before it, when the backends changed.
    since = seen.now if before.trusted else min(seen.written, seen.now)
    listed = {ca: before.trusted.get(ca, since) for ca in sorted(seen.listed)}
    issuer = seen.wanted if _may_issue(before, seen, listed) else before.issuer
    gone = before.trusted.keys() - seen.listed - {issuer}
    leaving = {ca: before.leaving.get(ca, seen.now) for ca in sorted(gone)}
    leaving = {ca: at for ca, at in leaving.items() if seen.n_showing.get(ca) or seen.now < at + LINGER}
    kept = {ca: before.trusted[ca] for ca in sorted(before.trusted.keys() & {*leaving, issuer})}
    return Rotation(issuer, listed | kept, leaving)


def _may_issue(before: Rotation, seen: Observed, listed: Mapping[str, datetime]) -> bool:
    """Whether everybody trusts the CA that is wanted, as far as can be known."""
    if not seen.wanted:
        return False
    if not before.issuer and len(listed) == 1:
        return True  # nobody can be trusting another one
    waited = seen.now - listed[seen.wanted]
    do_all_trust = seen.n_trusting.get(seen.wanted, 0) >= seen.n_proxies
    return waited >= PATIENCE or (do_all_trust and waited >= SETTLE)


def is_settled(decided: Rotation, wanted: str) -> bool:
    """Whether what proxies answer no longer matters."""
    return decided.issuer == wanted and not decided.leaving


def due(decided: Rotation, seen: Observed) -> datetime | None:
    """When to look again although nothing happens."""
    return min((at for at in _moments(decided, seen.wanted) if at > seen.now), default=None)


def _moments(decided: Rotation, wanted: str) -> Iterator[datetime]:
    if wanted and wanted != decided.issuer:
        yield decided.trusted[wanted] + SETTLE
        yield decided.trusted[wanted] + PATIENCE
    for since in decided.leaving.values():
        yield since + LINGER
