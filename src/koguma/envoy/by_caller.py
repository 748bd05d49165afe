"""By caller: HTTP filters with a configuration for each sort of caller, which comes with the routes.

The listener has such a filter disabled, which costs requests nothing. Its configuration, and for which
callers, is in the routes (Composite filter): it is set, changed and removed without closing a connection.
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

_COMPOSITE: Final = "envoy.extensions.filters.http.composite.v3"

# Without a client certificate the URI input has no value, and Envoy stops at the whole matcher, its default
# included. This header, which the connection manager sets or removes, tells that there is a certificate.
_HAS_CERTIFICATE: Final[Data] = {
    "single_predicate": {
        "input": proto_json.extension(
            "envoy.matching.inputs.request_headers",
            "envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
            header_name="x-forwarded-client-cert",
        ),
        "value_match": {"safe_regex": {"google_re2": {}, "regex": ".+"}},
    }
}


def disabled_filter(name: str) -> Data:
    """A filter of a listener, disabled until routes configure it."""
    return {"name": name, "disabled": True, "typed_config": proto_json.typed(f"{_COMPOSITE}.Composite")}


def per_route(rows: Iterable[tuple[Caller, Data]]) -> Data:
    """The configuration of the filter for routes: the first row that matches a caller applies.

    A row has the filter as a TypedExtensionConfig.
    """
    return proto_json.typed(f"{_COMPOSITE}.CompositePerRoute", matcher=_matcher(rows))


def _matcher(rows: Iterable[tuple[Caller, Data]]) -> Data:
    default: Data = {}
    matchers = []
    for caller, filter_ in rows:
        if caller.is_anybody:
            default["on_no_match"] = _action(filter_)
            break
        predicate = {"and_matcher": {"predicate": [_HAS_CERTIFICATE, callers.predicate((caller,))]}}
        matchers.append({"predicate": predicate, "on_match": _action(filter_)})
    return {"matcher_list": {"matchers": matchers}, **default} if matchers else default


def _action(filter_: Data) -> Data:
    act = proto_json.extension("act", f"{_COMPOSITE}.ExecuteFilterAction", typed_config=filter_)
    return {"action": act}
