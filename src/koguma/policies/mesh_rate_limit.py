"""How much is enough: requests or connections that a proxy takes in a span of time.

MeshRateLimit acts on traffic that arrives at sidecars (`rules`, or the older `from`) and on traffic that
a built-in gateway sends on (`to`). Each proxy counts on its own, so a service of three instances takes
three times the limit. It cannot act on one route of a caller: the owner of a service knows how much it
bears, and a caller must not be able to raise that.

A rule with `matches` gives its callers a limit of their own, which they share with nobody else; what it does
not say, it takes from the rules that are for these callers too. A limit of connections is for all callers.

```yaml
type: MeshRateLimit
name: backend-takes-100-a-second
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: backend}}
  rules:
    - default:
        local:
          http:
            requestRate: {num: 100, interval: 1s}
            onRateLimit:
              status: 429
              headers:
                set: [{name: x-rate-limited, value: "true"}]
```
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from koguma.envoy import by_caller, filters, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data
from koguma.model import columns, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import calling, fields, headers, spelling
from koguma.policies.parts.fields import Count, HeaderValues


class Rate(Spec):
    """So many in a span of time."""

    num: Annotated[Count, doc("How many.")]
    interval: Annotated[Duration, doc("In how long; more than 50ms.")]


class OnRateLimit(Spec):
    """The answer to a request beyond the limit."""

    status: Annotated[Count | None, doc("Its status code; 429 by default.")] = None
    headers: Annotated[HeaderValues | None, doc("Its headers.")] = None


class HttpLimit(Spec):
    """A limit of requests."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    request_rate: Annotated[Rate | None, doc("How many requests.")] = None
    on_rate_limit: Annotated[OnRateLimit | None, doc("The answer to a request beyond the limit.")] = None


class TcpLimit(Spec):
    """A limit of connections."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    connection_rate: Annotated[Rate | None, doc("How many connections.")] = None


class LocalLimit(Spec):
    """A limit that each proxy counts on its own."""

    http: Annotated[HttpLimit | None, doc("For HTTP.")] = None
    tcp: Annotated[TcpLimit | None, doc("For TCP.")] = None


class RateLimitConf(Spec):
    """How much is enough."""

    local: Annotated[LocalLimit | None, doc("Counted by each proxy on its own.")] = None


class RateLimitTo(Spec):
    """The limit of what a gateway sends on."""

    target_ref: Annotated[TargetRef, doc("The destination; only kind Mesh.")]
    default: Annotated[RateLimitConf, doc("The limit.")] = RateLimitConf()


class RateLimitFrom(Spec):
    """The limit for some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients; only kind Mesh.")]
    default: Annotated[RateLimitConf, doc("The limit.")] = RateLimitConf()


class RateLimitRule(Spec):
    """The limit of calls that arrive."""

    default: Annotated[RateLimitConf, doc("The limit.")] = RateLimitConf()
    matches: Annotated[tuple[ClientMatch, ...], doc("Only calls that fit one of these; all by default.")] = ()


class MeshRateLimitSpec(Spec):
    """Which proxies, and how much they take."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[RateLimitTo, ...], doc("Traffic that gateways send on.")] = ()
    from_: Annotated[tuple[RateLimitFrom, ...], doc("Inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[RateLimitRule, ...], doc("Inbound traffic.")] = ()


_NOT_ON_ROUTES: Final = (
    "a rate limit cannot act on a route: it is counted by the proxy that receives the calls, not by the one"
    " that sends them. Select the service's own proxies in spec.targetRef (kind Dataplane) and set the limit"
    " in spec.rules"
)
_NO_FROM_ON_ROUTES: Final = f"{fields.MUST_NOT_BE_DEFINED} when spec.kind is MeshHTTPRoute"
_NO_FROM_ON_GATEWAYS: Final = (
    f"{fields.MUST_NOT_BE_DEFINED} when the scope includes a Gateway, select only proxyType Sidecar or select"
    " only gateways and use spec.to"
)
_NO_RULES_ON_GATEWAYS: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; spec.targetRef includes gateways, which have no rules: select only"
    " sidecars (kind Mesh with proxyTypes [Sidecar], or kind Dataplane), or only gateways and use spec.to"
)
_NO_TO_ON_SIDECARS: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; spec.to limits what gateways send on, what a sidecar receives is limited"
    " in spec.rules"
)
_NO_TCP_BY_IDENTITY: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; connections are counted before the caller is known, so limit them in a"
    " rule whose matches have no spiffeID"
)
_INTERVAL_NS_MIN: Final = duration.nanoseconds("50ms")


def validate(spec: MeshRateLimitSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; a route is refused with the reason."""
    top = spec.target_ref or target_ref.MESH
    allowed = (*target_ref.PROXIES, "MeshHTTPRoute") if context.is_system else target_ref.NAMESPACED_PROXIES
    sections = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=sections)
    yield from _lists(spec)
    yield from _scope(spec, top)
    for index, entry in enumerate(spec.to):
        yield from _to(entry, item("spec.to", index))
    yield from fields.entries("spec.from", spec.from_, ("Mesh",), _conf)
    for index, rule in enumerate(spec.rules):
        yield from _rule(rule, item("spec.rules", index))


