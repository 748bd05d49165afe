"""HTTP filters: which of them answer a request, before the router sends it on.

A filter that this module does not know may do anything, so the request's fate is undecided from there on.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy import snapshot
from koguma.envoy.simulation import forwarding, matchers, routing, text_matching
from koguma.envoy.simulation.ending import ProxyEnding, Side
from koguma.envoy.simulation.matchers import MatchInputs
from koguma.envoy.simulation.traffic import SimulatedRequest, Undecidable
from koguma.model.schema import Json

Resources = Callable[[str, str], Json]  # the data of a resource by type and name; None where there is none

_HTTP: Final = "envoy.extensions.filters.http."
_ROUTER: Final = f"{_HTTP}router.v3.Router"
_STATE: Final = f"{_HTTP}set_filter_state.v3.Config"
# What changes neither where a request goes nor whether it does.
_HARMLESS: Final = frozenset(
    f"{_HTTP}{name}"
    for name in (
        "grpc_stats.v3.FilterConfig",
        "set_filter_state.v3.Config",
        "stateful_session.v3.StatefulSession",
        "compressor.v3.Compressor",
        "decompressor.v3.Decompressor",
        "header_to_metadata.v3.Config",
        "buffer.v3.Buffer",
    )
)
_FORBIDDEN: Final = 403
_FORMATS: Final = ("%DOWNSTREAM_PEER_URI_SAN%", "%REQUESTED_SERVER_NAME%")


class FilterContext(msgspec.Struct, frozen=True):
    """What filters look at: the request, its connection, and the messages that configure them per route."""

    inputs: MatchInputs
    request: SimulatedRequest
    levels: Sequence[Json]  # weighted cluster, route, virtual host, route configuration: as far as there are
    resources: Resources


class FilterPass(msgspec.Struct, frozen=True):
    """A share of requests that filters let through, maybe with other headers."""

    share: Fraction
    side: Side = Side()
    mutations: tuple[Json, ...] = ()  # of the request's headers


Verdicts = Iterator[ProxyEnding | FilterPass]


def state(filters: Sequence[Json], inputs: MatchInputs) -> routing.FilterState:
    """What filters write into the filter state, which routes may match."""
    written: routing.FilterState = {}
    for each in filters:
        config = each.get("typed_config") or {}
        if matchers.type_of(config) == _STATE:
            for value in config.get("on_request_headers") or ():
                written[value["object_key"]] = _formatted(value, inputs)
    return written


def _formatted(value: Json, inputs: MatchInputs) -> str:
    text_source = (value.get("format_string") or {}).get("text_format_source") or {}
    source = str(text_source.get("inline_string", ""))
    identity = inputs.connection.identity
    texts = (",".join(identity.uris) if identity else "", inputs.connection.server_name)
    for name, text in zip(_FORMATS, texts, strict=True):
        source = source.replace(name, text or "-")
    return source


def walk(filters: Sequence[Json], context: FilterContext) -> Verdicts:
    """What the filters do with a request: shares that end here, and the share that passes."""
    passing = FilterPass(Fraction(1))
    for each in filters:
        config = _config(each, context)
        if config is None:
            continue
        if matchers.type_of(config) == _ROUTER:
            break
        following = None
        for verdict in _verdicts(each["name"], config, context):
            scaled = msgspec.structs.replace(verdict, share=verdict.share * passing.share)
            if isinstance(scaled, FilterPass):
                following = msgspec.structs.replace(
                    scaled,
                    side=passing.side.joined(scaled.side),
                    mutations=(*passing.mutations, *scaled.mutations),
                )
            else:
                yield scaled
        if following is None:
            return
        passing = following
    yield passing


def _config(filter_: Json, context: FilterContext) -> Json:
    """The configuration with which a filter acts on a request; None where it does not act."""
    name = filter_["name"]
    on_route = next(
        (
            level["typed_per_filter_config"][name]
            for level in context.levels
            if name in (level.get("typed_per_filter_config") or {})
        ),
        None,
    )
    if on_route is not None and matchers.type_of(on_route) == "envoy.config.route.v3.FilterConfig":
        if on_route.get("disabled"):
            return None
        on_route = on_route.get("config")
    if filter_.get("disabled") and on_route is None:
        return None
    if "config_discovery" in filter_:
        sent_apart = context.resources(snapshot.EXTENSION, name)
        if sent_apart is None:
            raise Undecidable(f'the filter "{name}" has no configuration yet')
        return sent_apart["typed_config"]
    own = dict(filter_.get("typed_config") or {})
    return {**own, "on_route": on_route} if on_route is not None else own


def _verdicts(name: str, config: Json, context: FilterContext) -> Verdicts:
    type_ = matchers.type_of(config)
    if type_ in _HARMLESS:
        yield FilterPass(Fraction(1))
        return
    evaluate = _FILTERS.get(type_.removeprefix(_HTTP))
    if evaluate is None:
        raise Undecidable(f'the HTTP filter "{name}" ({type_ or "of no known type"}) may do anything')
    yield from evaluate(name, config, context)


def _rbac(_name: str, config: Json, context: FilterContext) -> Verdicts:
    on_route = (config.get("on_route") or {}).get("rbac")
    decision = decided(on_route if on_route is not None else config, context.inputs)
    if decision.is_allowed:
        yield FilterPass(Fraction(1), decision.side)
        return
    yield ProxyEnding(Fraction(1), "denied", decision.by, status=_FORBIDDEN)


class RbacDecision(msgspec.Struct, frozen=True):
    """What RBAC says about a caller, and the policy that says so."""

    is_allowed: bool
    by: str = ""
    notes: tuple[str, ...] = ()

    @property
    def side(self) -> Side:
        """The same for a caller who is let in."""
        return Side(notes=self.notes, permits=(self.by,) if self.by else ())


def decided(config: Json, inputs: MatchInputs) -> RbacDecision:
    """The decision of an RBAC filter, of HTTP or of connections."""
    if "rules" in config:
        raise Undecidable("an RBAC filter with rules instead of a matcher is not known")
    if "matcher" not in config:
        return RbacDecision(is_allowed=True)
    action = matchers.action(config["matcher"], inputs)
    if action is None:
        return RbacDecision(is_allowed=False)
    is_allowed = action.get("action", "ALLOW") in ("ALLOW", "LOG")
    shadow = matchers.action(config["shadow_matcher"], inputs) if "shadow_matcher" in config else None
    is_planned = (shadow or {}).get("action") == "DENY"
    notes = (f"{(shadow or {}).get('name')} plans to deny this",) if is_planned else ()
    return RbacDecision(is_allowed, action.get("name", ""), notes)


def _composite(_name: str, config: Json, context: FilterContext) -> Verdicts:
    matcher = (config.get("on_route") or {}).get("matcher") or config.get("matcher")
    action = matchers.action(matcher, context.inputs) if matcher else None
    if action is None:
        yield FilterPass(Fraction(1))
        return
    chosen = action.get("typed_config")
    if chosen is None:
        raise Undecidable("a composite filter with an action that is not known")
    yield from _verdicts(chosen["name"], chosen["typed_config"], context)


def _fault(name: str, config: Json, context: FilterContext) -> Verdicts:
    if not all(text_matching.has_header(each, context.request) for each in config.get("headers") or ()):
        yield FilterPass(Fraction(1))
        return
    delay, abort, slow = config.get("delay"), config.get("abort"), config.get("response_rate_limit")
    faults = []
    if delay:
        faults.append(f"{_percent(_share(delay))} delayed by {delay['fixed_delay']} ({name})")
    if slow:
        speed = (slow.get("fixed_limit") or {}).get("limit_kbps", "?")
        faults.append(f"{_percent(_share(slow))} of responses slowed to {speed} KiB/s ({name})")
    aborted = _share(abort) if abort else Fraction(0)
    if abort and "http_status" not in abort:
        raise Undecidable(f'the fault filter "{name}" aborts by a header or with a status of gRPC')
    if abort and aborted:
        yield ProxyEnding(
            aborted,
            "aborted",
            name,
            "an injected fault",
            abort["http_status"],
            side=Side(faults=tuple(faults)),
        )
    if aborted < 1:
        yield FilterPass(1 - aborted, Side(faults=tuple(faults)))


def _share(fault: Json) -> Fraction:
    return routing.fraction(fault.get("percentage") or {})


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):g} %"


def _rate_limit(name: str, config: Json, _context: FilterContext) -> Verdicts:
    own = config.get("on_route") or config
    bucket = own.get("token_bucket")
    if not bucket:
        yield FilterPass(Fraction(1))
        return
    tokens = bucket.get("tokens_per_fill", 1)
    status = (own.get("status") or {}).get("code", "TooManyRequests")
    text = f"{tokens} requests per {bucket['fill_interval']}, then {status} ({name})"
    yield FilterPass(Fraction(1), Side(limits=(text,)))


def _cors(_name: str, config: Json, context: FilterContext) -> Verdicts:
    policy, request = config.get("on_route"), context.request
    asks = request.header("origin") is not None and request.header("access-control-request-method")
    if policy is None or request.method != "OPTIONS" or not asks:
        yield FilterPass(Fraction(1))
        return
    origins = policy.get("allow_origin_string_match") or ()
    is_allowed = any(text_matching.is_text(each, request.header("origin") or "") for each in origins)
    if not is_allowed and policy.get("forward_not_matching_preflights", True):
        yield FilterPass(Fraction(1))
        return
    text = "the preflight is answered by the proxy" + ("" if is_allowed else ", which allows no such origin")
    yield ProxyEnding(Fraction(1), "answered", "envoy.filters.http.cors", text, 200)


def _header_mutation(_name: str, config: Json, _context: FilterContext) -> Verdicts:
    own = [config, config.get("on_route") or {}]
    mutations = [each.get("mutations") or {} for each in own]
    of_request = tuple(each for one in mutations for each in one.get("request_mutations") or ())
    of_response = tuple(
        change
        for one in mutations
        for each in one.get("response_mutations") or ()
        for change in forwarding.header_changes(each)
    )
    yield FilterPass(Fraction(1), Side(response_headers=of_response), of_request)


_FILTERS: Final[dict[str, Callable[[str, Json, FilterContext], Verdicts]]] = {
    "rbac.v3.RBAC": _rbac,
    "composite.v3.Composite": _composite,
    "fault.v3.HTTPFault": _fault,
    "local_ratelimit.v3.LocalRateLimit": _rate_limit,
    "cors.v3.Cors": _cors,
    "header_mutation.v3.HeaderMutation": _header_mutation,
}
