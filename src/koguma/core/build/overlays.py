"""Overlays: what the policies' own hooks say about a part of a proxy.

An error in a hook takes away what that policy says there, and nothing else; it is shown.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from koguma.core import inbound, items, match, order, rules, world
from koguma.core.build import encoding, hooks
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.rules import ProxyClass
from koguma.core.world import Pairs, pairs
from koguma.envoy.snapshot import Failure
from koguma.model.overlay import InboundEntry, Locality, Overlay, OverlayContext
from koguma.model.schema import Json


class PolicyOverlays(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What policies change, by kind in the order of kinds, and what failed. Outbound ones are interned."""

    overlays: tuple[Overlay, ...] = ()
    failures: tuple[Failure, ...] = ()
    locality: Locality | None = None  # of a cluster: which of its endpoints are called first

    def part(self, name: str) -> list[Json]:
        """What all of them say about one part."""
        return [overlay[name] for overlay in self.overlays if name in overlay]


# The kind, its hook, what holds for everybody, and all entries.
_Arriving = tuple[str, Callable[..., Overlay], Json, tuple[InboundEntry, ...]]


MergedConfs = Group[tuple[str, bytes]]  # outbound configurations by kind, as JSON


@question
def merged_confs(db: Db, entries: ByKind, mesh: str) -> MergedConfs:
    """The merged outbound configurations of entries, by kind.

    Equal configurations are one value whichever policies they come from, so overlays are built once for them.
    """
    acting = [each for each in entries if _acts_on_calls(db, each[0])]
    confs = ((kind, conf(db, kind, each, mesh)) for kind, each in hooks.in_order(db, acting))
    return Group((kind, _written.encode(merged)) for kind, merged in confs if merged)


def _acts_on_calls(db: Db, kind: str) -> bool:
    hooks_of_kind = hooks.of(db, kind)
    return bool(hooks_of_kind.outbound or hooks_of_kind.locality)


_written = msgspec.json.Encoder(order="deterministic", enc_hook=str)


NOTHING: Final = PolicyOverlays()
_OF_CLUSTERS: Final = frozenset({"cluster", "http_options"})


class OutboundOverlays(NamedTuple):
    """What policies change for calls to one port: its listener and routes, and its cluster.

    The two are separate because most policies change one of them only, and the other is then shared.
    """

    listener: PolicyOverlays
    cluster: PolicyOverlays


@question
def outbound(db: Db, of: MergedConfs, where: OverlayContext) -> OutboundOverlays:
    """What policies change for calls to one port, or for calls to it through one route."""
    found = _collect(_outbound_calls(db, of, where))
    cluster = _some(found, of_clusters=True)
    near = hooks.locality(db, ((kind, msgspec.json.decode(words)) for kind, words in of))
    cluster = PolicyOverlays(cluster.overlays, (*cluster.failures, *near.failures), near.locality)
    return OutboundOverlays(_interned(_some(found, of_clusters=False)), _interned(cluster))


def _some(laid: PolicyOverlays, *, of_clusters: bool) -> PolicyOverlays:
    parts = (
        {name: part for name, part in overlay.items() if (name in _OF_CLUSTERS) == of_clusters}
        for overlay in laid.overlays
    )
    return PolicyOverlays(tuple(each for each in parts if each), laid.failures)


_packed = msgspec.msgpack.Encoder()
_known: WeakValueDictionary[bytes, PolicyOverlays] = WeakValueDictionary()


def _interned(laid: PolicyOverlays) -> PolicyOverlays:
    """The interned value: most destination ports have no policy of their own and get equal overlays."""
    try:
        text = _packed.encode((laid.overlays, laid.failures, laid.locality))
    except (TypeError, ValueError, OverflowError):  # the encoder will report what is wrong
        return laid
    return _known.setdefault(text, laid)


