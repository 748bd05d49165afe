"""Patches: what policies such as MeshProxyPatch change in the finished configuration, as the last step.

A class without patches asks nothing here. Others ask by bundle, so that proxies that share a bundle share its
patched form, and within that by resource, so that a changed endpoint patches no listener again.
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
from koguma.envoy.patch_modifications import PatchProgram, PolicyModification
from koguma.envoy.snapshot import Bundle, Id, XdsResource
from koguma.model.kind import Kind
from koguma.model.schema import Json
from koguma.model.violation import child, item

# The origins of bundles, and of their resources (Kuma's word), unless the name of a resource says another.
OUTBOUND: Final = "outbound"
INBOUND: Final = "inbound"
INTERNAL: Final = "internal"
GATEWAY: Final = "gateway"
GATEWAY_CALLS: Final = "gateway calls"  # routes and clusters of a gateway, apart from its listeners

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

Bundles = Iterable[tuple[str, Bundle]]  # each with its origin


def origin_of(origin: str, id_: Id) -> str:
    """The origin of a resource, by which modifications match it; `origin` is that of its bundle."""
    name = id_[1]
    if not name.startswith(_STARTS):
        return GATEWAY if origin == GATEWAY_CALLS else origin
    return next(own for start, own in _ORIGINS.items() if name.startswith(start))


def entries(db: Db, proxy_class: ProxyClass) -> Entries:
    """The patch entries of a class, in ascending precedence."""
    lists = hooks.modifications(db)
    return tuple(
        entry
        for kind, chosen in proxy_class.policies
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
def modifications(db: Db, patch_entries: Entries) -> tuple[PolicyModification, ...]:
    """The modifications of all entries, in order, each with its policy and path."""
    return tuple(each for entry in patch_entries for each in _modifications(db, entry))


def _modifications(db: Db, entry: ItemId) -> Iterator[PolicyModification]:
    one = items.item(db, entry)
    policy = encoding.kri(db, entry.policy, "") or str(entry.policy)
    field = hooks.modifications(db)[entry.policy.kind]
    for number, conf in enumerate(one.conf.get(field) or ()):
        # A stored modification that cannot be read becomes an empty one: a failure that stops no other.
        readable = conf if _is_readable(world.kind_of(db, entry.policy.kind), field, conf) else {}
        yield PolicyModification(readable, policy, item(child(one.path, field), number))


def _is_readable(kind: Kind, field: str, conf: Json) -> bool:
    try:
        kind.read({"default": {field: [conf]}})
    except msgspec.ValidationError:
        return False
    return True


@question
def program(db: Db, patch_entries: Entries) -> PatchProgram:
    """The modifications parsed with Envoy's schema; what cannot be parsed is a failure."""
    return _patcher(db).program(modifications(db, patch_entries))


@question
def _outcome(db: Db, patch_entries: Entries, n_before: int, resource: XdsResource, origin: str) -> Outcome:
    """A resource after all changes but the first so many."""
    return _patcher(db).outcome(program(db, patch_entries).modifications[n_before:], resource, origin)


@question
def _patched(db: Db, patch_entries: Entries, bundle: Bundle, origin: str) -> Patched:
    return patch.over(
        program(db, patch_entries),
        bundle.resources,
        partial(origin_of, origin),
        partial(_outcome, db, patch_entries),
        is_home=origin in (OUTBOUND, GATEWAY_CALLS),
    )


@question
def applied(db: Db, patch_entries: Entries, bundle: Bundle, origin: str) -> Bundle:
    """A bundle with patches applied; the very same one where they change nothing in it."""
    patched = _patched(db, patch_entries, bundle, origin)
    if not (patched.policies or patched.failures):
        return bundle
    return Bundle(patched.resources, (*bundle.failures, *patched.failures))


def touching(db: Db, patch_entries: Entries, bundle: Bundle, origin: str) -> Mapping[Id, tuple[str, ...]]:
    """The policies (by KRI) that changed, added or removed a resource of a bundle, by resource."""
    return _patched(db, patch_entries, bundle, origin).policies


def over(db: Db, proxy_class: ProxyClass, bundles: Bundles) -> tuple[Bundle, ...]:
    """What the proxies of a class get, with their patches applied."""
    patch_entries = entries(db, proxy_class)
    if not patch_entries:
        return tuple(bundle for _, bundle in bundles)
    return tuple(applied(db, patch_entries, bundle, origin) for origin, bundle in bundles)


def touching_any(db: Db, proxy_class: ProxyClass, bundles: Bundles) -> Mapping[Id, tuple[str, ...]]:
    """The same for all that the proxies of a class get."""
    policies: dict[Id, tuple[str, ...]] = {}
    patch_entries = entries(db, proxy_class)
    for origin, bundle in bundles if patch_entries else ():
        for id_, each in touching(db, patch_entries, bundle, origin).items():
            policies.setdefault(id_, each)  # an added resource belongs to the first bundle
    return policies
