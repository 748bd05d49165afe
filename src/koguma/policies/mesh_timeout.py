"""How long a proxy waits: for a connection, for a request, for an idle stream.

MeshTimeout acts on outbound traffic (`to`) and on inbound traffic (`rules`, or the older `from`). A
value of `0s` switches a limit off. On a route (`to[].targetRef.kind`) only what Envoy can do per route acts:
`http.requestTimeout` and `http.streamIdleTimeout` on a MeshHTTPRoute, `idleTimeout` on a MeshTCPRoute; the
rest comes from the service's own policy.

```yaml
type: MeshTimeout
name: backend-is-quick
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        connectionTimeout: 2s
        http: {requestTimeout: 5s}
```
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data
from koguma.model import columns, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, DefaultPolicy, Kind, Policy, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import calling, fields, outbound_targets, spelling


class TimeoutHttp(Spec):
    """Limits that exist for HTTP only."""

    request_timeout: Annotated[Duration | None, doc("From the request's end to the response's end.")] = None
    stream_idle_timeout: Annotated[Duration | None, doc("Without a byte in either direction.")] = None
    max_stream_duration: Annotated[Duration | None, doc("A stream's whole life.")] = None
    max_connection_duration: Annotated[Duration | None, doc("A connection's whole life.")] = None
    request_headers_timeout: Annotated[Duration | None, doc("For the request's headers to arrive.")] = None


class TimeoutConf(Spec):
    """The limits."""

    connection_timeout: Annotated[Duration | None, doc("To establish a TCP connection.")] = None
    idle_timeout: Annotated[
        Duration | None, doc("Without a byte on a TCP connection, or a request on HTTP.")
    ] = None
    http: Annotated[TimeoutHttp | None, doc("Limits that exist for HTTP only.")] = None


class TimeoutTo(Spec):
    """Limits for calls to one destination."""

    target_ref: Annotated[TargetRef, doc("The destination, or a route to it.")]
    default: Annotated[TimeoutConf | None, doc("The limits; without it the entry changes nothing.")] = None


class TimeoutFrom(Spec):
    """Limits for calls from some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients; only kind Mesh.")]
    default: Annotated[TimeoutConf, doc("The limits.")] = TimeoutConf()


class TimeoutRule(Spec):
    """Limits for calls that arrive."""

    default: Annotated[TimeoutConf, doc("The limits.")] = TimeoutConf()
    matches: Annotated[tuple[ClientMatch, ...], doc("Only calls that fit one of these; all by default.")] = ()


class MeshTimeoutSpec(Spec):
    """Which proxies, and the limits of their traffic."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[TimeoutTo, ...], doc("Limits of outbound traffic.")] = ()
    from_: Annotated[tuple[TimeoutFrom, ...], doc("Limits of inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[TimeoutRule, ...], doc("Limits of inbound traffic.")] = ()


def validate(spec: MeshTimeoutSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; except that requestHeadersTimeout alone is legal."""
    top = spec.target_ref or target_ref.MESH
    sections = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(
        top, "spec.targetRef", outbound_targets.proxy_kinds(context), sections=sections
    )
    if not (spec.to or spec.from_ or spec.rules):
        yield Violation("spec", "at least one of 'from', 'to' or 'rules' has to be defined", "required")
    if spec.rules and (spec.to or spec.from_):
        yield Violation("spec", "fields 'to' and 'from' must be empty when 'rules' is defined", "exclusive")
    yield from fields.entries("spec.to", spec.to, outbound_targets.target_kinds(top), _to_conf)
    if spec.from_ and top.kind in ("MeshGateway", *target_ref.ROUTES):
        yield Violation(
            "spec.from", f"{fields.MUST_NOT_BE_DEFINED}; with {top.kind} use spec.to", "forbidden"
        )
    yield from fields.entries("spec.from", spec.from_, ("Mesh",), _conf)
    for index, rule in enumerate(spec.rules):
        yield from _rule(rule, item("spec.rules", index))


def _to_conf(conf: TimeoutConf | None, path: str) -> Iterator[Violation]:
    # The founding document points at a route without saying a limit; that is legal, and warned about.
    if conf is not None:
        yield from _conf(conf, path)


def _rule(rule: TimeoutRule, path: str) -> Iterator[Violation]:
    yield from fields.matches(rule.matches, child(path, "matches"), needs_one=True)
    at = child(path, "default")
    yield from _conf(rule.default, at)
    if any(match.spiffe_id for match in rule.matches):
        for name in _limits(rule.default):
            if name not in _HTTP_ROUTE_FIELDS:
                yield Violation(child(at, name), _NOT_BY_IDENTITY, "forbidden")


