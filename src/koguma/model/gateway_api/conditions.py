"""Conditions: what controllers report on objects of the Gateway API."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from koguma.model.gateway_api.references import ControllerName, ParentReference
from koguma.model.schema import Spec, doc, keyed_by

_MAX: Final = 8
_TIME: Final = Meta(extra_json_schema={"format": "date-time"})


class GatewayApiCondition(Spec, kw_only=True):
    """One thing that is true of an object, or not, and of which generation of it."""

    type: Annotated[str, doc("What the condition is about.", max_length=316)]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Whether it holds.")]
    observed_generation: Annotated[int | None, doc("The generation that was looked at.", ge=0)] = None
    last_transition_time: Annotated[str, doc("When the status last changed."), _TIME]
    reason: Annotated[str, doc("The reason as one word.", min_length=1, max_length=1024)]
    message: Annotated[str, doc("The reason in a sentence.", max_length=32768)]


Conditions = Annotated[tuple[GatewayApiCondition, ...], Meta(max_length=_MAX), keyed_by("type")]


class RouteParentStatus(Spec):
    """What one controller says of a route and one of its parents."""

    parent_ref: Annotated[ParentReference, doc("The parent.")]
    controller_name: Annotated[ControllerName, doc("Who wrote this entry.")]
    conditions: Annotated[Conditions | None, doc("What is true of the route at this parent.")] = None


class RouteStatus(Spec):
    """What controllers say of a route."""

    parents: Annotated[
        tuple[RouteParentStatus, ...], doc("One entry for each parent and controller.", max_length=32)
    ]


class PolicyAncestorStatus(Spec):
    """What one controller says of a policy and one of the objects that it acts on."""

    ancestor_ref: Annotated[ParentReference, doc("The object.")]
    controller_name: Annotated[ControllerName, doc("Who wrote this entry.")]
    conditions: Annotated[Conditions | None, doc("What is true of the policy there.")] = None


class AttachedPolicyStatus(Spec):
    """What controllers say of a policy."""

    ancestors: Annotated[
        tuple[PolicyAncestorStatus, ...], doc("One entry for each object and controller.", max_length=16)
    ]
