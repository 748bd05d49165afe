"""Rotation: how the CA of a mesh changes without a failed call.

A new CA is added to the bundle of all proxies at once, beside the old one. It issues certificates only when
every proxy has acknowledged that it trusts it. The old CA is trusted until no proxy presents a certificate of
it any more. So it does not matter whether backends are added, enabled and removed one by one or in a single
write.

The rotation is a pure function from its last state and its inputs to the next state. Each control plane
decides for itself, by the proxies of all of them. What others know arrives with a delay, so there is a moment
between the last acknowledgement and the next step. While it is not known what proxies of others have, no CA
begins to issue and none leaves.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

TRUST_TIMEOUT: Final = timedelta(seconds=10)  # for a proxy that does not acknowledge a new CA
SETTLE_TIME: Final = timedelta(seconds=2)  # until it is known which proxies other control planes have
DISTRUST_DELAY: Final = timedelta(
    seconds=20
)  # until proxies of other control planes have dropped the old one


class CaHolders(msgspec.Struct, frozen=True):
    """What proxies of other control planes have of the CAs of a mesh."""

    n_proxies: int = 0
    n_trusting: Mapping[str, int] = {}
    n_presenting: Mapping[str, int] = {}
    is_known: bool = True  # False: this is how it was when it was last known


class RotationInputs(msgspec.Struct, frozen=True):
    """What the rotation depends on. CAs are named by id."""

    now: datetime
    configured: frozenset[str]  # the CAs of all backends
    next_issuer: str  # the CA of the enabled backend; empty if it cannot issue
    changed_at: datetime  # when the backends were last changed
    n_proxies: int = 0
    n_trusting: Mapping[str, int] = {}  # by CA: proxies that have acknowledged it
    n_presenting: Mapping[str, int] = {}  # by CA: proxies that may present a certificate of it
    is_known: bool = True  # what proxies of other control planes have


class Rotation(msgspec.Struct, frozen=True):
    """Which CA issues, and which are trusted since when."""

    issuer: str = ""
    trusted: Mapping[str, datetime] = {}
    retiring: Mapping[str, datetime] = {}  # trusted CAs that are no longer configured, and since when


def next_rotation(before: Rotation, inputs: RotationInputs) -> Rotation:
    """The next state."""
    # After a start, the last change of the backends counts: other control planes rotate since then.
    since = inputs.now if before.trusted else min(inputs.changed_at, inputs.now)
    configured = {ca: before.trusted.get(ca, since) for ca in sorted(inputs.configured)}
    issuer = inputs.next_issuer if _may_issue(before, inputs, configured) else before.issuer
    removed = before.trusted.keys() - inputs.configured - {issuer}
    retiring = {ca: before.retiring.get(ca, inputs.now) for ca in sorted(removed)}
    retiring = {
        ca: at
        for ca, at in retiring.items()
        if inputs.n_presenting.get(ca) or inputs.now < at + DISTRUST_DELAY or not inputs.is_known
    }
    kept = {ca: before.trusted[ca] for ca in sorted(before.trusted.keys() & {*retiring, issuer})}
    return Rotation(issuer, configured | kept, retiring)


def _may_issue(before: Rotation, inputs: RotationInputs, configured: Mapping[str, datetime]) -> bool:
    """Whether all proxies trust the next issuer, as far as can be known."""
    if not inputs.next_issuer:
        return False
    if not before.issuer and len(configured) == 1:
        return True  # no proxy can trust another CA
    if not inputs.is_known:
        return False
    waited = inputs.now - configured[inputs.next_issuer]
    do_all_trust = inputs.n_trusting.get(inputs.next_issuer, 0) >= inputs.n_proxies
    return waited >= TRUST_TIMEOUT or (do_all_trust and waited >= SETTLE_TIME)


def is_settled(rotation: Rotation, next_issuer: str) -> bool:
    """Whether no rotation is in progress, so that acknowledgements do not matter."""
    return rotation.issuer == next_issuer and not rotation.retiring


def due(rotation: Rotation, inputs: RotationInputs) -> datetime | None:
    """When the state may change even if no input does."""
    return min((at for at in _deadlines(rotation, inputs.next_issuer) if at > inputs.now), default=None)


def _deadlines(rotation: Rotation, next_issuer: str) -> Iterator[datetime]:
    if next_issuer and next_issuer != rotation.issuer:
        yield rotation.trusted[next_issuer] + SETTLE_TIME
        yield rotation.trusted[next_issuer] + TRUST_TIMEOUT
    for since in rotation.retiring.values():
        yield since + DISTRUST_DELAY