def _conf(conf: TimeoutConf, path: str) -> Iterator[Violation]:
    if conf == TimeoutConf():
        yield Violation(path, "at least one timeout should be configured", "required")
    yield from fields.positive_duration(conf.connection_timeout, child(path, "connectionTimeout"))
    for name, value in _limits(conf).items():
        if name != "connectionTimeout":
            yield from fields.not_negative_duration(value, child(path, name))
    if conf.http == TimeoutHttp():
        message = "at least one timeout in this section should be configured"
        yield Violation(child(path, "http"), message, "required")


def _limits(conf: TimeoutConf) -> dict[str, str]:
    """The limits that are set, by their path."""
    http = conf.http or TimeoutHttp()
    limits = {
        "connectionTimeout": conf.connection_timeout,
        "idleTimeout": conf.idle_timeout,
        "http.requestTimeout": http.request_timeout,
        "http.streamIdleTimeout": http.stream_idle_timeout,
        "http.maxStreamDuration": http.max_stream_duration,
        "http.maxConnectionDuration": http.max_connection_duration,
        "http.requestHeadersTimeout": http.request_headers_timeout,
    }
    return {name: value for name, value in limits.items() if value is not None}


# What Envoy can limit per route; a rule that holds for some clients only is a route as well.
_NOT_BY_IDENTITY: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; it holds before the caller is known, so set it in a rule whose matches"
    " have no spiffeID"
)
_HTTP_ROUTE_FIELDS: Final = ("http.requestTimeout", "http.streamIdleTimeout")
_ROUTE_FIELDS: Final = {"MeshHTTPRoute": _HTTP_ROUTE_FIELDS, "MeshTCPRoute": ("idleTimeout",)}


def warn(spec: MeshTimeoutSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and limits that cannot act where they stand."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED
    for index, entry in enumerate(spec.to):
        at = f"spec.to[{index}].default"
        if entry.default is None:
            yield f"{at}: at least one timeout should be configured; without one this entry changes nothing"
            continue
        kind = entry.target_ref.kind
        if kind in target_ref.ROUTES:
            acting = _ROUTE_FIELDS[kind]
            for name in _limits(entry.default):
                if name not in acting:
                    yield f"{at}.{name} has no effect on a {kind}; only {' and '.join(acting)} can act there"


_CALLER_FILTER: Final = "envoy.filters.http.set_filter_state"

_COMMON: Final = "common_http_protocol_options"
_Place = tuple[str, tuple[str, ...]]  # a part of the overlay, and the path of a field in it

_CONNECT: Final[_Place] = ("cluster", ("connect_timeout",))
_ROUTE_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("http", "requestTimeout"): (("route_action", ("timeout",)),),
    ("http", "streamIdleTimeout"): (
        ("route_action", ("idle_timeout",)),
        ("hcm", ("stream_idle_timeout",)),
    ),
}
_HTTP_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("connectionTimeout",): (_CONNECT,),
    ("idleTimeout",): (("http_options", (_COMMON, "idle_timeout")),),
    **_ROUTE_LIMITS,
    ("http", "maxStreamDuration"): (
        ("http_options", (_COMMON, "max_stream_duration")),
        ("hcm", (_COMMON, "max_stream_duration")),
    ),
    ("http", "maxConnectionDuration"): (
        ("http_options", (_COMMON, "max_connection_duration")),
        ("hcm", (_COMMON, "max_connection_duration")),
    ),
    ("http", "requestHeadersTimeout"): (("hcm", ("request_headers_timeout",)),),
}
_TCP_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("connectionTimeout",): (_CONNECT,),
    ("idleTimeout",): (("tcp", ("idle_timeout",)),),
}


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """The limits of calls to others."""
    if not context.is_http:
        return _limits_overlay(conf, _TCP_LIMITS)
    overlay = _limits_overlay(conf, _HTTP_LIMITS)
    if context.is_gateway:
        # Its listeners have clients outside the mesh; what they may do is said in `rules`.
        return {part: limits for part, limits in overlay.items() if part != "hcm"}
    if conf.get("idleTimeout") is not None:
        # Idle time is limited at the cluster. The listener's own limit is switched off, so that only one of
        # the two counts.
        _put(overlay, "hcm", (_COMMON, "idle_timeout"), "0s")
    return overlay


