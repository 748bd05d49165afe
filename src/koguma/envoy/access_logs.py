"""Access logs: which requests and connections a logger writes about, as filters that Envoy evaluates.

Conditions are expressions of CEL. One about a caller looks at the URIs of its certificate, which CEL does not
see but for the first: a network filter writes all of them down when the TLS handshake is over.
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy import callers, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

# A pipe in the directory in which the agent beside Envoy starts it. The agent reads lines from it, each a
# JSON object with a message and the address that it is for.
PIPE: Final = "kuma-access-log.pipe"

CALLER_FILTER: Final = "envoy.filters.network.set_filter_state"

_FILE: Final = "envoy.extensions.access_loggers.file.v3.FileAccessLog"
_URIS_KEY: Final = "koguma.connected_caller"


def file(path: str, format_: Data) -> Data:
    """A logger that writes to a file, or to a pipe; `format_` is a SubstitutionFormatString."""
    return proto_json.extension("envoy.access_loggers.file", _FILE, path=path, log_format=format_)


def on_routes(log: Data, names: Iterable[str]) -> Data:
    """The logger, for requests that took one of these routes."""
    return _filtered(log, f"xds.route_name in [{_listed(names)}]")


def not_on_routes(log: Data, names: Iterable[str]) -> Data:
    """The logger, for requests that took another route, or none."""
    return _filtered(log, f"!has(xds.route_name) || !(xds.route_name in [{_listed(names)}])")


def from_caller(log: Data, caller: Caller) -> Data:
    """The logger, for calls of some callers; the listener needs the filter of `caller_filter`."""
    found = [
        f"string(filter_state[{_text(_URIS_KEY)}]).matches({_text(f'^{uri.pattern}$')})"
        for uri in caller.uris
    ]
    if caller.server_name:
        found.append(f"connection.requested_server_name == {_text(caller.server_name)}")
    return _filtered(log, " && ".join(found))


def caller_filter() -> Data:
    """The network filter that writes down who calls."""
    uris = {
        "object_key": _URIS_KEY,
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": callers.URIS}},
    }
    type_ = "envoy.extensions.filters.network.set_filter_state.v3.Config"
    return proto_json.typed(type_, on_downstream_tls_handshake=[uris])


def _filtered(log: Data, expression: str) -> Data:
    more = {
        "extension_filter": proto_json.extension(
            "envoy.access_loggers.extension_filters.cel",
            "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=expression,
            cel_config={"enable_string_conversion": True},
        )
    }
    own = log.get("filter")
    return {**log, "filter": {"and_filter": {"filters": [own, more]}} if own else more}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_text, names))


def _text(text: str) -> str:
    """A text as CEL writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
