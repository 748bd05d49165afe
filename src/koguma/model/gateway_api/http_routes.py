"""HTTP routes: HTTPRoute, and the parts that GRPCRoute shares with it."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from koguma.model.gateway_api.references import (
    AS_SET,
    BACKENDS_MAX,
    BackendObjectReference,
    GatewayDuration,
    HeaderName,
    HeaderValue,
    Hostname,
    LocalReference,
    PortNumber,
    PreciseHostname,
    RouteSpec,
    SectionName,
    WeightedBackend,
)
from koguma.model.schema import Spec, doc, keyed_by

RULES_MAX: Final = 16
MATCHES_MAX: Final = 128  # in all rules of a route together
_INT32_MAX: Final = 2**31 - 1

Comparison = Literal["Exact", "RegularExpression"]
Method = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
AllowedMethod = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"]
_ORIGIN_HOST: Final = (
    r"[a-zA-Z0-9*]([-a-zA-Z0-9*]*[a-zA-Z0-9*])?(\.[a-zA-Z0-9*]([-a-zA-Z0-9*]*[a-zA-Z0-9*])?)*"
)
Origin = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=rf"^(\*|(http(s)?):\/\/({_ORIGIN_HOST})(:([0-9]{{1,5}}))?)\Z",
    ),
]
PathText = Annotated[str, Meta(max_length=1024)]
_HeaderNames = Annotated[tuple[HeaderName, ...], Meta(max_length=64), AS_SET]
_PlainNames = Annotated[tuple[str, ...], Meta(max_length=64), AS_SET]


class RoutePathMatch(Spec):
    """How the path of a request is compared."""

    type: Annotated[Literal["Exact", "PathPrefix", "RegularExpression"], doc("How it is compared.")] = (
        "PathPrefix"
    )
    value: Annotated[PathText, doc("The path, the prefix in whole segments, or the expression.")] = "/"


class RouteHeaderMatch(Spec, kw_only=True):
    """How a header of a request is compared."""

    type: Annotated[Comparison, doc("How it is compared.")] = "Exact"
    name: Annotated[HeaderName, doc("Name of the header, in any case.")]
    value: Annotated[HeaderValue, doc("The value, or the expression.")]


class QueryParamMatch(Spec, kw_only=True):
    """How a query parameter of a request is compared."""

    type: Annotated[Comparison, doc("How it is compared.")] = "Exact"
    name: Annotated[HeaderName, doc("Name of the parameter.")]
    value: Annotated[str, doc("The value, or the expression.", min_length=1, max_length=1024)]


class HttpRouteMatch(Spec):
    """Which requests are meant; all of it must hold."""

    path: Annotated[RoutePathMatch, doc("Their path; all by default.")] = RoutePathMatch()
    headers: Annotated[
        tuple[RouteHeaderMatch, ...] | None, doc("Their headers.", max_length=16), keyed_by("name")
    ] = None
    query_params: Annotated[
        tuple[QueryParamMatch, ...] | None, doc("Their query parameters.", max_length=16), keyed_by("name")
    ] = None
    method: Annotated[Method | None, doc("Their method.")] = None


class RouteHeader(Spec):
    """A header with its value."""

    name: Annotated[HeaderName, doc("Name of the header.")]
    value: Annotated[HeaderValue, doc("Its value.")]


class HeaderChanges(Spec):
    """Headers that are set, added and removed."""

    set: Annotated[
        tuple[RouteHeader, ...] | None, doc("Overwritten, or added.", max_length=16), keyed_by("name")
    ] = None
    add: Annotated[
        tuple[RouteHeader, ...] | None, doc("Added to what is there.", max_length=16), keyed_by("name")
    ] = None
    remove: Annotated[tuple[str, ...] | None, doc("Removed.", max_length=16), AS_SET] = None


class MirrorFraction(Spec):
    """A part of the requests."""

    numerator: Annotated[int, doc("How many.", ge=0, le=_INT32_MAX)]
    denominator: Annotated[int, doc("Of how many.", ge=1, le=_INT32_MAX)] = 100


class RequestMirror(Spec):
    """Where copies of requests go; their responses are dropped."""

    backend_ref: Annotated[BackendObjectReference, doc("Where they go.")]
    percent: Annotated[int | None, doc("Of how many requests, in percent.", ge=0, le=100)] = None
    fraction: Annotated[MirrorFraction | None, doc("Of how many requests, as a fraction.")] = None


class PathChange(Spec):
    """What becomes of a path."""

    type: Annotated[Literal["ReplaceFullPath", "ReplacePrefixMatch"], doc("What is replaced.")]
    replace_full_path: Annotated[PathText | None, doc("The new path.")] = None
    replace_prefix_match: Annotated[PathText | None, doc("What stands for the matched prefix.")] = None


class RequestRedirect(Spec):
    """Where clients are sent instead."""

    scheme: Annotated[Literal["http", "https"] | None, doc("Scheme of the new place.")] = None
    hostname: Annotated[PreciseHostname | None, doc("Host of the new place.")] = None
    path: Annotated[PathChange | None, doc("Path of the new place.")] = None
    port: Annotated[PortNumber | None, doc("Port of the new place.")] = None
    status_code: Annotated[Literal[301, 302, 303, 307, 308], doc("Status of the response.")] = 302


class UrlRewrite(Spec):
    """What the backend gets to see."""

    hostname: Annotated[PreciseHostname | None, doc("The host.")] = None
    path: Annotated[PathChange | None, doc("The path.")] = None


class RouteCors(Spec):
    """Which pages of other origins may call."""

    allow_origins: Annotated[tuple[Origin, ...] | None, doc("Their origins.", max_length=64), AS_SET] = None
    allow_credentials: Annotated[bool | None, doc("Whether they may send credentials.")] = None
    allow_methods: Annotated[
        tuple[AllowedMethod, ...] | None, doc("Their methods.", max_length=9), AS_SET
    ] = None
    allow_headers: Annotated[
        Annotated[tuple[HeaderName, ...], Meta(max_length=64)] | None, doc("Their headers."), AS_SET
    ] = None
    expose_headers: Annotated[
        Annotated[tuple[HeaderName, ...], Meta(max_length=64)] | None,
        doc("Headers of responses that they may read."),
        AS_SET,
    ] = None
    max_age: Annotated[int, doc("For how many seconds browsers remember this.", ge=1, le=_INT32_MAX)] = 5


class AuthGrpc(Spec):
    """How an authorization server is asked over gRPC."""

    allowed_headers: Annotated[
        tuple[str, ...] | None, doc("Headers that it gets; all by default.", max_length=64), AS_SET
    ] = None


class AuthHttp(Spec):
    """How an authorization server is asked over HTTP."""

    path: Annotated[
        str | None,
        doc(
            "What stands before the path.",
            max_length=1024,
            pattern=r"^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+\Z",
        ),
    ] = None
    allowed_headers: Annotated[
        tuple[str, ...] | None, doc("Further headers that it gets.", max_length=64), AS_SET
    ] = None
    allowed_response_headers: Annotated[
        tuple[str, ...] | None, doc("Headers of its answer that the backend gets.", max_length=64), AS_SET
    ] = None


class AuthBody(Spec):
    """How much of a request's body an authorization server gets."""

    max_size: Annotated[int | None, doc("At most so many bytes.", ge=0, le=_INT32_MAX)] = None


