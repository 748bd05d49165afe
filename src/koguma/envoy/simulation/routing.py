"""Routing: which routes of a RouteConfiguration take a request, each with its share of such requests.

The virtual host follows from the host, the route is the first that matches. A route with a runtime fraction
takes a share, and the rest goes on to the next one: so a request may have several routes.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy.simulation import text_matching
from koguma.envoy.simulation.traffic import CONNECT, SimulatedRequest, Undecidable
from koguma.model.schema import Json

_DENOMINATORS: Final = {"HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}
_KNOWN: Final = frozenset(
    (
        *("prefix", "path", "path_separated_prefix", "safe_regex", "connect_matcher", "case_sensitive"),
        *("headers", "query_parameters", "grpc", "runtime_fraction", "filter_state", "tls_context"),
    )
)
FilterState = dict[str, str]


class RouteChoice(msgspec.Struct, frozen=True):
    """A route that takes a share of requests like this one; without a route, 404."""

    share: Fraction
    host: Json = None  # the virtual host; None where none is for the request's host
    route: Json = None


def choices(
    config: Json, request: SimulatedRequest, state: FilterState, *, has_tls: bool
) -> list[RouteChoice]:
    """The routes that take a request, with shares that add up to one."""
    host = virtual_host(config, request.host)
    left, chosen = Fraction(1), []
    for route in (host or {}).get("routes") or ():
        if not left or not _matches(route["match"], request, state, has_tls=has_tls):
            continue
        share = left * fraction((route["match"].get("runtime_fraction") or {}).get("default_value"))
        left -= share
        if share:
            chosen.append(RouteChoice(share, host, route))
    return [*chosen, RouteChoice(left, host)] if left else chosen


def virtual_host(config: Json, host: str) -> Json:
    """The virtual host of a host: an exact domain, the longest suffix, the longest prefix, then `*`."""
    name = host.lower()
    if config.get("ignore_port_in_host_matching"):
        name = name.partition(":")[0]
    ranked = (
        (rank, each)
        for each in config.get("virtual_hosts") or ()
        for domain in each.get("domains") or ()
        if (rank := _rank(domain.lower(), name)) is not None
    )
    return max(ranked, key=lambda pair: pair[0], default=(None, None))[1]


def _rank(domain: str, name: str) -> tuple[int, int] | None:
    """How closely a domain names a host; None where it does not."""
    if domain == name:
        return 3, 0
    if domain == "*":
        return 0, 0
    if domain.startswith("*") and name.endswith(domain[1:]) and len(name) >= len(domain):
        return 2, len(domain)
    if domain.endswith("*") and name.startswith(domain[:-1]) and len(name) >= len(domain):
        return 1, len(domain)
    return None


def fraction(value: Json) -> Fraction:
    """A FractionalPercent as a share; all where there is none."""
    if value is None:
        return Fraction(1)
    whole = _DENOMINATORS[value.get("denominator", "HUNDRED")]
    return min(Fraction(value.get("numerator", 0), whole), Fraction(1))


def _matches(match: Json, request: SimulatedRequest, state: FilterState, *, has_tls: bool) -> bool:
    unknown = sorted(set(match) - _KNOWN)
    if unknown:
        raise Undecidable(f"a route that matches by {', '.join(unknown)} is not known")
    return (
        _is_path(match, request)
        and all(text_matching.has_header(each, request) for each in match.get("headers") or ())
        and all(text_matching.has_parameter(each, request) for each in match.get("query_parameters") or ())
        and ("grpc" not in match or request.is_grpc)
        and ("tls_context" not in match or match["tls_context"].get("presented", has_tls) == has_tls)
        and all(_is_state(each, state) for each in match.get("filter_state") or ())
    )


def _is_state(matcher: Json, state: FilterState) -> bool:
    value = state.get(matcher["key"])
    return value is not None and text_matching.is_text(matcher["string_match"], value)


def _is_path(match: Json, request: SimulatedRequest) -> bool:
    if request.method == CONNECT:
        return "connect_matcher" in match
    path = request.bare_path
    for kind, written in _path_conditions(match):
        wanted = written
        if not match.get("case_sensitive", True):
            path, wanted = path.lower(), written.lower()
        match kind:
            case "prefix":
                return path.startswith(wanted)
            case "path":
                return path == wanted
            case _:
                return path == wanted or path.startswith(f"{wanted}/")
    if "safe_regex" in match:
        return text_matching.full_match(match["safe_regex"]["regex"], path)
    return "connect_matcher" not in match


def _path_conditions(match: Json) -> Iterator[tuple[str, str]]:
    for kind in ("prefix", "path", "path_separated_prefix"):
        if kind in match:
            yield kind, match[kind]
