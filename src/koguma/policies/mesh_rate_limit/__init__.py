"""How much is enough: requests or connections that a proxy takes in a span of time.

MeshRateLimit acts on traffic that arrives at sidecars (`rules`, or the older `from`) and on traffic that
a built-in gateway sends on (`to`). Each proxy counts on its own, so a service of three instances takes
three times the limit. It cannot act on one route of a caller: the owner of a service knows how much it
bears, and a caller must not be able to raise that. A gateway counts itself, so there it can: with kind Mesh
in `to` the requests to one host name are counted together, with MeshHTTPRoute those that match one of its
rules. A limit of connections holds for listeners of protocol TCP and TLS.

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

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec

from koguma.model import columns, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_rate_limit import overlay
from koguma.policies.parts import fields, outbound_targets, spelling
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

    target_ref: Annotated[TargetRef, doc("Mesh, or a MeshHTTPRoute of the gateway.")]
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
    " in spec.rules; for a MeshHTTPRoute of a gateway, select the gateway (kind MeshGateway)"
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
        yield from _to(entry, top, item("spec.to", index))
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


def _to(entry: RateLimitTo, top: TargetRef, path: str) -> Iterator[Violation]:
    kinds = outbound_targets.gateway_kinds(top)
    if entry.target_ref.kind in target_ref.ROUTES and entry.target_ref.kind not in kinds:
        yield Violation(child(path, "targetRef.kind"), _NOT_ON_ROUTES, "kind")
        return
    yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), kinds)
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
    lists: list[tuple[str, Sequence[RateLimitTo | RateLimitFrom | RateLimitRule]]] = [
        ("to", spec.to),
        ("from", spec.from_),
        ("rules", spec.rules),
    ]
    for field, entries in lists:
        for index, entry in enumerate(entries):
            http = entry.default.local.http if entry.default.local else None
            status = http.on_rate_limit.status if http and http.on_rate_limit else None
            if status is not None and status not in overlay.STATUSES:
                at = f"spec.{field}[{index}].default.local.http.onRateLimit.status"
                yield f"{at}: Envoy cannot refuse a request with {status} and will answer with 429"


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
        hooks=PolicyHooks(inbound=overlay.inbound, gateway=overlay.gateway),
    ),
    clean=spelling.refs,
    v1=spelling.RULES,
    validate=validate,
    warn=warn,
)
