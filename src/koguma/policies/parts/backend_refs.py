"""Backend references: where a route sends what it matches, and in which shares."""

from collections.abc import Iterator, Sequence
from typing import Final

from koguma.model import target_ref
from koguma.model.target_ref import BackendRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import spelling

KINDS: Final = ("MeshService", "MeshServiceSubset", "MeshExternalService", "MeshMultiZoneService")
WEIGHT_MAX: Final = 4294967295

reading: Final = spelling.each(spelling.ref)


def violations(refs: Sequence[BackendRef], path: str) -> Iterator[Violation]:
    """What is wrong with the backends of one rule."""
    for index, ref in enumerate(refs):
        yield from ref_violations(ref, item(path, index))
    weights = [weight(ref) for ref in refs]
    if max(weights, default=0) <= WEIGHT_MAX < sum(weights):
        message = f"the weights add up to {sum(weights)}; Envoy takes a sum of at most {WEIGHT_MAX}"
        yield Violation(path, message, "range")


def ref_violations(ref: BackendRef, path: str) -> Iterator[Violation]:
    """What is wrong with one backend."""
    yield from target_ref.violations(ref, path, KINDS)
    if ref.kind == "MeshMultiZoneService" and ref.port is None:
        yield Violation(child(path, "port"), "must be defined with kind MeshMultiZoneService", "required")
    if weight(ref) > WEIGHT_MAX:
        yield Violation(child(path, "weight"), f"must be in inclusive range [0, {WEIGHT_MAX}]", "range")


def weight(ref: BackendRef) -> int:
    """A backend's share of the traffic, which is 1 where it says nothing."""
    return 1 if ref.weight is None else ref.weight


def warnings(refs: Sequence[BackendRef], path: str) -> Iterator[str]:
    """Backends of which none gets anything."""
    if refs and not any(weight(ref) for ref in refs):
        yield f"{path}: every weight is 0, so no backend is reached"
