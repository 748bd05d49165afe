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

    With the deprecated route in `targetRef` the route is chosen already. Kuma takes only Mesh and
    MeshExternalService for a gateway; its clusters and routes can tell destinations apart all the same.
    """
    if top.kind in target_ref.ROUTES:
        return ("Mesh", "MeshExternalService")
    return ("Mesh", *target_ref.DESTINATIONS, *target_ref.ROUTES)


def gateway_kinds(top: TargetRef) -> tuple[str, ...]:
    """What `to` may name where it is for what gateways send on: all of it, or one route of a gateway."""
    return ("Mesh", target_ref.HTTP_ROUTE) if target_ref.is_gateway(top) else ("Mesh",)
