"""gRPC routes: GRPCRoute."""

from typing import Annotated, Literal

from koguma.model.gateway_api.http_routes import (
    RULES_MAX,
    Comparison,
    HeaderChanges,
    RequestMirror,
    RouteHeaderMatch,
    SessionPersistence,
)
from koguma.model.gateway_api.references import (
    BACKENDS_MAX,
    Hostname,
    LocalReference,
    RouteSpec,
    SectionName,
    WeightedBackend,
)
from koguma.model.schema import Spec, doc, keyed_by


class GrpcMethodMatch(Spec):
    """How the service and method of a call are compared."""

    type: Annotated[Comparison, doc("How they are compared.")] = "Exact"
    service: Annotated[str | None, doc("The service, with its package.", max_length=1024)] = None
    method: Annotated[str | None, doc("The method.", max_length=1024)] = None


class GrpcRouteMatch(Spec):
    """Which calls are meant; all of it must hold."""

    method: Annotated[GrpcMethodMatch | None, doc("Their service and method; all by default.")] = None
    headers: Annotated[
        tuple[RouteHeaderMatch, ...] | None, doc("Their headers.", max_length=16), keyed_by("name")
    ] = None


class GrpcRouteFilter(Spec):
    """One step in the handling of a call."""

    type: Annotated[
        Literal["RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef"],
        doc("What is done; the field of that name says how."),
    ]
    request_header_modifier: Annotated[HeaderChanges | None, doc("Changes of request headers.")] = None
    response_header_modifier: Annotated[HeaderChanges | None, doc("Changes of response headers.")] = None
    request_mirror: Annotated[RequestMirror | None, doc("Where copies go.")] = None
    extension_ref: Annotated[LocalReference | None, doc("A filter of this control plane.")] = None


class GrpcBackend(WeightedBackend, kw_only=True):
    """A service with its share of the calls, and what is done for it alone."""

    filters: Annotated[
        tuple[GrpcRouteFilter, ...] | None, doc("Steps for calls that go here.", max_length=16)
    ] = None


class GrpcRouteRule(Spec):
    """What happens to some calls."""

    name: Annotated[SectionName | None, doc("Its name.")] = None
    matches: Annotated[
        tuple[GrpcRouteMatch, ...] | None,
        doc("Which calls: those that one of these describes.", max_length=64),
    ] = None
    filters: Annotated[tuple[GrpcRouteFilter, ...] | None, doc("What is done.", max_length=16)] = None
    backend_refs: Annotated[
        tuple[GrpcBackend, ...] | None, doc("Where they go.", max_length=BACKENDS_MAX)
    ] = None
    session_persistence: Annotated[SessionPersistence | None, doc("How clients stay at one endpoint.")] = None


class GrpcRouteSpec(RouteSpec):
    """Where gRPC calls go."""

    hostnames: Annotated[
        tuple[Hostname, ...] | None, doc("For which hosts; all of the listener by default.", max_length=16)
    ] = None
    rules: Annotated[
        tuple[GrpcRouteRule, ...] | None, doc("What happens to which calls.", max_length=RULES_MAX)
    ] = None
