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
from koguma.envoy import filters
from koguma.envoy.snapshot import Failure
from koguma.model.nearest import nearest
from koguma.model.overlay import (
    INBOUND_PARTS,
    OUTBOUND_PARTS,
    WHOLE_PARTS,
    InboundEntry,
    Locality,
    Overlay,
    OverlayContext,
)
from koguma.model.schema import Json

# Filters with a configuration source of their own, apart from their listener.
_EXTENSIONS: Final = frozenset({filters.RBAC, filters.NETWORK_LOCAL_RATELIMIT})
_ALL_PARTS: Final = OUTBOUND_PARTS | INBOUND_PARTS | WHOLE_PARTS


class PolicyOverlays(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What policies change, by kind in the order of kinds, and what failed. Outbound ones are interned."""

    overlays: tuple[Overlay, ...] = ()
    failures: tuple[Failure, ...] = ()
    locality: Locality | None = None  # of a cluster: which of its endpoints are called first

    def part(self, name: str) -> list[Json]:
        """What all of them change in one part."""
        return [overlay[name] for overlay in self.overlays if name in overlay]


# The kind, its hook, the configuration for all callers, and all entries.
_InboundCall = tuple[str, Callable[..., Overlay], Json, tuple[InboundEntry, ...]]


MergedConfs = Group[tuple[str, bytes]]  # outbound configurations by kind, as JSON


@question
def merged_confs(db: Db, entries: ByKind, mesh: str) -> MergedConfs:
    """The merged outbound configurations of entries, by kind.

    Equal configurations are one value whichever policies they come from, so overlays are built once for them.
    """
    acting = [each for each in entries if _acts_on_calls(db, each[0])]
    confs = ((kind, conf(db, kind, each, mesh)) for kind, each in hooks.in_order(db, acting))
    return Group((kind, _json.encode(merged)) for kind, merged in confs if merged)


def _acts_on_calls(db: Db, kind: str) -> bool:
    hooks_of_kind = hooks.of(db, kind)
    return bool(hooks_of_kind.outbound or hooks_of_kind.locality)


_json = msgspec.json.Encoder(order="deterministic", enc_hook=str)


NOTHING: Final = PolicyOverlays()
_OF_CLUSTERS: Final = frozenset({"cluster", "http_options"})


class OutboundOverlays(NamedTuple):
    """What policies change for calls to one port: its listener and routes, and its cluster.

    The two are separate because most policies change one of them only, and the other is then shared.
    """

    listener: PolicyOverlays
    cluster: PolicyOverlays


@question
def outbound(db: Db, confs: MergedConfs, where: OverlayContext) -> OutboundOverlays:
    """What policies change for calls to one port, or for calls to it through one route."""
    policy_overlays = collected(_outbound_calls(db, confs, where), OUTBOUND_PARTS)
    cluster = _parts_of(policy_overlays, of_clusters=True)
    near = hooks.locality(db, ((kind, msgspec.json.decode(text)) for kind, text in confs))
    cluster = PolicyOverlays(cluster.overlays, (*cluster.failures, *near.failures), near.locality)
    return OutboundOverlays(interned(_parts_of(policy_overlays, of_clusters=False)), interned(cluster))


def _parts_of(policy_overlays: PolicyOverlays, *, of_clusters: bool) -> PolicyOverlays:
    parts = (
        {name: part for name, part in overlay.items() if (name in _OF_CLUSTERS) == of_clusters}
        for overlay in policy_overlays.overlays
    )
    return PolicyOverlays(tuple(each for each in parts if each), policy_overlays.failures)


_msgpack = msgspec.msgpack.Encoder()
_interned_overlays: WeakValueDictionary[bytes, PolicyOverlays] = WeakValueDictionary()


def interned(policy_overlays: PolicyOverlays) -> PolicyOverlays:
    """The interned value: most destination ports have no policy of their own and get equal overlays."""
    try:
        key = _msgpack.encode((policy_overlays.overlays, policy_overlays.failures, policy_overlays.locality))
    except (TypeError, ValueError, OverflowError):  # the encoder will report what is wrong
        return policy_overlays
    return _interned_overlays.setdefault(key, policy_overlays)


def _outbound_calls(
    db: Db, confs: MergedConfs, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, text in confs:
        hook = hooks.of(db, kind).outbound
        if hook:
            yield kind, partial(hook, msgspec.json.decode(text), where)


@question
def on_outbounds(db: Db, proxy_class: ProxyClass) -> ByKind:
    """The entries of policies about whole proxies that act on outbound traffic."""
    by_kind = rules.whole_proxy(db, proxy_class)
    return tuple((kind, entries) for kind, entries in by_kind if hooks.of(db, kind).outbound)


@question
def is_per_service(db: Db, proxy_class: ProxyClass) -> bool:
    """Whether the outbound part of proxies of a class depends on the calling service."""
    for kind, entries in on_outbounds(db, proxy_class):
        per_service = hooks.of(db, kind).per_service
        merged = conf(db, kind, entries, proxy_class.mesh) if per_service else None
        # The hook `outbound` will raise for the same configuration, and that is reported.
        with contextlib.suppress(Exception):
            if per_service and merged and per_service(merged):
                return True
    return False


def of_both_ends(db: Db, entries: ByKind, where: OverlayContext) -> PolicyOverlays:
    """What these entries change at the client. Failures are reported at the other end, the inbound."""
    return collected(_calls_of_both_ends(db, entries, where), INBOUND_PARTS)


def _calls_of_both_ends(
    db: Db, entries: ByKind, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, of_kind in entries:
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, partial(hook, conf(db, kind, of_kind, where.mesh), (), where)


def whole(db: Db, proxy_class: ProxyClass, where: OverlayContext) -> PolicyOverlays:
    """What policies change for the proxy as a whole."""
    return collected(_whole_calls(db, proxy_class, where), WHOLE_PARTS)


def _whole_calls(
    db: Db, proxy_class: ProxyClass, where: OverlayContext
) -> Iterator[tuple[str, Callable[[], Overlay]]]:
    for kind, entries in rules.whole_proxy(db, proxy_class):
        hook = hooks.of(db, kind).whole
        merged = conf(db, kind, entries, where.mesh) if hook else None
        if hook and merged:
            yield kind, partial(hook, merged, where)


def inbound_of(db: Db, traits: match.Traits, section: str, where: OverlayContext) -> PolicyOverlays:
    """What policies change for one inbound."""
    calls = (
        (kind, partial(hook, merged, inbound_entries, where))
        for kind, hook, merged, inbound_entries in _inbound_calls(db, traits, section)
    )
    return collected(calls, INBOUND_PARTS)


@question
def _inbound_calls(db: Db, traits: match.Traits, section: str) -> tuple[_InboundCall, ...]:
    """The inbound hooks of policies with their arguments; one answer to read for each inbound."""
    return tuple(hooks.in_order(db, _hooks_of_inbound(db, traits, section)))


def _hooks_of_inbound(db: Db, traits: match.Traits, section: str) -> Iterator[_InboundCall]:
    for kind, inbound_rules in inbound.of(db, traits, section):
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, hook, *inbound_arguments(db, kind, inbound_rules)
    for kind, entries in on_inbounds(db, traits):
        hook = hooks.of(db, kind).inbound
        if hook:
            yield kind, hook, conf(db, kind, entries, traits.mesh), ()


def is_permitted(
    db: Db, traits: match.Traits, section: str, where: OverlayContext, uris: tuple[str, ...], server_name: str
) -> bool:
    """Whether all policies about who may call let a caller call a server, where traits are of its proxy."""
    by_kind = dict(inbound.of(db, traits, section))
    for kind in match.policy_kinds(db):
        permits = hooks.of(db, kind).permits
        if permits is not None:
            _, entries = inbound_arguments(db, kind, by_kind.get(kind, ()))
            with contextlib.suppress(Exception):  # a hook that raises permits nothing
                if permits(entries, where, uris, server_name):
                    continue
            return False
    return True


def on_inbounds(db: Db, traits: match.Traits) -> ByKind:
    """The entries of policies about whole proxies that act on inbound traffic."""
    by_kind = (
        (kind, rules.default_entries(db, policies))
        for kind, policies in rules.policies_of(db, traits)
        if hooks.of(db, kind).inbound
    )
    return tuple((kind, entries) for kind, entries in by_kind if entries)


def inbound_arguments(
    db: Db, kind: str, inbound_rules: tuple[inbound.InboundRule, ...]
) -> tuple[Json, tuple[InboundEntry, ...]]:
    """The arguments of an inbound hook: the configuration for all callers, and all entries in order."""
    everybody = tuple(rule.entry for rule in inbound_rules if rule.client == inbound.Client())
    ascending = sorted(inbound_rules, key=lambda rule: order.key(items.rank(db, rule.entry)))
    merged = conf(db, kind, everybody, everybody[0].policy.mesh) if everybody else {}
    return merged, tuple(_inbound_entry(db, kind, rule) for rule in ascending)


def conf(db: Db, kind: str, entries: Entries, mesh: str) -> Json:
    """The merged configuration of entries, with the objects that a hook asks for beside their references."""
    merged, kinds = items.conf(db, entries), hooks.of(db, kind).looks_up
    return _with_objects(db, merged, kinds, mesh) if kinds else merged


def _with_objects(db: Db, value: Json, kinds: tuple[str, ...], mesh: str) -> Json:
    if isinstance(value, list | tuple):
        return [_with_objects(db, each, kinds, mesh) for each in value]
    if not isinstance(value, Mapping):
        return value
    resolved = {name: _with_objects(db, each, kinds, mesh) for name, each in value.items()}
    ref = resolved.get("backendRef")
    if isinstance(ref, Mapping) and ref.get("kind") in kinds:
        resolved["backendRef"] = {**ref, "spec": _spec(db, mesh, ref["kind"], pairs(ref.get("labels")))}
    return resolved


@question
def _spec(db: Db, mesh: str, kind: str, labels: Pairs) -> Json:
    """The spec of the object of a kind with these labels; of several, of the oldest."""
    keys = world.labelled(db, mesh, kind, labels) if labels else ()
    resources = [resource for key in keys if (resource := world.RESOURCES.get(db, key)) is not None]
    return min(resources, key=lambda each: (each.creation_time, each.key)).spec if resources else None


def _inbound_entry(db: Db, kind: str, rule: inbound.InboundRule) -> InboundEntry:
    return InboundEntry(
        conf=conf(db, kind, (rule.entry,), rule.entry.policy.mesh),
        origin=rule.entry.policy,
        kri=encoding.kri(db, rule.entry.policy, ""),
        path=rule.entry.path,
        tags=rule.client.tags,
        spiffe_id=rule.client.spiffe_id,
        sni=rule.client.sni,
    )


def collected(calls: Iterator[tuple[str, Callable[[], Overlay]]], parts: frozenset[str]) -> PolicyOverlays:
    """The overlays that hooks return, and what failed."""
    overlays, failures = [], []
    for kind, call in calls:
        try:
            overlay = checked(call(), parts)
            failures += [
                hooks.failure(kind, f"{at}: {text}") for at, text in overlay.get("problems", {}).items()
            ]
            overlays.append(overlay)
        except Exception as error:  # noqa: BLE001 - a policy of another package may raise anything
            failures.append(hooks.raised(kind, error))
    return PolicyOverlays(tuple(overlays), tuple(failures))


def checked(overlay: Overlay, parts: frozenset[str] = _ALL_PARTS) -> Overlay:
    """An overlay of the right structure; raises TypeError otherwise. The encoder checks its content."""
    for name, part in overlay.items():
        if name not in parts:
            near = nearest(name, parts)
            hint = f'; did you mean "{near}"?' if near else f"; this hook has {', '.join(sorted(parts))}"
            raise TypeError(f'"{name}" is no part of an overlay here{hint}')
        for each in part if name == "callers" else (part,):
            if not isinstance(each, Mapping):
                raise TypeError(f'part "{name}" is no map')
    for name in overlay.get("extensions") or ():
        if name not in _EXTENSIONS:
            text = f'part "extensions" has no "{name}"; it may have {", ".join(sorted(_EXTENSIONS))}'
            raise TypeError(text)
    for caller in overlay.get("callers") or ():
        if not all(isinstance(caller.get(name), Mapping) for name in ("match", "route_action")):
            raise TypeError('part "callers" needs a map "match" and a map "route_action" in each entry')
    return overlay
