"""GatewayClass, Gateway and ListenerSet, and what stands beside routes: ReferenceGrant, BackendTLSPolicy."""

from koguma.kube.kinds.gateway_api import gateway_rules
from koguma.kube.kinds.gateway_api.kind_record import condition_column, kind_of
from koguma.model.gateway_api.backend_tls import BackendTlsPolicySpec
from koguma.model.gateway_api.conditions import AttachedPolicyStatus
from koguma.model.gateway_api.gateways import (
    GatewayClassSpec,
    GatewayClassStatus,
    GatewayObjectSpec,
    GatewayStatus,
    ListenerSetSpec,
    ListenerSetStatus,
)
from koguma.model.gateway_api.grants import ReferenceGrantSpec
from koguma.model.kind import Column
from koguma.model.schema import Json

_ACCEPTED = condition_column("Accepted", "Whether its controller takes care of it.")
_PROGRAMMED = condition_column("Programmed", "Whether proxies serve it.")


def _addresses(_spec: Json, status: Json) -> str | None:
    return ",".join(each["value"] for each in status.get("addresses") or ()) or None


GATEWAY_CLASS = kind_of(
    "GatewayClass",
    "gatewayclasses",
    "A class of Gateways, of which one controller takes care.",
    GatewayClassSpec,
    GatewayClassStatus,
    gateway_rules.gateway_class,
    (
        Column("Controller", lambda spec, _status: spec.get("controllerName"), "Who takes care of them."),
        _ACCEPTED,
        Column("Description", lambda spec, _status: spec.get("description"), "In words.", is_wide=True),
    ),
    namespaced=False,
)

GATEWAY = kind_of(
    "Gateway",
    "gateways",
    "A gateway: where traffic comes in, and which routes may be attached to it.",
    GatewayObjectSpec,
    GatewayStatus,
    gateway_rules.gateway,
    (
        Column("Class", lambda spec, _status: spec.get("gatewayClassName"), "Its GatewayClass."),
        Column("Address", _addresses, "Where its proxies listen."),
        _PROGRAMMED,
    ),
)

LISTENER_SET = kind_of(
    "ListenerSet",
    "listenersets",
    "Listeners that are added to a Gateway, also by others than its owner.",
    ListenerSetSpec,
    ListenerSetStatus,
    gateway_rules.listener_set,
    (_ACCEPTED, _PROGRAMMED),
)

REFERENCE_GRANT = kind_of(
    "ReferenceGrant",
    "referencegrants",
    "Lets objects of other namespaces refer to objects of this one.",
    ReferenceGrantSpec,
)

BACKEND_TLS_POLICY = kind_of(
    "BackendTLSPolicy",
    "backendtlspolicies",
    "How gateways speak TLS with a service.",
    BackendTlsPolicySpec,
    AttachedPolicyStatus,
    gateway_rules.backend_tls_policy,
)
