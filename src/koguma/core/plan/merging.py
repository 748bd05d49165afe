"""Merging: the plans of several zones for one change as one plan, as Global shows it.

Global describes the objects of the change, by the names that they have there. Zones say what becomes of their
proxies. That an object is without effect, and problems that say so, count where every zone says so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core.plan import effects
from koguma.core.plan.envoy_changes import CHANGED
from koguma.core.plan.model import (
    ObjectChange,
    Plan,
    PlannedProblem,
    ProxyGroup,
    Risk,
    UnknownZone,
)

_NO_ZONE: Final = "no zone gets it"
_NO_READABLE: Final = "it selects none of the proxies that you may read"

Plans = Mapping[str, Plan]  # by zone


def merged(own: Plan, plans: Plans, unknown: Sequence[UnknownZone], unasked: int = 0) -> Plan:
    """One plan of Global's own and those of zones; `unasked` proxies are of zones that get nothing."""
    every = tuple(plans.values())
    new, gone = _told([plan.new_problems for plan in every]), _told([plan.gone_problems for plan in every])
    new_by_zone, gone_by_zone = dict(zip(plans, new, strict=True)), dict(zip(plans, gone, strict=True))
    return Plan(
        total=own.total + unasked + sum(plan.total for plan in every),
        changed=own.changed + sum(plan.changed for plan in every),
        groups=_groups(own, plans),
        objects=tuple(_objects(own, plans, has_unknown=bool(unknown))),
        risks=_risks(own, plans, new_by_zone),
        new_problems=_problems(own.new_problems, new_by_zone),
        gone_problems=_problems(own.gone_problems, gone_by_zone),
        is_partial=own.is_partial or any(plan.is_partial for plan in every),
        bytes_before=own.bytes_before + sum(plan.bytes_before for plan in every),
        bytes_after=own.bytes_after + sum(plan.bytes_after for plan in every),
        unknown_zones=tuple(sorted(unknown)),
    )


# Proxies.


def _groups(own: Plan, plans: Plans) -> tuple[ProxyGroup, ...]:
    """The groups of all zones; those of several zones for which the same changes are one."""
    alike: dict[object, list[ProxyGroup]] = {}
    for zone, plan in plans.items():
        seen: Counter[bytes] = Counter()
        for group in plan.groups:
            words = _words(group)
            has_words = bool(group.ports or group.callers or group.values or group.endpoints)
            # Groups of one zone differ in something, even where words and names of resources are the same.
            name = words, seen[words], "" if has_words or group.action != CHANGED else zone
            alike.setdefault(name, []).append(_in_zone(group, zone))
            seen[words] += 1
    groups = (*own.groups, *map(_joined, alike.values()))
    return tuple(sorted(groups, key=lambda group: (-group.total, group.proxies)))


def _words(group: ProxyGroup) -> bytes:
    """What changes for a group, as something to compare; a proxy's own name counts as the same."""
    own = group.proxies[0].name if group.proxies else ""
    resources = tuple(
        msgspec.structs.replace(each, name=each.name.replace(own, "")) for each in group.resources
    )
    bare = msgspec.structs.replace(
        group, total=0, proxies=(), resources=resources, bytes_before=0, bytes_after=0
    )
    return msgspec.json.encode(bare, order="deterministic")


def _in_zone(group: ProxyGroup, zone: str) -> ProxyGroup:
    proxies = tuple(msgspec.structs.replace(each, zone=zone) for each in group.proxies)
    return msgspec.structs.replace(group, proxies=proxies)


def _joined(groups: Sequence[ProxyGroup]) -> ProxyGroup:
    """Groups as one: Envoy's resources stay those of its first proxy."""
    ordered = sorted(groups, key=lambda group: group.proxies)
    proxies = tuple(sorted(each for group in ordered for each in group.proxies))
    return msgspec.structs.replace(ordered[0], total=sum(each.total for each in ordered), proxies=proxies)


# Objects.


def _objects(own: Plan, plans: Plans, *, has_unknown: bool) -> Iterator[ObjectChange]:
    known = {each.kri for each in own.objects if each.kri}
    said: dict[str, dict[str, ObjectChange]] = {}
    for zone, plan in plans.items():
        for each in plan.objects:
            if each.kri in known:
                said.setdefault(each.kri, {})[zone] = each
    unsaid = _NO_READABLE if own.is_partial else _NO_ZONE
    for each in own.objects:
        found = _with_effect(each, said.get(each.kri, {}), has_unknown=has_unknown)
        yield msgspec.structs.replace(found, why=unsaid) if found.proxies == 0 and not found.why else found
    for zone, plan in plans.items():
        for each in plan.objects:
            if each.is_generated and each.kri not in known:
                yield msgspec.structs.replace(each, zone=zone)


def _with_effect(own: ObjectChange, said: Mapping[str, ObjectChange], *, has_unknown: bool) -> ObjectChange:
    """An object with how many proxies get something from it in all zones, or why none does."""
    counts = [each.proxies for each in said.values() if each.proxies is not None]
    if sum(counts):
        return msgspec.structs.replace(own, proxies=sum(counts), why="")
    if has_unknown or (said and not counts) or own.proxies is None:
        return msgspec.structs.replace(own, proxies=None, why="")
    reasons = {zone: each.why for zone, each in said.items() if each.why}
    if len(set(reasons.values())) > 1:
        why = "; ".join(f"in zone {zone}: {reason}" for zone, reason in reasons.items())
    else:
        why = next(iter(reasons.values()), "")
    return msgspec.structs.replace(own, proxies=0, why=why)


# Problems and risks.


def _told(by_zone: Sequence[Iterable[PlannedProblem]]) -> list[frozenset[PlannedProblem]]:
    """The problems of each zone that count: that an object is without effect only where all say so."""
    found = [frozenset(problems) for problems in by_zone]
    everywhere = frozenset.intersection(*found) if found else frozenset()
    return [
        frozenset(each for each in problems if each.code not in effects.REASONS or each in everywhere)
        for problems in found
    ]


def _problems(
    own: Sequence[PlannedProblem], told: Mapping[str, frozenset[PlannedProblem]]
) -> tuple[PlannedProblem, ...]:
    """Global's own, and those of zones; one that all zones have is one problem."""
    everywhere = frozenset.intersection(*told.values()) if told else frozenset()
    found = {*own, *everywhere}
    found |= {
        msgspec.structs.replace(each, zone=zone)
        for zone, problems in told.items()
        for each in problems
        if each not in found
    }
    return tuple(sorted(found))


def _risks(own: Plan, plans: Plans, told: Mapping[str, frozenset[PlannedProblem]]) -> tuple[Risk, ...]:
    found = set(own.risks)
    for zone, plan in plans.items():
        untold = {f"{each.message} ({each.code})" for each in plan.new_problems if each not in told[zone]}
        for risk in plan.risks:
            if risk not in own.risks and risk.message not in untold:
                found.add(msgspec.structs.replace(risk, zone=zone))
    return tuple(sorted(found))
