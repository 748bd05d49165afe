"""Matchers: Envoy's generic matching API (xds.type.matcher.v3.Matcher), with which RBAC and others decide.

An input may have no value: the certificate of a client that shows none. Then Envoy cannot tell, and stops at
the whole matcher, its default included.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from koguma.envoy.simulation import text_matching
from koguma.envoy.simulation.traffic import ClientConnection, SimulatedRequest, Undecidable
from koguma.model.schema import Json

_URIS: Final = "envoy.extensions.matching.common_inputs.ssl.v3.UriSanInput"
_SERVER_NAME: Final = "envoy.extensions.matching.common_inputs.network.v3.ServerNameInput"
_HEADER: Final = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"


class _NoValue(Exception):
    """An input has no value."""


class MatchInputs(NamedTuple):
    """What matchers may ask about: the connection, and the request where there is one."""

    connection: ClientConnection
    request: SimulatedRequest | None = None


def type_of(config: Json) -> str:
    """The name of the message in an Any."""
    return str((config or {}).get("@type", "")).rpartition("/")[2]


def action(matcher: Json, inputs: MatchInputs) -> Json:
    """The configuration of the action that a matcher chooses; None where it chooses none."""
    try:
        return _action(matcher, inputs)
    except _NoValue:
        return None


def _action(matcher: Json, inputs: MatchInputs) -> Json:
    if "matcher_tree" in matcher:
        return _on_match(_branch(matcher["matcher_tree"], inputs) or matcher.get("on_no_match"), inputs)
    for each in (matcher.get("matcher_list") or {}).get("matchers") or ():
        if _holds(each["predicate"], inputs):
            return _on_match(each["on_match"], inputs)
    return _on_match(matcher.get("on_no_match"), inputs)


def _branch(tree: Json, inputs: MatchInputs) -> Json:
    if "exact_match_map" not in tree:
        raise Undecidable(f"a matcher tree with {', '.join(sorted(tree))} is not known")
    value = _value(tree["input"], inputs)
    return None if value is None else (tree["exact_match_map"].get("map") or {}).get(value)


def _on_match(on_match: Json, inputs: MatchInputs) -> Json:
    if on_match is None:
        return None
    if "matcher" in on_match:
        return _action(on_match["matcher"], inputs)
    return on_match["action"]["typed_config"]


def _holds(predicate: Json, inputs: MatchInputs) -> bool:
    match next(iter(predicate)):
        case "single_predicate":
            return _single(predicate["single_predicate"], inputs)
        case "not_matcher":
            return not _holds(predicate["not_matcher"], inputs)
        case "and_matcher":
            return all(_holds(each, inputs) for each in predicate["and_matcher"]["predicate"])
        case "or_matcher":
            return _any(predicate["or_matcher"]["predicate"], lambda each: _holds(each, inputs))
        case other:
            raise Undecidable(f'a predicate "{other}" is not known')


def _any(predicates: Json, holds: Callable[[Json], bool]) -> bool:
    """One that holds is enough; without any, one that has no value leaves the whole undecided."""
    lacks_value = False
    for each in predicates:
        try:
            if holds(each):
                return True
        except _NoValue:
            lacks_value = True
    if lacks_value:
        raise _NoValue
    return False


def _single(predicate: Json, inputs: MatchInputs) -> bool:
    value = _value(predicate["input"], inputs)
    if "value_match" not in predicate:
        raise Undecidable("a custom match of a predicate is not known")
    return value is not None and text_matching.is_text(predicate["value_match"], value)


def _value(input_: Json, inputs: MatchInputs) -> str | None:
    config = input_["typed_config"]
    connection, request = inputs
    match type_of(config):
        case name if name == _URIS:
            if connection.identity is None:
                raise _NoValue
            return ",".join(connection.identity.uris)
        case name if name == _SERVER_NAME:
            return connection.server_name or None
        case name if name == _HEADER and request is not None:
            return request.header(str(config["header_name"]).lower())
        case other:
            raise Undecidable(f'the input "{other}" of a matcher is not known')
