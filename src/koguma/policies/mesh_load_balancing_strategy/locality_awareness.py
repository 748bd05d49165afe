"""Locality awareness: near endpoints first, and which zones take over when the client's own fails."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from koguma.model.overlay import AffinityTag, Failover, Locality
from koguma.model.schema import IntOrString, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields


class LocalityAffinityTag(Spec):
    """A tag that near endpoints share with the client."""

    key: Annotated[str, doc("The tag's name.")]
    weight: Annotated[
        fields.Count | None, doc("Its share of the traffic; on all tags or on none, where order decides.")
    ] = None


class LocalZone(Spec):
    """Order among the endpoints of the client's zone."""

    affinity_tags: Annotated[tuple[LocalityAffinityTag, ...], doc("Tags, the nearest first.")] = ()


class LocalityFromZones(Spec):
    """The zones whose clients a failover is for."""

    zones: Annotated[tuple[str, ...], doc("Names of zones.")]


class LocalityToZones(Spec):
    """The zones that take over."""

    type: Annotated[
        Literal["None", "Only", "Any", "AnyExcept"],
        doc("No zone, the named ones, all, or all but the named."),
    ]
    zones: Annotated[tuple[str, ...] | None, doc("Names of zones, for Only and AnyExcept.")] = None


class LocalityFailover(Spec):
    """One step of the way out of a zone that fails."""

    to: Annotated[LocalityToZones, doc("Which zones take over.")]
    from_: Annotated[LocalityFromZones | None, doc("Whose clients; those of every zone by default.")] = (
        msgspec.field(name="from", default=None)
    )


class LocalityFailoverThreshold(Spec):
    """When the next step is taken."""

    percentage: Annotated[IntOrString, doc("Share of live endpoints below which it is taken; 50 by default.")]


class LocalityCrossZone(Spec):
    """What happens when the client's zone fails."""

    failover: Annotated[tuple[LocalityFailover, ...], doc("Steps, in order.")] = ()
    failover_threshold: Annotated[LocalityFailoverThreshold | None, doc("When the next step is taken.")] = (
        None
    )


class LocalityAwareness(Spec):
    """Preference for what is near."""

    disabled: Annotated[bool | None, doc("All endpoints are equal, wherever they are.")] = None
    local_zone: Annotated[LocalZone | None, doc("Order inside the client's zone.")] = None
    cross_zone: Annotated[LocalityCrossZone | None, doc("What happens when that zone fails.")] = None


def violations(locality: LocalityAwareness, ref: TargetRef, path: str) -> Iterator[Violation]:
    """What is wrong with it, for the destination `ref`."""
    if locality.local_zone is not None:
        yield from _affinity(locality.local_zone, child(path, "localZone"))
    if locality.cross_zone is not None:
        yield from _cross_zone(locality.cross_zone, ref, child(path, "crossZone"))


def _affinity(zone: LocalZone, path: str) -> Iterator[Violation]:
    at = child(path, "affinityTags")
    for index, tag in enumerate(zone.affinity_tags):
        if not tag.key:
            yield Violation(child(item(at, index), "key"), fields.MUST_NOT_BE_EMPTY, "required")
        yield from fields.positive(tag.weight, child(item(at, index), "weight"))
    if len({tag.weight is None for tag in zone.affinity_tags}) > 1:
        yield Violation(at, "all or none affinity tags should have weight", "exclusive")


def _cross_zone(cross: LocalityCrossZone, ref: TargetRef, path: str) -> Iterator[Violation]:
    # By name alone it may be the older service of all zones; a section or labels name a MeshService.
    if ref.kind == "MeshService" and (ref.section_name or ref.labels):
        yield Violation(path, "must not be set: MeshService traffic is local", "forbidden")
    for index, failover in enumerate(cross.failover):
        yield from _failover(failover, item(child(path, "failover"), index))
    if cross.failover_threshold is not None:
        at = f"{path}.failoverThreshold.percentage"
        percentage = cross.failover_threshold.percentage
        yield from fields.percent(percentage, at)
        if fields.number(percentage) == 0:
            yield Violation(at, "must be greater than 0", "range")


def _failover(failover: LocalityFailover, path: str) -> Iterator[Violation]:
    if failover.from_ is not None:
        at = f"{path}.from.zones"
        if not failover.from_.zones:
            yield Violation(at, fields.MUST_NOT_BE_EMPTY, "required")
        for index, zone in enumerate(failover.from_.zones):
            if not zone:
                yield Violation(item(at, index), fields.MUST_NOT_BE_EMPTY, "required")
    to = failover.to
    if to.type in ("Any", "None") and to.zones:
        yield Violation(f"{path}.to.zones", f"must be empty when type is {to.type}", "forbidden")
    if to.type in ("Only", "AnyExcept") and not to.zones:
        yield Violation(f"{path}.to.zones", f"must not be empty when type is {to.type}", "required")


_OVERPROVISIONING_DEFAULT: Final = 200
_HUNDRED: Final = 100


def locality(conf: Json) -> Locality | None:
    """The configuration in the build's words; None where there is none."""
    if not conf:
        return None
    tags = (conf.get("localZone") or {}).get("affinityTags") or ()
    cross = conf.get("crossZone") or {}
    return Locality(
        is_disabled=bool(conf.get("disabled")),
        affinity_tags=tuple(AffinityTag(tag.get("key") or "", tag.get("weight") or 0) for tag in tags),
        failovers=tuple(_failover_step(failover) for failover in cross.get("failover") or ()),
        overprovisioning_factor=_overprovisioning_factor(cross.get("failoverThreshold") or {}),
    )


def _failover_step(failover: Json) -> Failover:
    to = failover.get("to") or {}
    from_zones = (failover.get("from") or {}).get("zones") or ()
    return Failover(to.get("type") or "", tuple(to.get("zones") or ()), tuple(from_zones))


def _overprovisioning_factor(threshold: Json) -> int:
    """Envoy calls the next priority when live endpoints times this factor fall below 100 %."""
    percentage = threshold.get("percentage")
    if percentage is None:
        return _OVERPROVISIONING_DEFAULT
    try:
        return round(_HUNDRED * _HUNDRED / float(percentage))
    except (ValueError, ZeroDivisionError, OverflowError):  # stored by a version that did not check it
        return _OVERPROVISIONING_DEFAULT
