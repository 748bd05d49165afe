"""Patches: what policies such as MeshProxyPatch change in the finished configuration, as the last step.

A class without patches asks nothing here. Others ask by bundle, so that proxies that share one share what
becomes of it, and within that by piece, so that a changed endpoint patches no listener again.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from koguma.core import items, rules, world
from koguma.core.build import encoding, hooks
from koguma.core.incremental import Db, question
from koguma.core.items import Entries, ItemId
from koguma.core.rules import ProxyClass
from koguma.envoy import names, patch
from koguma.envoy.patch import Outcome, Patched, Patcher
from koguma.envoy.patch_change import Modification, Program
from koguma.envoy.snapshot import Bundle, Id, XdsResource
from koguma.model.kind import Kind
from koguma.model.schema import Json
from koguma.model.violation import child, item

# What each bundle of a proxy is for; it is the origin of what is in there, unless a name says another.
OUTBOUND: Final = "outbound"
INBOUND: Final = "inbound"
INTERNAL: Final = "internal"

# The origins of internals, in Kuma's words, by how their names begin.
_ORIGINS: Final[Mapping[str, str]] = {
    "_kuma_passthrough_": "transparent",
    "meshpassthrough_": "transparent",
    names.ADMIN: "admin",
    names.READINESS: "admin",
    names.DNS: "dns",
    names.DYNAMIC_CONFIG: "dynamicconfig",
    names.METRICS: "prometheus",
}
_STARTS: Final = tuple(_ORIGINS)

Bundles = Iterable[tuple[str, Bundle]]  # with what each is for


def origin_of(which: str, id_: Id) -> str:
    """The origin of a piece, by which patches find it."""
    name = id_[1]
    if not name.startswith(_STARTS):
        return which
    return next(origin for start, origin in _ORIGINS.items() if name.startswith(start))


def entries(db: Db, mine: ProxyClass) -> Entries:
    """The patches of a class, the least important first."""
    lists = hooks.modifications(db)
    return tuple(
        entry
        for kind, chosen in mine.policies
        if kind in lists
        for entry in rules.default_entries(db, chosen)
    )


@question
def _patcher(db: Db) -> Patcher:
    encoder = encoding.ENCODER.get(db, "envoy")
    if encoder is None:
        raise LookupError("no Envoy schema is loaded")
    return Patcher(encoder)


@question
def modifications(db: Db, found: Entries) -> tuple[Modification, ...]:
    """What patches change, in order: their lists put together, each entry with its own policy and place."""
    return tuple(each for entry in found for each in _modifications(db, entry))


def _modifications(db: Db, entry: ItemId) -> Iterator[Modification]:
    one = items.item(db, entry)
    policy = encoding.kri(db, entry.policy, "") or str(entry.policy)
    field = hooks.modifications(db)[entry.policy.kind]
    for number, conf in enumerate(one.conf.get(field) or ()):
        # What is stored and cannot be read becomes an empty one, which is a failure and keeps no other back.
        known = conf if _is_readable(world.kind_of(db, entry.policy.kind), field, conf) else {}
        yield Modification(known, policy, item(child(one.path, field), number))


def _is_readable(kind: Kind, field: str, conf: Json) -> bool:
    try:
        kind.read({"default": {field: [conf]}})
    except msgspec.ValidationError:
        return False
    return True


@question
def program(db: Db, found: Entries) -> Program:
    """The same, read with Envoy's own schema; what cannot be read is a failure."""
    return _patcher(db).program(modifications(db, found))


@question
def _outcome(db: Db, found: Entries, n_before: int, piece: XdsResource, origin: str) -> Outcome:
    """What becomes of a piece by all changes but the first so many."""
    return _patcher(db).outcome(program(db, found).changes[n_before:], piece, origin)


@question
def _patched(db: Db, found: Entries, bundle: Bundle, which: str) -> Patched:
    return patch.over(
        program(db, found),
        bundle.resources,
        partial(origin_of, which),
        partial(_outcome, db, found),
        is_home=which == OUTBOUND,
    )


@question
def applied(db: Db, found: Entries, bundle: Bundle, which: str) -> Bundle:
    """A bundle with patches applied; the very same one where they change nothing in it."""
    made = _patched(db, found, bundle, which)
    if not (made.policies or made.failures):
        return bundle
    return Bundle(made.resources, (*bundle.failures, *made.failures))


def touching(db: Db, found: Entries, bundle: Bundle, which: str) -> Mapping[Id, tuple[str, ...]]:
    """The policies (by KRI) that changed, added or removed a piece of a bundle, by piece."""
    return _patched(db, found, bundle, which).policies


def over(db: Db, mine: ProxyClass, bundles: Bundles) -> tuple[Bundle, ...]:
    """What the proxies of a class get, with their patches applied."""
    found = entries(db, mine)
    if not found:
        return tuple(bundle for _, bundle in bundles)
    return tuple(applied(db, found, bundle, which) for which, bundle in bundles)


def touching_any(db: Db, mine: ProxyClass, bundles: Bundles) -> Mapping[Id, tuple[str, ...]]:
    """The same for all that the proxies of a class get."""
    policies: dict[Id, tuple[str, ...]] = {}
    found = entries(db, mine)
    for which, bundle in bundles if found else ():
        for id_, each in touching(db, found, bundle, which).items():
            policies.setdefault(id_, each)  # an added piece is known best where it is at home, which is first
    return policies