def inbound(conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """The limits of calls that arrive: for everybody, and for some."""
    overlay = (
        _limits_overlay(conf, _HTTP_LIMITS)
        if context.is_gateway and context.is_http
        else {**outbound(conf, context)}
    )
    if context.is_gateway and context.is_http and conf.get("idleTimeout") is not None:
        _put(overlay, "hcm", (_COMMON, "idle_timeout"), proto_json.seconds(conf["idleTimeout"]))
    if context.is_http and (caller_routes := list(_caller_routes(entries))):
        overlay["callers"] = caller_routes
        overlay["http_filters"] = {_CALLER_FILTER: _caller_filter()}
    return overlay


def _limits_overlay(conf: Json, limits: dict[tuple[str, ...], tuple[_Place, ...]]) -> Data:
    overlay: Data = {}
    for field, places in limits.items():
        value = _value(conf, field)
        if value is None:
            continue
        for part, path in places:
            # Zero would close every connection after its first request; absent is Envoy's word for no limit.
            if path[-1] != "max_connection_duration" or duration.nanoseconds(value):
                _put(overlay, part, path, proto_json.seconds(value))
    return overlay


def _value(conf: Json, field: tuple[str, ...]) -> str | None:
    for name in field:
        conf = (conf or {}).get(name)
    return conf if isinstance(conf, str) else None


def _put(overlay: Data, part: str, path: tuple[str, ...], value: Json) -> None:
    place = overlay.setdefault(part, {})
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value


def _caller_routes(entries: tuple[InboundEntry, ...]) -> Iterator[Data]:
    """What holds for some callers only, most specific first, with what wider entries say to the same."""
    ordered = sorted((wider for wider in entries if not wider.for_everybody), key=calling.specificity)
    distinct = {(wider.spiffe_id, wider.sni): wider for wider in ordered}
    for entry in reversed(distinct.values()):
        action: Data = {}
        for wider in ordered:
            if calling.covers(wider, entry):
                action |= _limits_overlay(wider.conf, _ROUTE_LIMITS).get("route_action", {})
        if action:
            yield {"match": _match(calling.of_entry(entry)), "route_action": action}


_URIS_KEY: Final = "koguma.caller"
_SERVER_NAME_KEY: Final = "koguma.server_name"


def _match(caller: Caller) -> Data:
    matchers = [
        {"key": _URIS_KEY, "string_match": {"safe_regex": {"regex": uri.pattern}}} for uri in caller.uris
    ]
    if caller.server_name:
        matchers.append({"key": _SERVER_NAME_KEY, "string_match": {"exact": caller.server_name}})
    return {"filter_state": matchers}


def _caller_filter() -> Data:
    """Writes the URIs of the certificate, which no route can match, into the filter state."""
    values = [
        {
            "object_key": key,
            "factory_key": "envoy.string",
            "format_string": {"text_format_source": {"inline_string": text}},
        }
        for key, text in ((_URIS_KEY, callers.URIS), (_SERVER_NAME_KEY, callers.SERVER_NAME))
    ]
    return proto_json.typed(
        "envoy.extensions.filters.http.set_filter_state.v3.Config",
        on_request_headers=values,
        clear_route_cache=True,
    )


def _default(prefix: str, proxy_type: str, inbound_conf: Json, outbound_conf: Json) -> DefaultPolicy:
    spec = {
        "targetRef": {"kind": "Mesh", "proxyTypes": [proxy_type]},
        "from": [{"targetRef": {"kind": "Mesh"}, "default": inbound_conf}],
        "to": [{"targetRef": {"kind": "Mesh"}, "default": outbound_conf}],
    }
    return DefaultPolicy(prefix, spec)


_HTTP: Final = {"requestTimeout": "0s", "streamIdleTimeout": "1h0m0s", "maxStreamDuration": "0s"}
_DEFAULTS: Final = (
    _default(
        "mesh-timeout-all",
        "Sidecar",
        {"connectionTimeout": "10s", "idleTimeout": "2h0m0s", "http": _HTTP},
        {
            "connectionTimeout": "5s",
            "idleTimeout": "1h0m0s",
            "http": {"requestTimeout": "15s", "streamIdleTimeout": "30m0s"},
        },
    ),
    _default(
        "mesh-gateways-timeout-all",
        "Gateway",
        # Kuma's 5s and 500ms cut off event streams, WebSockets and clients on slow lines.
        {"idleTimeout": "5m0s", "http": {"streamIdleTimeout": "1h0m0s", "requestHeadersTimeout": "10s"}},
        {"idleTimeout": "1h0m0s", "http": {"streamIdleTimeout": "1h0m0s"}},
    ),
)


KIND = Kind(
    name="MeshTimeout",
    plural="meshtimeouts",
    short="mt",
    doc=__doc__,
    spec=MeshTimeoutSpec,
    columns=columns.BOTH_WAYS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.TIMEOUTS,
        has_to=True,
        has_from=True,
        has_rules=True,
        from_as_rules=True,
        hooks=PolicyHooks(outbound=outbound, inbound=inbound, at_gateways=True),
        mesh_defaults=_DEFAULTS,
        set_by_rules=(("http.requestTimeout", "timeouts.request"),),
    ),
    clean=spelling.refs,
    v1=spelling.RULES_BESIDE_TO,
    validate=validate,
    warn=warn,
)
