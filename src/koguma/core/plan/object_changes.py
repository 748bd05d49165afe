"""Object changes: what a plan says about each object of the change, and how many proxies it reaches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.core import admission, world
from koguma.core.incremental import Db
from koguma.core.plan.effects import EffectReasons
from koguma.core.plan.model import LeafChange, ObjectChange, ProxyGroup, leaves
from koguma.core.plan.reader import PlanReader
from koguma.model import derived, labels
from koguma.model.kind import Kind
from koguma.model.redacted import SHOWN
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

_KUBECTL: Final = "kubectl.kubernetes.io/"  # prefix of its annotations, one of which may hold secrets
_CORRECTED: Final = "it is generated: the control plane writes it again as it must be"
_CREATED, _CONFIGURED, _DELETED, _UNCHANGED = "created", "configured", "deleted", "unchanged"


class ObjectSides(NamedTuple):
    """A stored object before and after the change."""

    key: Key
    before: Resource | None
    after: Resource | None
    is_corrected: bool = False  # by the control plane, which does not leave it as the change wants it


def described(
    db: Db,
    objects: Iterable[ObjectSides],
    requested: frozenset[Key],
    groups: Sequence[ProxyGroup],
    reader: PlanReader,
) -> tuple[ObjectChange, ...]:
    """Every object of a change, which the database has.

    Those that nobody requested, since the control plane writes them, are left out where they stay equal.
    """
    reached, reasons = _reached(groups), EffectReasons(db, reader.visible)
    found = []
    for sides in objects:
        each = _described(db, sides, requested, reached, reader)
        if each.proxies == 0 and reader.has_reasons:
            each = msgspec.structs.replace(each, why=reasons.of(sides.key))
        if not (each.is_generated and each.action == _UNCHANGED):
            found.append(each)
    return tuple(found)


def _reached(groups: Iterable[ProxyGroup]) -> Counter[str]:
    """How many proxies get, or lose, a value of each object, by KRI."""
    reached: Counter[str] = Counter()
    for group in groups:
        places = (place for value in group.values for place in (value.set_by, value.was_set_by))
        for kri in {place.kri for place in places if place is not None}:
            reached[kri] += group.total
    return reached


def _described(
    db: Db,
    sides: ObjectSides,
    requested: frozenset[Key],
    reached: Counter[str],
    reader: PlanReader,
) -> ObjectChange:
    key, kind = sides.key, world.KINDS.get(db, sides.key.kind)
    shown = sides.after or sides.before
    fields = tuple(_fields(sides, kind))
    action = _action(sides, fields)
    short = kind.short if kind is not None else ""
    identifier = derived.identifier(key, short, "") if short else None
    kri = str(identifier) if identifier else ""
    is_policy = kind is not None and kind.policy is not None
    count = reached[kri] if is_policy and action != _UNCHANGED else None
    is_untold = kind is not None and kind.policy is not None and kind.policy.rules_are_routes
    return ObjectChange(
        type=key.kind,
        name=reader.name_of(shown) if shown is not None else key.name,
        action=action,
        mesh=key.mesh,
        kri=kri,
        is_generated=key not in requested,
        fields=fields,
        proxies=None if is_untold and not count else count,
        why=_CORRECTED if sides.is_corrected else "",
    )


def _action(sides: ObjectSides, fields: Sequence[LeafChange]) -> str:
    if sides.before is None:
        return _CREATED
    if sides.after is None:
        return _DELETED
    return _CONFIGURED if fields else _UNCHANGED


def _fields(sides: ObjectSides, kind: Kind | None) -> Iterator[LeafChange]:
    """The fields of an object that differ; values that are secret are hidden."""
    if sides.before is None or sides.after is None:
        return
    before, after = (_content(each) for each in (sides.before, sides.after))
    if kind is not None and kind.admin_only:
        if before != after:
            yield LeafChange("data", SHOWN, SHOWN)
        return
    for leaf in leaves(_masked(before, kind), _masked(after, kind)):
        path = leaf.path.removeprefix("spec.") if kind is not None and kind.inline else leaf.path
        yield LeafChange(path, leaf.before, leaf.after)
    if before != after and _masked(before, kind) == _masked(after, kind):
        yield LeafChange("spec", SHOWN, SHOWN)


def _content(resource: Resource) -> dict[str, Json]:
    """What of an object users write; annotations that copy it, or that the control plane keeps, left out."""
    annotations = {
        name: text
        for name, text in resource.annotations.items()
        if name != labels.SECRET_READERS and not name.startswith(_KUBECTL)
    }
    return {"labels": dict(resource.labels), "annotations": annotations, "spec": resource.spec}


def _masked(document: Json, kind: Kind | None) -> Json:
    if kind is None:
        return document
    return {**document, "spec": admission.masked(document["spec"], kind)}
