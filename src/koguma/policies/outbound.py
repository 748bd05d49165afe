"""Outbound: what the policies for calls to others share: whom they may name, and their durations."""

from collections.abc import Iterator

from koguma.model import duration, target_ref
from koguma.model.kind import About
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation


def proxy_kinds(about: About) -> tuple[str, ...]:
    """What `targetRef` may name where routes once stood there; they still may, in system policies."""
    if about.is_system:
        return (*target_ref.PROXIES, *target_ref.ROUTES)
    return target_ref.NAMESPACED_PROXIES


def target_kinds(top: TargetRef) -> tuple[str, ...]:
    """What `to` may name, given the proxies.

    A gateway's own traffic is that of its routes, so these may be named beside Mesh. With the deprecated
    route in `targetRef` the route is chosen already.
    """
    if top.kind in target_ref.ROUTES:
        return ("Mesh", "MeshExternalService")
    if top.kind == "MeshGateway":
        return ("Mesh", "MeshExternalService", *target_ref.ROUTES)
    return ("Mesh", *target_ref.DESTINATIONS, *target_ref.ROUTES)


def not_negative_duration(value: str | None, path: str) -> Iterator[Violation]:
    """A duration of zero or more."""
    if value is not None and duration.nanoseconds(value) < 0:
        yield Violation(path, "must not be negative when defined", "range")
