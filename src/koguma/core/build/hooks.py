"""Hooks: which policies have which, and what those say that no overlay can.

The build names no policy. It asks the records of all kinds, of built-in policies and of other packages alike,
for the hooks that `model/overlay.py` describes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from koguma.core import items, match, order, selectors, world
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries, ItemId
from koguma.core.policy_set import Policies
from koguma.core.rules import ProxyClass
from koguma.envoy.snapshot import POLICY, Failure
from koguma.model.overlay import Locality, PolicyHooks
from koguma.model.schema import Json

T = TypeVar("T", bound=tuple[Any, ...])


@question
def _all_hooks(db: Db) -> Mapping[str, PolicyHooks]:
    """The hooks of all kinds, as one thing to read: kinds change only when a control plane starts."""
    return {name: kind.policy.hooks for name, kind in world.KINDS.items(db) if kind.policy}


def of(db: Db, kind: str) -> PolicyHooks:
    """The hooks of a kind."""
    return _all_hooks(db).get(kind) or PolicyHooks()


@question
def _places(db: Db) -> Mapping[str, int]:
    return {kind: number for number, kind in enumerate(match.policy_kinds(db))}


def in_order(db: Db, by_kind: Iterable[T]) -> list[T]:
    """Tuples that begin with a kind, in the order of phases."""
    places = _places(db)
    return sorted(by_kind, key=lambda each: places[each[0]])


def raised(kind: str, error: Exception) -> Failure:
    """What is shown where a hook of a kind raises."""
    return failure(kind, f"{kind} cannot say what it means for Envoy: {type(error).__name__}: {error}")


def failure(kind: str, text: str) -> Failure:
    """What is shown where a kind cannot do what a policy asks for."""
    return Failure(POLICY, kind, text, kind)


@question
def modifications(db: Db) -> Mapping[str, str]:
    """The kinds whose policies change the finished configuration, and the field that lists the changes."""
    return {kind: hooks.modifications for kind, hooks in _all_hooks(db).items() if hooks.modifications}


class NearEndpoints(NamedTuple):
    """Which endpoints are called first, and what failed."""

    locality: Locality | None = None
    failures: tuple[Failure, ...] = ()


def locality(db: Db, confs: Iterable[tuple[str, Json]]) -> NearEndpoints:
    """What configurations, by kind, say about near endpoints; of several kinds the last one decides."""
    found, failures = None, []
    for kind, conf in confs:
        hook = of(db, kind).locality
        if hook is None:
            continue
        try:
            found = hook(conf) or found
        except Exception as error:  # noqa: BLE001 - a policy of another package may raise anything
            failures.append(raised(kind, error))
    return NearEndpoints(found, tuple(failures))


def on_endpoints(db: Db, entries: ByKind) -> ByKind:
    """Those entries that say which endpoints are near."""
    return tuple((kind, found) for kind, found in entries if of(db, kind).locality)


@question
def affinity_keys(db: Db, proxy_class: ProxyClass) -> frozenset[str]:
    """The tags by which some policy of a class finds near endpoints."""
    found: set[str] = set()
    for kind, policies in proxy_class.policies:
        for policy in policies if of(db, kind).locality else ():
            for entry in items.clean_spec(db, policy).get("to") or ():
                near = locality(db, ((kind, entry.get("default") or {}),)).locality
                found |= {tag.key for tag in near.affinity_tags} if near else set()
    return frozenset(found)


@question
def both_ends(db: Db, proxy_class: ProxyClass) -> ByKind:
    """The entries that both ends of a connection agree on: those of policies that select the whole mesh."""
    kinds = ((kind, policies) for kind, policies in proxy_class.policies if of(db, kind).both_ends)
    found = ((kind, _of_whole_mesh(db, policies)) for kind, policies in kinds)
    return tuple((kind, entries) for kind, entries in found if entries)


def _of_whole_mesh(db: Db, policies: Policies) -> Entries:
    found = []
    for policy in policies:
        selector = selectors.selector(db, policy)
        if selector is not None and selector.top_kind == "Mesh":
            spec = items.clean_spec(db, policy)
            for name in ("from", "rules"):
                found += [ItemId(policy, name, index) for index, _ in enumerate(spec.get(name) or ())]
    return tuple(sorted(found, key=lambda entry: order.key(items.rank(db, entry))))