def _outbound_calls(
    db: Db, of: MergedConfs, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, words in of:
        hook = hooks.of(db, kind).outbound
        if hook:
            yield kind, partial(hook, msgspec.json.decode(words), where)


@question
def on_outbounds(db: Db, of: ProxyClass) -> ByKind:
    """The entries of policies about whole proxies that act on calls to others."""
    return tuple((kind, found) for kind, found in rules.whole_proxy(db, of) if hooks.of(db, kind).outbound)


@question
def is_per_service(db: Db, of: ProxyClass) -> bool:
    """Whether what proxies of a class call differs by the service that calls."""
    for kind, found in on_outbounds(db, of):
        asks = hooks.of(db, kind).per_service
        merged = conf(db, kind, found, of.mesh) if asks else None
        with contextlib.suppress(
            Exception
        ):  # the hook itself will fail on such a configuration, and be shown
            if asks and merged and asks(merged):
                return True
    return False


def of_both_ends(db: Db, entries: ByKind, where: OverlayContext) -> PolicyOverlays:
    """What these entries change at the calling end. What fails is shown at the other end, the inbound."""
    return _collect(_calls_of_both_ends(db, entries, where))


def _calls_of_both_ends(
    db: Db, entries: ByKind, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, found in entries:
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, partial(hook, conf(db, kind, found, where.mesh), (), where)


def whole(db: Db, of: ProxyClass, where: OverlayContext) -> PolicyOverlays:
    """What policies say about the proxy itself."""
    return _collect(_whole_calls(db, of, where))


def _whole_calls(
    db: Db, of: ProxyClass, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, found in rules.whole_proxy(db, of):
        hook = hooks.of(db, kind).whole
        merged = conf(db, kind, found, where.mesh) if hook else None
        if hook and merged:
            yield kind, partial(hook, merged, where)


def inbound_of(db: Db, seen: match.Traits, section: str, where: OverlayContext) -> PolicyOverlays:
    """What policies say about calls that arrive at one inbound."""
    found = _arriving(db, seen, section)
    return _collect((kind, partial(hook, merged, ruled, where)) for kind, hook, merged, ruled in found)


@question
def _arriving(db: Db, seen: match.Traits, section: str) -> tuple[_Arriving, ...]:
    """The hooks about calls that arrive at one inbound, with what they are told; one thing to read."""
    return tuple(hooks.in_order(db, _hooks_of_inbound(db, seen, section)))


def _hooks_of_inbound(db: Db, seen: match.Traits, section: str) -> Iterator[_Arriving]:
    for kind, found in inbound.of(db, seen, section):
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, hook, *inbound_arguments(db, kind, found)
    for kind, entries in on_inbounds(db, seen):
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, hook, conf(db, kind, entries, seen.mesh), ()


def on_inbounds(db: Db, seen: match.Traits) -> ByKind:
    """The entries of policies about whole proxies that act on calls that arrive."""
    acting = [(kind, chosen) for kind, chosen in rules.policies_of(db, seen) if hooks.of(db, kind).inbound]
    found = ((kind, rules.default_entries(db, chosen)) for kind, chosen in acting)
    return tuple((kind, entries) for kind, entries in found if entries)


def inbound_arguments(
    db: Db, kind: str, found: tuple[inbound.InboundRule, ...]
) -> tuple[Json, tuple[InboundEntry, ...]]:
    """What the hook about an inbound gets: the configuration for everybody, and all entries in order."""
    everybody = tuple(rule.entry for rule in found if rule.client == inbound.Client())
    ascending = sorted(found, key=lambda rule: order.key(items.rank(db, rule.entry)))
    merged = conf(db, kind, everybody, everybody[0].policy.mesh) if everybody else {}
    return merged, tuple(_ruled(db, kind, rule) for rule in ascending)


def conf(db: Db, kind: str, entries: Entries, mesh: str) -> Json:
    """What entries say together; an object that the hook wants to see stands beside the reference to it."""
    said, kinds = items.conf(db, entries), hooks.of(db, kind).looks_up
    return _with_objects(db, said, kinds, mesh) if kinds else said


def _with_objects(db: Db, said: Json, kinds: tuple[str, ...], mesh: str) -> Json:
    if isinstance(said, list | tuple):
        return [_with_objects(db, each, kinds, mesh) for each in said]
    if not isinstance(said, Mapping):
        return said
    made = {name: _with_objects(db, value, kinds, mesh) for name, value in said.items()}
    ref = made.get("backendRef")
    if isinstance(ref, Mapping) and ref.get("kind") in kinds:
        made["backendRef"] = {**ref, "spec": _spec(db, mesh, ref["kind"], pairs(ref.get("labels")))}
    return made


@question
def _spec(db: Db, mesh: str, kind: str, wanted: Pairs) -> Json:
    """What the object of a kind with these labels says; of several, the oldest."""
    keys = world.labelled(db, mesh, kind, wanted) if wanted else ()
    found = [resource for key in keys if (resource := world.RESOURCES.get(db, key)) is not None]
    return min(found, key=lambda each: (each.creation_time, each.key)).spec if found else None


def _ruled(db: Db, kind: str, rule: inbound.InboundRule) -> InboundEntry:
    return InboundEntry(
        conf=conf(db, kind, (rule.entry,), rule.entry.policy.mesh),
        origin=rule.entry.policy,
        kri=encoding.kri(db, rule.entry.policy, ""),
        path=rule.entry.path,
        tags=rule.client.tags,
        spiffe_id=rule.client.spiffe_id,
        sni=rule.client.sni,
    )


def _collect(calls: Iterator[tuple[str, Callable[[], Overlay]]]) -> PolicyOverlays:
    overlays, failures = [], []
    for kind, call in calls:
        try:
            made = checked(call())
            failures += [
                hooks.failure(kind, f"{at}: {text}") for at, text in made.get("problems", {}).items()
            ]
            overlays.append(made)
        except Exception as error:  # noqa: BLE001 - a policy of another package may raise anything
            failures.append(hooks.raised(kind, error))
    return PolicyOverlays(tuple(overlays), tuple(failures))


def checked(overlay: Overlay) -> Overlay:
    """An overlay, if it has the shape of one; what it says is for the encoder to check."""
    for name, part in overlay.items():
        for each in part if name == "callers" else (part,):
            if not isinstance(each, Mapping):
                raise TypeError(f'part "{name}" is no map')
    for caller in overlay.get("callers") or ():
        if not all(isinstance(caller.get(name), Mapping) for name in ("match", "route_action")):
            raise TypeError('part "callers" needs a map "match" and a map "route_action" in each entry')
    return overlay
