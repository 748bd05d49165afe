"""By caller: HTTP filters that do one thing to some callers and another to others, and come with the routes.

A listener keeps a place for such a filter that is switched off and costs requests nothing. What the filter
does, and to whom, stands in the routes: it is set, changed and taken away without touching a connection.
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

_COMPOSITE: Final = "envoy.extensions.filters.http.composite.v3"

# Without a certificate Envoy cannot tell whose it is and gives up on a whole list of conditions, also on what
# holds for everybody. This header, which the connection manager writes or takes away, says that there is one.
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


def place(name: str) -> Data:
    """A filter's place in a listener, switched off until routes say what it does."""
    return {"name": name, "disabled": True, "typed_config": proto_json.typed(f"{_COMPOSITE}.Composite")}


def per_route(rows: Iterable[tuple[Caller, Data]]) -> Data:
    """What the filter does, as routes say it: the first row that fits a caller holds.

    A row has a filter as an extension: a name, and its typed configuration.
    """
    return proto_json.typed(f"{_COMPOSITE}.CompositePerRoute", matcher=_matcher(rows))


def _matcher(rows: Iterable[tuple[Caller, Data]]) -> Data:
    made: Data = {}
    found = []
    for caller, filter_ in rows:
        if caller.is_anybody:
            made["on_no_match"] = _action(filter_)
            break
        predicate = {"and_matcher": {"predicate": [_HAS_CERTIFICATE, callers.predicate((caller,))]}}
        found.append({"predicate": predicate, "on_match": _action(filter_)})
    return {"matcher_list": {"matchers": found}, **made} if found else made


def _action(filter_: Data) -> Data:
    act = proto_json.extension("act", f"{_COMPOSITE}.ExecuteFilterAction", typed_config=filter_)
    return {"action": act}
