"""Which kinds the `targetRef` and `to` of policies for outbound traffic may name."""

from koguma.model import target_ref
from koguma.model.kind import ValidationContext
from koguma.model.target_ref import TargetRef


def proxy_kinds(context: ValidationContext) -> tuple[str, ...]:
    """What `targetRef` may name where routes once stood there; they still may, in system policies."""
    if context.is_system:
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
