"""The Gateway API's kinds, as this control plane stores and checks them."""

from collections.abc import Mapping
from typing import Final

from koguma.kube.kinds.gateway_api import gateways, routes
from koguma.model.kind import Kind

KINDS: Final[tuple[Kind, ...]] = (
    gateways.GATEWAY_CLASS,
    gateways.GATEWAY,
    gateways.LISTENER_SET,
    gateways.REFERENCE_GRANT,
    gateways.BACKEND_TLS_POLICY,
    routes.HTTP_ROUTE,
    routes.GRPC_ROUTE,
    routes.TLS_ROUTE,
    routes.TCP_ROUTE,
    routes.UDP_ROUTE,
)
CATEGORY: Final = "gateway-api"
# Versions beside v1 in which older objects and charts are written; their fields are those of v1.
OLDER_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "GatewayClass": ("v1beta1",),
    "Gateway": ("v1beta1",),
    "HTTPRoute": ("v1beta1",),
    "GRPCRoute": ("v1alpha2",),
    "ReferenceGrant": ("v1beta1",),
    "TLSRoute": ("v1alpha3", "v1alpha2"),
    "TCPRoute": ("v1alpha2",),
    "UDPRoute": ("v1alpha2",),
    "BackendTLSPolicy": ("v1alpha3",),
}
SHORT_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "GatewayClass": ("gc",),
    "Gateway": ("gtw",),
    "ListenerSet": ("lset",),
    "ReferenceGrant": ("refgrant",),
    "BackendTLSPolicy": ("btlspolicy",),
}
