"""HTTPRoute, GRPCRoute, TLSRoute, TCPRoute and UDPRoute."""

import msgspec

from koguma.kube.kinds.gateway_api import route_rules
from koguma.kube.kinds.gateway_api.kind_record import kind_of
from koguma.model.gateway_api.conditions import RouteStatus
from koguma.model.gateway_api.grpc_routes import GrpcRouteSpec
from koguma.model.gateway_api.http_routes import HttpRouteSpec
from koguma.model.gateway_api.stream_routes import TcpRouteSpec, TlsRouteSpec, UdpRouteSpec
from koguma.model.kind import Column
from koguma.model.schema import Json


def _hostnames(spec: Json, _status: Json) -> str | None:
    names = spec.get("hostnames")
    return msgspec.json.encode(names).decode() if names else None


_HOSTNAMES = (Column("Hostnames", _hostnames, "For which hosts."),)

HTTP_ROUTE = kind_of(
    "HTTPRoute",
    "httproutes",
    "Where HTTP requests go, by host, path, headers, query and method.",
    HttpRouteSpec,
    RouteStatus,
    route_rules.http_route,
    _HOSTNAMES,
)

GRPC_ROUTE = kind_of(
    "GRPCRoute",
    "grpcroutes",
    "Where gRPC calls go, by host, service, method and headers.",
    GrpcRouteSpec,
    RouteStatus,
    route_rules.grpc_route,
    _HOSTNAMES,
)

TLS_ROUTE = kind_of(
    "TLSRoute",
    "tlsroutes",
    "Where TLS connections go, by the host name that the client asks for.",
    TlsRouteSpec,
    RouteStatus,
    route_rules.stream_route,
)

TCP_ROUTE = kind_of(
    "TCPRoute",
    "tcproutes",
    "Where TCP connections go.",
    TcpRouteSpec,
    RouteStatus,
    route_rules.stream_route,
)

UDP_ROUTE = kind_of(
    "UDPRoute",
    "udproutes",
    "Where UDP packets would go. It is stored, and no gateway of this control plane accepts it.",
    UdpRouteSpec,
    RouteStatus,
    route_rules.stream_route,
)
