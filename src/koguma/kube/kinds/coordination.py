"""Leases: who does something that only one may do, and until when."""

from collections.abc import Iterator
from typing import Annotated, Final

from koguma.kube import field_errors, times
from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Int32, Time
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

_STRATEGIES: Final = ("OldestEmulationVersion",)


class LeaseSpec(Spec):
    """Who holds it."""

    holder_identity: Annotated[str | None, doc("Who holds it.")] = None
    lease_duration_seconds: Annotated[
        Int32 | None, doc("How long others wait after renewTime before they take it.")
    ] = None
    acquire_time: Annotated[Time | None, doc("When the holder took it, to the microsecond.")] = None
    renew_time: Annotated[Time | None, doc("When the holder last renewed it, to the microsecond.")] = None
    lease_transitions: Annotated[Int32 | None, doc("How often it went from one holder to another.")] = None
    strategy: Annotated[str | None, doc("How a holder is chosen, where candidates do not race.")] = None
    preferred_holder: Annotated[
        str | None, doc("Whom the holder should give it to; only with a strategy.")
    ] = None


def clean(spec: Json) -> Json:
    """Times with six digits, which is what clients can read."""
    read = parts.changed(spec, {"acquireTime": times.to_microseconds, "renewTime": times.to_microseconds})
    return parts.without_nulls(read)


def validate(spec: LeaseSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Numbers that make no sense, and texts that are no times."""
    if spec.lease_duration_seconds is not None and spec.lease_duration_seconds <= 0:
        at = "spec.leaseDurationSeconds"
        yield field_errors.invalid(at, spec.lease_duration_seconds, "must be greater than 0", "range")
    if spec.lease_transitions is not None and spec.lease_transitions < 0:
        at = "spec.leaseTransitions"
        yield field_errors.invalid(at, spec.lease_transitions, "must be greater than or equal to 0", "range")
    yield from parts.time_violations("spec.acquireTime", spec.acquire_time, micro=True)
    yield from parts.time_violations("spec.renewTime", spec.renew_time, micro=True)
    yield from _strategy_violations(spec.strategy)
    if spec.preferred_holder and not spec.strategy:
        yield field_errors.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")


def _strategy_violations(strategy: str | None) -> Iterator[Violation]:
    if strategy is None:
        return
    if "/" not in strategy:
        if strategy not in _STRATEGIES:
            yield field_errors.unsupported("spec.strategy", strategy, _STRATEGIES)
        return
    for message in parts.qualified_name_messages(strategy):
        yield field_errors.invalid("spec.strategy", strategy, message)


LEASE = Kind(
    name="Lease",
    plural="leases",
    set_name="Lease.coordination.k8s.io",
    group="coordination.k8s.io",
    doc="Who does something that only one may do, and until when.",
    spec=LeaseSpec,
    scope=Scope.GLOBAL,
    short_history=True,
    clean=clean,
    validate=validate,
    columns=(Column("Holder", lambda spec, _status: spec.get("holderIdentity"), "Who holds it."),),
)
