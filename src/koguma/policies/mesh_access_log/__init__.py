"""Who called whom: one line for each request or connection, sent where logs are kept.

MeshAccessLog acts on outbound traffic (`to`) and on inbound traffic (`rules`, or the older `from`). A
backend is a file beside the proxy, a TCP address, or an OpenTelemetry collector. A format may hold Envoy's
command operators and Kuma's placeholders, such as `%KUMA_SOURCE_SERVICE%`. An empty list of backends
switches logging off where a wider policy has switched it on.

```yaml
type: MeshAccessLog
name: log-calls-to-backend
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        backends:
          - type: File
            file:
              path: /tmp/access.log
              format:
                type: Json
                json:
                  - {key: start, value: "%START_TIME%"}
                  - {key: source, value: "%KUMA_SOURCE_SERVICE%"}
                  - {key: status, value: "%RESPONSE_CODE%"}
```
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

import msgspec

from koguma.envoy import operators
from koguma.model import columns, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_access_log import overlay
from koguma.policies.parts import collectors, fields, spelling
from koguma.policies.parts.fields import CollectorRef, ProxyFile


class LogPair(Spec):
    """One field of a line."""

    key: Annotated[str, doc("The field's name.")]
    value: Annotated[str, doc("Its value; placeholders are filled in.")]


class LogFormat(Spec):
    """What a line looks like."""

    type: Annotated[Literal["Plain", "Json"], doc("A line of text, or a JSON object.")]
    plain: Annotated[str | None, doc("The line of text.")] = None
    json: Annotated[tuple[LogPair, ...] | None, doc("The fields of the object.")] = None
    omit_empty_values: Annotated[bool, doc("Leave out what has no value, instead of writing a dash.")] = False


class TcpLog(Spec):
    """Lines sent to a TCP address."""

    address: Annotated[str, doc("Host and port.", min_length=1)]
    format: Annotated[LogFormat | None, doc("What a line looks like.")] = None


class FileLog(Spec):
    """Lines written to a file beside the proxy."""

    path: Annotated[ProxyFile, doc("The file, from the root.", min_length=1)]
    format: Annotated[LogFormat | None, doc("What a line looks like.")] = None


class OtelLog(Spec):
    """Records sent to an OpenTelemetry collector over gRPC."""

    endpoint: Annotated[str | None, doc("Host and port of the collector; 4317 by default.")] = None
    backend_ref: Annotated[CollectorRef | None, doc("Where the collector's address stands.")] = None
    attributes: Annotated[tuple[LogPair, ...] | None, doc("Attributes of each record.")] = None
    body: Annotated[Json, doc("The record's body: text, or an OTLP any-value.")] = None


class LogBackend(Spec):
    """Where lines go."""

    type: Annotated[Literal["Tcp", "File", "OpenTelemetry"], doc("Which of the following counts.")]
    tcp: Annotated[TcpLog | None, doc("A TCP address.")] = None
    file: Annotated[FileLog | None, doc("A file.")] = None
    open_telemetry: Annotated[OtelLog | None, doc("An OpenTelemetry collector.")] = None


class LogConf(Spec):
    """Where lines go, and what they look like."""

    backends: Annotated[tuple[LogBackend, ...] | None, doc("All of these; an empty list is none.")] = None


class LogTo(Spec):
    """Lines about calls to one destination."""

    target_ref: Annotated[TargetRef, doc("The destination, or a route to it.")]
    default: Annotated[LogConf, doc("Where lines go.")] = LogConf()


class LogFrom(Spec):
    """Lines about calls from some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients; only kind Mesh.")]
    default: Annotated[LogConf, doc("Where lines go.")] = LogConf()


class LogRule(Spec):
    """Lines about calls that arrive. Every rule that fits writes its own."""

    default: Annotated[LogConf, doc("Where lines go.")] = LogConf()
    matches: Annotated[tuple[ClientMatch, ...], doc("Only calls that fit one of these; all by default.")] = ()


