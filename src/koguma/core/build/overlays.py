"""Overlays: what the policies' own hooks say about a part of a proxy.

An error in a hook takes away what that policy says there, and nothing else; it is shown.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from koguma.core import inbound, items, match, order, world
from koguma.core.build import encoding
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind
from koguma.envoy.snapshot import Failure
from koguma.model.overlay import Overlay, Overlays, Ruled, Where
from koguma.model.schema import Json


class Laid(msgspec.Struct, frozen=True):
    """Overlays by kind, in the kinds' order, and what went wrong."""

    overlays: tuple[Overlay, ...] = ()
    failures: tuple[Failure, ...] = ()

    def part(self, name: str) -> list[Json]:
        """What all of them say about one part."""
        return [overlay[name] for overlay in self.overlays if name in overlay]


def _hooks(db: Db, kind: str) -> Overlays:
    policy = world.kind_of(db, kind).policy
    return policy.overlays if policy else Overlays()


@question
def outbound(db: Db, entries: ByKind, where: Where) -> Laid:
    """What policies say about calls to one port, or through one route to it."""
    return _collect(_outbound_calls(db, entries, where))


def _outbound_calls(db: Db, entries: ByKind, where: Where) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, found in entries:
        hook = _hooks(db, kind).outbound
        conf = items.conf(db, found) if hook else None
        if hook and conf:
            yield kind, partial(hook, conf, where)


@question
def inbound_of(db: Db, seen: match.Traits, section: str, where: Where) -> Laid:
    """What policies say about calls that arrive at one inbound."""
    return _collect(_inbound_calls(db, seen, section, where))


def _inbound_calls(
    db: Db, seen: match.Traits, section: str, where: Where
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, found in inbound.of(db, seen, section):
        hook = _hooks(db, kind).inbound
        if hook:
            ascending = sorted(found, key=lambda rule: order.key(items.rank(db, rule.entry)))
            ruled = tuple(_ruled(db, rule) for rule in ascending)
            yield kind, partial(hook, _for_everybody(db, found), ruled, where)


def _for_everybody(db: Db, found: tuple[inbound.InboundRule, ...]) -> Json:
    entries = tuple(rule.entry for rule in found if rule.client == inbound.Client())
    return items.conf(db, entries) if entries else {}


def _ruled(db: Db, rule: inbound.InboundRule) -> Ruled:
    return Ruled(
        conf=items.conf(db, (rule.entry,)),
        origin=rule.entry.policy,
        kri=encoding.kri(db, rule.entry.policy, ""),
        path=rule.entry.path,
        tags=rule.client.tags,
        spiffe_id=rule.client.spiffe_id,
        sni=rule.client.sni,
    )


def _collect(calls: Iterator[tuple[str, Callable[[], Overlay]]]) -> Laid:
    overlays, failures = [], []
    for kind, call in calls:
        try:
            overlays.append(call())
        except Exception as error:  # noqa: BLE001 - a policy of another package may raise anything
            text = f"{kind} cannot say what it means for Envoy: {type(error).__name__}: {error}"
            failures.append(Failure("policy", kind, text, kind))
    return Laid(tuple(overlays), tuple(failures))