class ExternalAuth(Spec):
    """A server that is asked whether a request may pass."""

    protocol: Annotated[Literal["HTTP", "GRPC"], doc("How it is asked.")]
    backend_ref: Annotated[BackendObjectReference, doc("The server.")]
    grpc: Annotated[AuthGrpc | None, doc("With GRPC: more about it.")] = None
    http: Annotated[AuthHttp | None, doc("With HTTP: more about it.")] = None
    forward_body: Annotated[AuthBody | None, doc("How much of the body it gets.")] = None


class HttpRouteFilter(Spec):
    """One step in the handling of a request or its response."""

    type: Annotated[
        Literal[
            "RequestHeaderModifier",
            "ResponseHeaderModifier",
            "RequestMirror",
            "RequestRedirect",
            "URLRewrite",
            "ExtensionRef",
            "CORS",
            "ExternalAuth",
        ],
        doc("What is done; the field of that name says how."),
    ]
    request_header_modifier: Annotated[HeaderChanges | None, doc("Changes of request headers.")] = None
    response_header_modifier: Annotated[HeaderChanges | None, doc("Changes of response headers.")] = None
    request_mirror: Annotated[RequestMirror | None, doc("Where copies go.")] = None
    request_redirect: Annotated[RequestRedirect | None, doc("Where clients are sent.")] = None
    url_rewrite: Annotated[UrlRewrite | None, doc("What the backend gets to see.")] = None
    cors: Annotated[RouteCors | None, doc("Which other origins may call.")] = None
    external_auth: Annotated[ExternalAuth | None, doc("Who is asked.")] = None
    extension_ref: Annotated[LocalReference | None, doc("A filter of this control plane.")] = None


