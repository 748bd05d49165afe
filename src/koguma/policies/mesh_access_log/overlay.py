"""What logging means to Envoy: MeshAccessLog's backends as loggers, each with its format filled in.

Placeholders become what Envoy itself knows of a call. Which service calls is written in the caller's node,
and seen on the other side in its certificate, so that one configuration serves all callers. Lines for a TCP
address go through a pipe to the agent beside Envoy, which keeps the connection.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from koguma.envoy import access_logs, operators, proto_json
from koguma.envoy.proto_json import Data
from koguma.model import kri
from koguma.model.overlay import NO_DATA, InboundEntry, Overlay, OverlayContext
from koguma.model.schema import Json
from koguma.policies.parts import calling, collectors
from koguma.policies.parts.collectors import UnknownCollector

HTTP_FORMAT: Final = (
    '[%START_TIME%] %KUMA_MESH% "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%"'
    " %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%"
    " %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"
    ' "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-B3-TRACEID?X-DATADOG-TRACEID)%"'
    ' "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%KUMA_SOURCE_SERVICE%" "%KUMA_DESTINATION_SERVICE%"'
    ' "%KUMA_SOURCE_ADDRESS_WITHOUT_PORT%" "%UPSTREAM_HOST%"'
)
NETWORK_FORMAT: Final = (
    "[%START_TIME%] %RESPONSE_FLAGS% %KUMA_MESH% %KUMA_SOURCE_ADDRESS_WITHOUT_PORT%(%KUMA_SOURCE_SERVICE%)"
    "->%UPSTREAM_HOST%(%KUMA_DESTINATION_SERVICE%) took %DURATION%ms, sent %BYTES_SENT% bytes,"
    " received: %BYTES_RECEIVED% bytes"
)
PLACEHOLDERS: Final = (
    "KUMA_MESH",
    "KUMA_ZONE",
    "KUMA_TRAFFIC_DIRECTION",
    "KUMA_SOURCE_SERVICE",
    "KUMA_SOURCE_ADDRESS",
    "KUMA_SOURCE_ADDRESS_WITHOUT_PORT",
    "KUMA_DESTINATION_SERVICE",
)

_OTEL: Final = "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig"
_DEFAULT: Final = "MeshAccessLog"

_OWN_SERVICE: Final = "%CEL(xds.node.cluster)%"
# The first URI of a proxy's certificate is its service; a caller without one is unknown.
_CALLING_SERVICE: Final = (
    "%CEL(connection.mtls ?"
    " re.extract(connection.uri_san_peer_certificate, '^spiffe://[^/]+/(.+)$', '\\\\1') : 'unknown')%"
)


_Addition = tuple[str, str, Any]  # a part of an overlay, and a name in it with what it means


class BadFormat(ValueError):
    """A format that Envoy would refuse, or that would read or write what the proxy does not allow."""


class _Call(msgspec.Struct, frozen=True):
    """What a line is about: where it is written, and what placeholders mean there."""

    context: OverlayContext
    values: Mapping[str, str]

    def text(self, format_: str) -> str:
        """A format with its placeholders filled in."""
        for problem in format_problems(format_):
            raise BadFormat(f"the format {problem}")
        if operators.reads_environment(format_) and not self.context.machine.reads_data:
            raise BadFormat(f"the format {NO_DATA}")
        return "".join(self._part(part) for part in operators.parts(format_))

    def _part(self, part: operators.Command | str) -> str:
        if isinstance(part, operators.Command) and part.is_one_of(PLACEHOLDERS):
            return self.values[part.name]
        return str(part)

    @property
    def default(self) -> str:
        """The format of a backend that has none of its own."""
        return HTTP_FORMAT if self.context.is_http else NETWORK_FORMAT


def format_problems(format_: str) -> Iterator[str]:
    """What is wrong with a format, a sentence for each."""
    return operators.problems(format_, PLACEHOLDERS)


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """Lines about calls to others."""
    return _overlay(_backends(conf, _call_to_others(context), _DEFAULT))


def inbound(conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """Lines about calls that arrive: of everybody, and beside them those of some callers."""
    call = _call_that_arrives(context)
    # Of entries for the very same callers the most important one, which comes last, says where lines go.
    for_some = {(each.spiffe_id, each.sni): each for each in entries if not each.for_everybody}
    overlay = _overlay((*_backends(conf, call, _DEFAULT), *_of_some_callers(for_some.values(), call)))
    if not for_some:
        return overlay
    return {**overlay, "network_filters": {access_logs.CALLER_FILTER: access_logs.caller_filter()}}


def _of_some_callers(entries: Iterable[InboundEntry], call: _Call) -> Iterator[_Addition]:
    for index, entry in enumerate(entries):
        caller = calling.of_entry(entry)
        for part, name, value in _backends(entry.conf, call, f"{_DEFAULT} of callers {index}"):
            yield part, name, access_logs.from_caller(value, caller) if part == "access_logs" else value


def _overlay(added: Iterable[_Addition]) -> Overlay:
    overlay: Data = {}
    for part, name, value in added:
        overlay.setdefault(part, {})[name] = value
    return overlay


def _call_to_others(context: OverlayContext) -> _Call:
    addresses = ("UPSTREAM_LOCAL_ADDRESS", "DOWNSTREAM_REMOTE_ADDRESS")
    values = {
        **_values(context, "OUTBOUND"),
        "KUMA_SOURCE_SERVICE": _OWN_SERVICE,
        "KUMA_SOURCE_ADDRESS": _first_of(*addresses),
        "KUMA_SOURCE_ADDRESS_WITHOUT_PORT": _first_of(*(f"{each}_WITHOUT_PORT" for each in addresses)),
        # A gateway sends on to many services; which one, a format can say with UPSTREAM_CLUSTER.
        "KUMA_DESTINATION_SERVICE": "*" if context.is_gateway else _named(context.name),
    }
    return _Call(context, values)


def _call_that_arrives(context: OverlayContext) -> _Call:
    values = {
        **_values(context, "INBOUND"),
        "KUMA_SOURCE_SERVICE": "unknown" if context.is_gateway else _CALLING_SERVICE,
        "KUMA_SOURCE_ADDRESS": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
        "KUMA_SOURCE_ADDRESS_WITHOUT_PORT": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
        "KUMA_DESTINATION_SERVICE": (
            _OWN_SERVICE if context.is_gateway else operators.escaped(context.service)
        ),
    }
    return _Call(context, values)


def _values(context: OverlayContext, direction: str) -> dict[str, str]:
    return {
        "KUMA_MESH": operators.escaped(context.mesh),
        "KUMA_ZONE": operators.escaped(context.zone),
        "KUMA_TRAFFIC_DIRECTION": direction,
    }


def _first_of(*commands: str) -> str:
    """The value of the first command that has one: a call that was never connected has no address there."""
    return f"%COALESCE({json.dumps({'operators': commands})})%"


def _named(name: str) -> str:
    """The service that an outbound is for."""
    return kri.parse(name).name if kri.is_kri(name) else operators.escaped(name)


def _backends(conf: Json, call: _Call, name: str) -> Iterator[_Addition]:
    for index, backend in enumerate(conf.get("backends") or ()):
        try:
            yield from _backend(backend, call, f"{name} {index}")
        except (BadFormat, UnknownCollector) as error:
            yield "problems", f"{name}: backends[{index}]", str(error)


def _backend(backend: Json, call: _Call, name: str) -> Iterator[_Addition]:
    match backend["type"]:
        case "File":
            file = backend["file"]
            if not call.context.machine.may_write(file["path"]):
                raise BadFormat(call.context.machine.refusal(file["path"]))
            yield "access_logs", name, access_logs.file(file["path"], _format(file.get("format"), call))
        case "Tcp":
            if call.context.log_pipe:  # else the agent beside Envoy is one that sends no lines on
                yield "access_logs", name, _tcp(backend["tcp"], call)
        case "OpenTelemetry":
            yield from _otel(backend["openTelemetry"], call, name)


def _format(form: Json, call: _Call) -> Data:
    """A SubstitutionFormatString for a file."""
    line = _line(form, call)
    format_string: Data = {"json_format": line} if isinstance(line, dict) else _text_format(f"{line}\n")
    return {**format_string, **_omit_empty_values(form)}


def _text_format(text: str) -> Data:
    return {"text_format_source": {"inline_string": text}}


def _line(form: Json, call: _Call) -> Any:
    """A line: text, or the fields of an object."""
    if not form:
        return call.text(call.default)
    if form["type"] == "Plain":
        return call.text(form["plain"])
    return {unquoted(pair["key"]): call.text(unquoted(pair["value"])) for pair in form["json"]}


def _omit_empty_values(form: Json) -> Data:
    return {"omit_empty_values": True} if form and form.get("omitEmptyValues") else {}


def unquoted(text: str) -> str:
    """Fields are written as they would stand between quotes in JSON."""
    return str(json.loads(f'"{text}"'))


def _tcp(tcp: Json, call: _Call) -> Data:
    """A logger that tells the agent beside Envoy what to send, and where."""
    form = tcp.get("format")
    line = _line(form, call)
    # What reads the pipe sends a text as it is, so a line has to end itself.
    message = line if isinstance(line, dict) else f"{line}\n"
    record = {"address": operators.escaped(tcp["address"]), "message": message}
    return access_logs.sink(call.context.log_pipe, {"json_format": record, **_omit_empty_values(form)})


def _otel(otel: Json, call: _Call, name: str) -> Iterator[_Addition]:
    collector = collectors.of_otel(otel)
    cluster = f"_kuma_access_log_opentelemetry_{collector.slug}"
    body = call.default if otel.get("body") is None else otel["body"]
    attributes = [
        {"key": each["key"], "value": _any_value(each["value"], call)}
        for each in otel.get("attributes") or ()
    ]
    log = proto_json.extension(
        "envoy.access_loggers.open_telemetry",
        _OTEL,
        **collectors.service(cluster, collector, "/v1/logs"),
        log_name=_DEFAULT,
        body=_any_value(body, call),
        attributes={"values": attributes},
        resource_detectors=collectors.DETECTORS,
    )
    yield "clusters", cluster, collectors.cluster(cluster, collector)
    yield "access_logs", name, log


def _any_value(value: Json, call: _Call) -> Data:
    """An OTLP any-value: written as one, or as plain JSON. What Envoy fills in are texts."""
    if isinstance(value, Mapping) and len(value) == 1:
        (kind, inside), *_ = value.items()
        match kind:
            case "stringValue" | "string_value" | "boolValue" | "bool_value" | "intValue" | "int_value":
                return _any_value(inside, call)
            case "doubleValue" | "double_value":
                return _any_value(inside, call)
            case "arrayValue" | "array_value":
                return _any_value(list(inside.get("values") or ()), call)
            case "kvlistValue" | "kvlist_value":
                pairs = inside.get("values") or ()
                return _key_values({each["key"]: each.get("value") for each in pairs}, call)
    if isinstance(value, Mapping):
        return _key_values(value, call)
    if isinstance(value, list | tuple):
        return {"array_value": {"values": [_any_value(each, call) for each in value]}}
    return {
        "string_value": call.text(value if isinstance(value, str) else operators.escaped(json.dumps(value)))
    }


def _key_values(attributes: Mapping[str, Json], call: _Call) -> Data:
    values = [{"key": name, "value": _any_value(value, call)} for name, value in attributes.items()]
    return {"kvlist_value": {"values": values}}
