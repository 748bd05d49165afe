"""CORS: which other origins a browser lets call a route, as the policy of Envoy's cors filter.

Envoy answers preflights of allowed origins itself, and those of others too, without allowing their origin; it
never asks a backend about them. It names the caller's origin and never `*`, and where all methods or headers
are allowed it names those that the preflight asks for, so that browsers take it beside credentials.
"""

import re
from collections.abc import Iterator
from typing import Final

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

TYPE: Final = "CORS"
CONFIG: Final = proto_json.typed("envoy.extensions.filters.http.cors.v3.Cors")  # does nothing by itself
_ANY: Final = "*"
_AGE_SECONDS: Final = 5
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_WILDCARD: Final = "[^/:]+"  # one label or several


def of(filters: Json) -> Json:
    """The CORS configuration among filters; None where there is none."""
    return next((each.get("cors") or {} for each in filters or () if each.get("type") == TYPE), None)


def policy(cors: Json) -> Data:
    """The configuration of a route for Envoy's cors filter."""
    age = cors.get("maxAge")
    fields: Data = {
        "allow_origin_string_match": list(_origins(cors)),
        "max_age": str(_AGE_SECONDS if age is None else age),
        "forward_not_matching_preflights": False,
    }
    left_out = dict(problems(cors))
    for field, name in (
        ("allowMethods", "allow_methods"),
        ("allowHeaders", "allow_headers"),
        ("exposeHeaders", "expose_headers"),
    ):
        values = cors.get(field) or ()
        if values and field not in left_out:
            fields[name] = _ANY if _ANY in values else ", ".join(values)
    if cors.get("allowCredentials"):
        fields["allow_credentials"] = True
    return proto_json.typed("envoy.extensions.filters.http.cors.v3.CorsPolicy", **fields)


def problems(cors: Json) -> Iterator[tuple[str, str]]:
    """What of a configuration cannot be done: the field, which is left out, and why."""
    if cors.get("allowCredentials") and _ANY in (cors.get("exposeHeaders") or ()):
        yield "exposeHeaders", "beside credentials browsers take * for a name; write the names of the headers"


def _origins(cors: Json) -> Iterator[Data]:
    for origin in cors.get("allowOrigins") or ():
        if origin == _ANY:
            yield {"safe_regex": {"regex": ".*"}}
            continue
        scheme, _, host = origin.lower().partition("://")
        host = host.removesuffix(_DEFAULT_PORTS.get(scheme, ":"))  # browsers do not write it
        if _ANY in host:
            pattern = _WILDCARD.join(re.escape(part) for part in host.split(_ANY))
            yield {"safe_regex": {"regex": f"{re.escape(scheme)}://{pattern}"}}
        else:
            yield {"exact": f"{scheme}://{host}"}


def preflight(match: Json) -> Json:
    """The match of preflights that ask for a rule's method, which are OPTIONS; None where it takes them."""
    method = match.get("method")
    if not method or method == "OPTIONS":
        return None
    origin, asked = {"name": "origin", "type": "Present"}, "access-control-request-method"
    headers = [*(match.get("headers") or ()), origin, {"name": asked, "type": "Exact", "value": method}]
    return {**match, "method": "OPTIONS", "headers": headers}
