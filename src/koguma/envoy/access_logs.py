"""Access logs: which requests and connections an access log records, as filters in CEL.

CEL sees only the first URI SAN of a client certificate. For conditions about callers a network filter stores
all of them in the filter state after the TLS handshake (`caller_filter`).
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy import callers, names, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data

# A pipe in Envoy's working directory. The agent reads lines from it, each a JSON object with a message and
# the address of the log server that it is for.
PIPE: Final = "kuma-access-log.pipe"

CALLER_FILTER: Final = "envoy.filters.network.set_filter_state"

_FILE: Final = "envoy.extensions.access_loggers.file.v3.FileAccessLog"
_URIS_KEY: Final = "koguma.connected_caller"


def file(path: str, format_: Data) -> Data:
    """An access log to a file; `format_` is a SubstitutionFormatString."""
    return proto_json.extension("envoy.access_loggers.file", _FILE, path=path, log_format=format_)


def sink(pipe: str, format_: Data) -> Data:
    """An access log whose lines the agent forwards: the sink, which in Envoy is a pipe and no cluster.

    One pipe serves all listeners. A cluster to the agent would need a connection for each format and thread.
    """
    return {**file(pipe, format_), "name": names.ACCESS_LOG_SINK}


def on_routes(log: Data, names: Iterable[str]) -> Data:
    """The access log, for requests of these routes only."""
    return _filtered(log, f"xds.route_name in [{_listed(names)}]")


def not_on_routes(log: Data, names: Iterable[str]) -> Data:
    """The access log, for requests of other routes, or of none."""
    return _filtered(log, f"!has(xds.route_name) || !(xds.route_name in [{_listed(names)}])")


def on_virtual_host(log: Data, name: str) -> Data:
    """The access log, for requests of one virtual host only."""
    return _filtered(log, f"has(xds.virtual_host_name) && xds.virtual_host_name == {_text(name)}")


def from_caller(log: Data, caller: Caller) -> Data:
    """The access log, for some callers only; the listener needs `caller_filter`."""
    conditions = [
        f"string(filter_state[{_text(_URIS_KEY)}]).matches({_text(f'^{uri.pattern}$')})"
        for uri in caller.uris
    ]
    if caller.server_name:
        conditions.append(f"connection.requested_server_name == {_text(caller.server_name)}")
    return _filtered(log, " && ".join(conditions))


def caller_filter() -> Data:
    """The network filter that stores the URI SANs of the caller."""
    uris = {
        "object_key": _URIS_KEY,
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": callers.URIS}},
    }
    type_ = "envoy.extensions.filters.network.set_filter_state.v3.Config"
    return proto_json.typed(type_, on_downstream_tls_handshake=[uris])


def _filtered(log: Data, expression: str) -> Data:
    cel = {
        "extension_filter": proto_json.extension(
            "envoy.access_loggers.extension_filters.cel",
            "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=expression,
            cel_config={"enable_string_conversion": True},
        )
    }
    own = log.get("filter")
    return {**log, "filter": {"and_filter": {"filters": [own, cel]}} if own else cel}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_text, names))


def _text(text: str) -> str:
    """A string literal of CEL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
