"""Stream routes: TCPRoute, TLSRoute and UDPRoute, which see no requests."""

from typing import Annotated

from koguma.model.gateway_api.references import (
    BACKENDS_MAX,
    Hostname,
    RouteSpec,
    SectionName,
    WeightedBackend,
)
from koguma.model.schema import Spec, doc


class StreamRouteRule(Spec, kw_only=True):
    """Where connections go."""

    name: Annotated[SectionName | None, doc("Its name.")] = None
    backend_refs: Annotated[
        tuple[WeightedBackend, ...], doc("Where they go.", min_length=1, max_length=BACKENDS_MAX)
    ]


class TcpRouteSpec(RouteSpec, kw_only=True):
    """Where TCP connections go."""

    rules: Annotated[tuple[StreamRouteRule, ...], doc("One rule.", min_length=1, max_length=1)]


class UdpRouteSpec(RouteSpec, kw_only=True):
    """Where UDP packets would go; gateways of this control plane take none."""

    rules: Annotated[tuple[StreamRouteRule, ...], doc("One rule.", min_length=1, max_length=1)]


class TlsRouteSpec(RouteSpec, kw_only=True):
    """Where TLS connections go, by the host name that the client asks for."""

    hostnames: Annotated[tuple[Hostname, ...], doc("The host names (SNI).", min_length=1, max_length=1024)]
    rules: Annotated[tuple[StreamRouteRule, ...], doc("One rule.", min_length=1, max_length=1)]
