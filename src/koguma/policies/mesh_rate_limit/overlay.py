"""What rate limits mean to Envoy: on an inbound by caller, on a built-in gateway by host name and route."""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.envoy import by_caller, filters, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext
from koguma.model.schema import Json
from koguma.policies.parts import calling, headers

_HTTP: Final = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_NETWORK: Final = "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit"
_ALWAYS: Final = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
# The statuses of errors that Envoy has a word for; it takes no others.
STATUSES: Final = frozenset(
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


def gateway(conf: Json, context: OverlayContext) -> Overlay:
    """How many requests, or connections, a built-in gateway sends on."""
    if not context.is_http:
        return _connections(conf, context)
    limit = _of(conf)
    if not limit:
        return {}
    config = _requests(filters.LOCAL_RATELIMIT, limit, context)
    return {"on_routes": {filters.LOCAL_RATELIMIT: by_caller.per_route(((Caller(), config),))}}


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
        if answer.get("status") in STATUSES:
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