def _lists(spec: MeshRateLimitSpec) -> Iterator[Violation]:
    if not (spec.to or spec.from_ or spec.rules):
        yield Violation("spec", "at least one of 'from', 'to' or 'rules' has to be defined", "required")
    if spec.rules and (spec.to or spec.from_):
        yield Violation("spec", "fields 'to' and 'from' must be empty when 'rules' is defined", "exclusive")


def _scope(spec: MeshRateLimitSpec, top: TargetRef) -> Iterator[Violation]:
    """Sidecars are limited where calls arrive, gateways where they leave: the lists exclude each other."""
    gateways = target_ref.includes_gateways(top)
    if not gateways and any(entry.target_ref.kind not in target_ref.ROUTES for entry in spec.to):
        yield Violation("spec.to", _NO_TO_ON_SIDECARS, "forbidden")
    if spec.from_ and gateways:
        message = _NO_FROM_ON_ROUTES if top.kind == "MeshHTTPRoute" else _NO_FROM_ON_GATEWAYS
        yield Violation("spec.from", message, "forbidden")
    if spec.rules and gateways:
        yield Violation("spec.rules", _NO_RULES_ON_GATEWAYS, "forbidden")


def _to(entry: RateLimitTo, path: str) -> Iterator[Violation]:
    if entry.target_ref.kind in target_ref.ROUTES:
        yield Violation(child(path, "targetRef.kind"), _NOT_ON_ROUTES, "kind")
        return
    yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), ("Mesh",))
    yield from _conf(entry.default, child(path, "default"))


def _rule(rule: RateLimitRule, path: str) -> Iterator[Violation]:
    yield from fields.matches(rule.matches, child(path, "matches"), needs_one=True)
    yield from _conf(rule.default, child(path, "default"))
    by_identity = any(match.spiffe_id for match in rule.matches)
    if by_identity and rule.default.local is not None and rule.default.local.tcp is not None:
        yield Violation(child(path, "default.local.tcp"), _NO_TCP_BY_IDENTITY, "forbidden")


def _conf(conf: RateLimitConf, path: str) -> Iterator[Violation]:
    at = child(path, "local")
    if conf.local is None:
        yield Violation(at, fields.MUST_BE_DEFINED, "required")
        return
    if conf.local.tcp is None and conf.local.http is None:
        yield Violation(at, "must have at least one defined: tcp, http", "required")
    if conf.local.http is not None:
        yield from _http(conf.local.http, child(at, "http"))
    if conf.local.tcp is not None:
        yield from _tcp(conf.local.tcp, child(at, "tcp"))


def _http(limit: HttpLimit, path: str) -> Iterator[Violation]:
    if limit == HttpLimit():
        yield Violation(
            path, "must have at least one defined: disabled, requestRate, onRateLimit", "required"
        )
    yield from _rate(limit.request_rate, child(path, "requestRate"))
    status = limit.on_rate_limit.status if limit.on_rate_limit is not None else None
    at = child(path, "onRateLimit.status")
    yield from fields.positive(status, at)
    if status:
        yield from fields.status(status, at)


def _tcp(limit: TcpLimit, path: str) -> Iterator[Violation]:
    if limit == TcpLimit():
        yield Violation(path, "must have at least one defined: disabled, connectionRate", "required")
    yield from _rate(limit.connection_rate, child(path, "connectionRate"))


def _rate(rate: Rate | None, path: str) -> Iterator[Violation]:
    if rate is None:
        return
    yield from fields.positive(rate.num, child(path, "num"))
    if duration.nanoseconds(rate.interval) <= _INTERVAL_NS_MIN:
        message = f"must be greater than: {duration.text(_INTERVAL_NS_MIN)}"
        yield Violation(child(path, "interval"), message, "range")