class HttpBackend(WeightedBackend, kw_only=True):
    """A service with its share of the requests, and what is done for it alone."""

    filters: Annotated[
        tuple[HttpRouteFilter, ...] | None, doc("Steps for requests that go here.", max_length=16)
    ] = None


class RouteTimeouts(Spec):
    """How long a request may take."""

    request: Annotated[GatewayDuration | None, doc("With all retries; 0s means no limit.")] = None
    backend_request: Annotated[GatewayDuration | None, doc("Each try; 0s means no limit.")] = None


class RouteRetry(Spec):
    """When a request is tried again."""

    codes: Annotated[
        tuple[Annotated[int, Meta(ge=400, le=599)], ...] | None, doc("After which statuses."), AS_SET
    ] = None
    attempts: Annotated[int | None, doc("How often.")] = None
    backoff: Annotated[GatewayDuration | None, doc("How long to wait, at least.")] = None


class CookieConfig(Spec):
    """How a cookie is kept."""

    lifetime_type: Annotated[
        Literal["Permanent", "Session"], doc("For a time, or while the browser is open.")
    ] = "Session"


class SessionPersistence(Spec):
    """How requests of one client stay at one endpoint."""

    session_name: Annotated[str | None, doc("Name of the cookie or header.", max_length=128)] = None
    absolute_timeout: Annotated[GatewayDuration | None, doc("How long a session lasts.")] = None
    idle_timeout: Annotated[GatewayDuration | None, doc("How long one may be idle.")] = None
    type: Annotated[Literal["Cookie", "Header"], doc("How clients show their session.")] = "Cookie"
    cookie_config: Annotated[CookieConfig | None, doc("With Cookie: more about it.")] = None


class HttpRouteRule(Spec):
    """What happens to some requests."""

    name: Annotated[SectionName | None, doc("Its name.")] = None
    matches: Annotated[
        tuple[HttpRouteMatch, ...], doc("Which requests: those that one of these describes.", max_length=64)
    ] = (HttpRouteMatch(),)
    filters: Annotated[tuple[HttpRouteFilter, ...] | None, doc("What is done.", max_length=16)] = None
    backend_refs: Annotated[
        tuple[HttpBackend, ...] | None, doc("Where they go.", max_length=BACKENDS_MAX)
    ] = None
    timeouts: Annotated[RouteTimeouts | None, doc("How long they may take.")] = None
    retry: Annotated[RouteRetry | None, doc("When they are tried again.")] = None
    session_persistence: Annotated[SessionPersistence | None, doc("How clients stay at one endpoint.")] = None


class HttpRouteSpec(RouteSpec):
    """Where HTTP requests go."""

    hostnames: Annotated[
        tuple[Hostname, ...] | None, doc("For which hosts; all of the listener by default.", max_length=16)
    ] = None
    rules: Annotated[
        tuple[HttpRouteRule, ...], doc("What happens to which requests.", min_length=1, max_length=RULES_MAX)
    ] = (HttpRouteRule(),)