class MeshAccessLogSpec(Spec):
    """Which proxies, and what they log."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[LogTo, ...], doc("Outbound traffic.")] = ()
    from_: Annotated[tuple[LogFrom, ...], doc("Inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[LogRule, ...], doc("Inbound traffic.")] = ()


_TO_KINDS = ("Mesh", *target_ref.DESTINATIONS, *target_ref.ROUTES)


def validate(spec: MeshAccessLogSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, and formats that give away the environment of proxies."""
    conf = partial(_conf, context=context)
    top = spec.target_ref or target_ref.MESH
    inbound = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(top, "spec.targetRef", target_ref.PROXIES, sections=inbound)
    if not (spec.to or inbound):
        yield Violation("spec", "at least one of 'from', 'to' or 'rules' has to be defined", "required")
    if spec.rules and (spec.to or spec.from_):
        yield Violation("spec", "fields 'to' and 'from' must be empty when 'rules' is defined", "exclusive")
    to_kinds = ("Mesh", *target_ref.ROUTES) if top.kind == "MeshGateway" else _TO_KINDS
    yield from fields.entries("spec.to", spec.to, to_kinds, conf)
    yield from fields.entries("spec.from", spec.from_, ("Mesh",), conf)
    for index, rule in enumerate(spec.rules):
        path = item("spec.rules", index)
        yield from fields.matches(rule.matches, child(path, "matches"))
        yield from conf(rule.default, child(path, "default"))


def _conf(conf: LogConf, path: str, context: ValidationContext) -> Iterator[Violation]:
    at = child(path, "backends")
    if conf.backends is None:
        yield Violation(at, fields.MUST_BE_DEFINED, "required")
    for index, backend in enumerate(conf.backends or ()):
        yield from _backend(backend, item(at, index))
        yield from _environment(backend, item(at, index), context)


def _environment(backend: LogBackend, path: str, context: ValidationContext) -> Iterator[Violation]:
    """Formats that name variables of Envoy's environment, where secrets of its machine may stand."""
    for at, text in _formats(backend, path):
        if operators.reads_environment(text):
            yield from fields.of_the_machine(at, context, "take %ENVIRONMENT(...)% out of the format")


def _formats(backend: LogBackend, path: str) -> Iterator[tuple[str, str]]:
    """The texts that Envoy fills in, each with its place."""
    for field, form in (("file", backend.file), ("tcp", backend.tcp)):
        at = child(path, f"{field}.format")
        format_ = form.format if form is not None else None
        if format_ is not None:
            yield child(at, "plain"), format_.plain or ""
            for index, pair in enumerate(format_.json or ()):
                with contextlib.suppress(ValueError):  # reported by `_pair`
                    yield (
                        child(item(child(at, "json"), index), "value"),
                        overlay.unquoted(pair.value),
                    )
    otel = backend.open_telemetry
    if otel is not None:
        at = child(path, "openTelemetry")
        yield from ((child(at, "body"), text) for text in _texts(otel.body))
        for index, attribute in enumerate(otel.attributes or ()):
            yield child(item(child(at, "attributes"), index), "value"), attribute.value


def _backend(backend: LogBackend, path: str) -> Iterator[Violation]:
    match backend:
        case LogBackend(type="File", file=FileLog() as file):
            yield from _format(file.format, child(path, "file.format"))
            if not fields.is_path(file.path):
                yield Violation(child(path, "file.path"), "file backend requires a valid path", "path")
        case LogBackend(type="Tcp", tcp=TcpLog() as tcp):
            yield from _format(tcp.format, child(path, "tcp.format"))
            if not fields.is_address(tcp.address, needs_port=True):
                yield Violation(child(path, "tcp.address"), "tcp backend requires valid address", "address")
        case LogBackend(type="OpenTelemetry", open_telemetry=OtelLog() as otel):
            yield from _otel(otel, child(path, "openTelemetry"))
        case _:
            section = f"{backend.type[0].lower()}{backend.type[1:]}"
            yield Violation(child(path, section), fields.MUST_BE_DEFINED, "required")