def warn(spec: MeshRateLimitSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED
    lists: list[tuple[str, Sequence[RateLimitFrom | RateLimitRule]]] = [
        ("from", spec.from_),
        ("rules", spec.rules),
    ]
    for field, entries in lists:
        for index, entry in enumerate(entries):
            http = entry.default.local.http if entry.default.local else None
            status = http.on_rate_limit.status if http and http.on_rate_limit else None
            if status is not None and status not in _STATUSES:
                at = f"spec.{field}[{index}].default.local.http.onRateLimit.status"
                yield f"{at}: Envoy cannot refuse a request with {status} and will answer with 429"


_HTTP: Final = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_NETWORK: Final = "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit"
_ALWAYS: Final = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
# The statuses of errors that Envoy has a word for; it takes no others.
_STATUSES: Final = frozenset(
    {*range(400, 418), *range(421, 425), 426, 428, 429, 431, *range(500, 509), 510, 511}
)


def inbound(conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """How many requests or connections one inbound takes."""
    if not context.is_http:
        return _connections(conf, context)
    rows = list(_for_some(conf, entries, context))
    if everybody := _of(conf):
        own = tuple(each for each in entries if each.for_everybody)
        rows.append((Caller(), _requests(_name(own), everybody, context)))
    return {"on_routes": {filters.LOCAL_RATELIMIT: by_caller.per_route(rows)}} if rows else {}


def _of(conf: Json, section: str = "http") -> Json:
    return (conf.get("local") or {}).get(section) or {}


def _for_some(
    conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext
) -> Iterator[tuple[Caller, Data]]:
    """What holds for some callers only, most specific first, with what wider entries say to the same."""
    for_some = [other for other in entries if _of(other.conf) and not other.for_everybody]
    for_some.sort(key=calling.specificity)
    distinct = {(other.spiffe_id, other.sni): other for other in for_some}
    for entry in reversed(distinct.values()):
        merged = _of(conf)
        for other in for_some:
            if calling.covers(other, entry):
                merged = _over(merged, _of(other.conf))
        yield calling.of_entry(entry), _requests(_name((entry,)), merged, context)


def _name(entries: tuple[InboundEntry, ...]) -> str:
    """The name of the most important of those who say it."""
    return entries[-1].kri or str(entries[-1].origin)


def _over(base: Json, more: Json) -> Json:
    if not (isinstance(base, Mapping) and isinstance(more, Mapping)):
        return more
    return {**base, **{name: _over(base.get(name), value) for name, value in more.items()}}


def _requests(name: str, limit: Json, context: OverlayContext) -> Data:
    rate, answer = limit.get("requestRate"), limit.get("onRateLimit") or {}
    config: Data = {"stat_prefix": context.name}
    if rate and not limit.get("disabled"):
        config |= {"token_bucket": _bucket(rate), "filter_enabled": _ALWAYS, "filter_enforced": _ALWAYS}
        if answer.get("status") in _STATUSES:
            config["status"] = {"code": answer["status"]}
        if added := headers.added(answer.get("headers") or {}):
            config["response_headers_to_add"] = added
        if context.protocol == "grpc":
            config["rate_limited_as_resource_exhausted"] = True
    return proto_json.extension(name, _HTTP, **config)


def _connections(conf: Json, context: OverlayContext) -> Overlay:
    limit = _of(conf, "tcp")
    rate = limit.get("connectionRate")
    if not rate or limit.get("disabled"):
        return {}
    # A permissive port has several chains of filters, which count together.
    config = proto_json.typed(
        _NETWORK, stat_prefix=context.name, token_bucket=_bucket(rate), share_key=context.name
    )
    return {"extensions": {filters.NETWORK_LOCAL_RATELIMIT: config}}


def _bucket(rate: Json) -> Data:
    num, interval = rate["num"], proto_json.seconds(rate["interval"])
    return {"max_tokens": num, "tokens_per_fill": num, "fill_interval": interval}


KIND = Kind(
    name="MeshRateLimit",
    plural="meshratelimits",
    short="mrl",
    doc=__doc__,
    spec=MeshRateLimitSpec,
    columns=columns.BOTH_WAYS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.RATE_LIMITS,
        has_to=True,
        has_from=True,
        has_rules=True,
        from_as_rules=True,
        hooks=PolicyHooks(inbound=inbound),
    ),
    clean=spelling.refs,
    v1=spelling.RULES,
    validate=validate,
    warn=warn,
)