def _format(form: LogFormat | None, path: str) -> Iterator[Violation]:
    if form is None:
        return
    content = form.plain if form.type == "Plain" else form.json
    at = child(path, form.type.lower())
    if content is None:
        yield Violation(at, fields.MUST_BE_DEFINED, "required")
    elif not content:
        yield Violation(at, fields.MUST_NOT_BE_EMPTY, "required")
    if form.type == "Plain":
        yield from _commands(form.plain or "", at)
    else:
        for index, pair in enumerate(form.json or ()):
            yield from _pair(pair, item(at, index))


def _pair(pair: LogPair, path: str) -> Iterator[Violation]:
    if not pair.key:
        yield Violation(child(path, "key"), "key cannot be empty", "required")
    if not pair.value:
        yield Violation(child(path, "value"), "value cannot be empty", "required")
    try:
        json.loads(f'{{"{pair.key}": "{pair.value}"}}')
    except ValueError:  # a quote, a lone backslash or a control character, which would break the line
        yield Violation(path, "is not a valid JSON object", "json")
        return
    yield from _commands(overlay.unquoted(pair.value), child(path, "value"))


def _commands(format_: str, path: str) -> Iterator[Violation]:
    """Commands that Envoy does not know; it would refuse every listener that has one."""
    for problem in overlay.format_problems(format_):
        yield Violation(path, problem, "format")


def _texts(body: Json) -> Iterator[str]:
    if isinstance(body, str):
        yield body
    elif isinstance(body, Mapping | list | tuple):
        for each in body.values() if isinstance(body, Mapping) else body:
            yield from _texts(each)


_ATTRIBUTE = re.compile(r"[a-z]([a-z0-9]|[._][a-z0-9])*")
_ATTRIBUTE_WORDS = (
    "must be an OpenTelemetry attribute name: lower case letters, digits, '.' and '_', a letter first,"
    " never two of '.' and '_' in a row or at the end"
)


def _otel(otel: OtelLog, path: str) -> Iterator[Violation]:
    yield from fields.collector(otel.endpoint, otel.backend_ref, path)
    if otel.endpoint and not fields.is_collector_address(otel.endpoint):
        yield Violation(child(path, "endpoint"), "must be a valid url", "address")
    for text in _texts(otel.body):
        yield from _commands(text, child(path, "body"))
    for index, attribute in enumerate(otel.attributes or ()):
        yield from _commands(attribute.value, child(item(child(path, "attributes"), index), "value"))
        at = child(item(child(path, "attributes"), index), "key")
        if "%" in attribute.key:
            yield Violation(at, "must not contain a placeholder; those go into the value", "attribute")
        elif attribute.key.startswith("otel."):
            yield Violation(at, "must not begin with 'otel.', which OpenTelemetry reserves", "attribute")
        elif not _ATTRIBUTE.fullmatch(attribute.key):
            yield Violation(at, _ATTRIBUTE_WORDS, "attribute")


def warn(spec: MeshAccessLogSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED


KIND = Kind(
    name="MeshAccessLog",
    plural="meshaccesslogs",
    short="mal",
    doc=__doc__,
    spec=MeshAccessLogSpec,
    columns=columns.BOTH_WAYS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.ACCESS_LOGS,
        has_to=True,
        has_from=True,
        has_rules=True,
        from_as_rules=True,
        hooks=PolicyHooks(
            outbound=overlay.outbound,
            inbound=overlay.inbound,
            at_gateways=True,
            looks_up=(collectors.KIND,),
        ),
    ),
    clean=spelling.refs,
    v1=spelling.RULES_BESIDE_TO,
    validate=validate,
    warn=warn,
)
