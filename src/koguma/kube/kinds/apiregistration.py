"""APIServices: groups and versions that another server serves, through this one."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Bytes, Int32
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

AVAILABLE: Final = "Available"
PORT_DEFAULT: Final = 443
_PORT_MAX: Final = 65535
_GROUP_PRIORITY_MAX: Final = 20_000
_VERSION_PRIORITY_MAX: Final = 1_000
# Groups of this control plane itself, which nobody else serves.
_OWN_GROUPS: Final = ("kuma.io", "koguma.io")


class ServiceReference(Spec):
    """The server, as a service."""

    namespace: Annotated[str | None, doc("Its namespace.")] = None
    name: Annotated[str | None, doc("Its name.")] = None
    port: Annotated[Int32 | None, doc("Its port; 443 by default.")] = None


class ApiServiceSpec(Spec):
    """Which group and version another server serves, and how it is reached."""

    service: Annotated[
        ServiceReference | None,
        doc("The server. Its certificate is for NAME.NAMESPACE.svc; the operator says where it is."),
    ] = None
    group: Annotated[str | None, doc("The group.")] = None
    version: Annotated[str | None, doc("The version.")] = None
    insecure_skip_tls_verify: Annotated[
        bool | None, doc("Must not be true: the certificate is always verified.")
    ] = msgspec.field(default=None, name="insecureSkipTLSVerify")
    ca_bundle: Annotated[Bytes | None, doc("CAs (PEM) of its certificate; the system's by default.")] = None
    group_priority_minimum: Annotated[
        Int32 | None, doc("How far in front the group stands: higher ones first.")
    ] = None
    version_priority: Annotated[Int32 | None, doc("The same for the version within its group.")] = None


class ApiServiceCondition(parts.ObjectCondition):
    """One thing that is true of the server, or not, and why."""


class ApiServiceStatus(Spec):
    """Whether the server answers."""

    conditions: Annotated[
        tuple[ApiServiceCondition, ...] | None, doc("What is known of it."), parts.keyed_by("type")
    ] = None


def clean(spec: Json) -> Json:
    """Without nulls, and with the port of the service."""
    read = parts.without_nulls(spec)
    service = read.get("service") if isinstance(read, dict) else None
    if not isinstance(service, dict) or "port" in service:
        return read
    return {**read, "service": {**service, "port": PORT_DEFAULT}}


def validate(spec: ApiServiceSpec, context: ValidationContext) -> Iterator[Violation]:
    """Names that do not go together, priorities out of range, and servers without a certificate."""
    group, version = spec.group or "", spec.version or ""
    if not version:
        yield field_errors.required("spec.version")
    if not group:
        yield field_errors.required("spec.group", "the core group is served here")
    for at, value, messages in (
        ("spec.version", version, parts.label_messages),
        ("spec.group", group, parts.subdomain_messages),
    ):
        if value:
            yield from (field_errors.invalid(at, value, text) for text in messages(value))
    if group and version and context.name != f"{version}.{group}":
        text = f'must be `spec.version+"."+spec.group`: "{version}.{group}"'
        yield field_errors.invalid("metadata.name", context.name, text, "name")
    if group in _OWN_GROUPS or group.endswith(tuple(f".{own}" for own in _OWN_GROUPS)):
        yield field_errors.invalid("spec.group", group, "is served by this control plane itself", "own")
    yield from _priority_violations(spec)
    yield from _service_violations(spec)


def _priority_violations(spec: ApiServiceSpec) -> Iterator[Violation]:
    for at, value, highest in (
        ("spec.groupPriorityMinimum", spec.group_priority_minimum, _GROUP_PRIORITY_MAX),
        ("spec.versionPriority", spec.version_priority, _VERSION_PRIORITY_MAX),
    ):
        if not 0 < (value or 0) <= highest:
            yield field_errors.invalid(at, value or 0, f"must be positive and at most {highest}", "range")


def _service_violations(spec: ApiServiceSpec) -> Iterator[Violation]:
    service = spec.service
    if service is None:
        yield field_errors.required("spec.service", "local groups need no APIService here")
        return
    for at, value in (("namespace", service.namespace), ("name", service.name)):
        path = f"spec.service.{at}"
        if not value:
            yield field_errors.required(path)
        else:
            yield from (field_errors.invalid(path, value, text) for text in parts.label_messages(value))
    if service.port is not None and not 0 < service.port <= _PORT_MAX:
        text = f"must be between 1 and {_PORT_MAX}, inclusive"
        yield field_errors.invalid("spec.service.port", service.port, text, "range")
    if spec.insecure_skip_tls_verify:
        text = "the certificate of a server is always verified; give its CA in caBundle"
        yield field_errors.forbidden("spec.insecureSkipTLSVerify", text)
    if spec.ca_bundle is not None and b"BEGIN CERTIFICATE" not in (parts.payload(spec.ca_bundle) or b""):
        text = "holds no certificates (PEM, in base64)"
        yield Violation("spec.caBundle", f"Invalid value: {text}", "certificate")


def _service_column(spec: Json, _status: Json) -> str:
    service = parts.as_map(spec.get("service"))
    return f"{service.get('namespace', '')}/{service.get('name', '')}"


def condition(status: Json, kind: str = AVAILABLE) -> Json:
    """The condition of a kind in a status; None where there is none."""
    conditions = parts.as_map(status).get("conditions")
    listed = conditions if isinstance(conditions, list | tuple) else ()
    return next((each for each in listed if parts.as_map(each).get("type") == kind), None)


def _available_column(_spec: Json, status: Json) -> str:
    found = parts.as_map(condition(status))
    if not found:
        return "Unknown"
    reason = f" ({found.get('reason', '')})" if found.get("status") != "True" else ""
    return f"{found.get('status', '')}{reason}"


API_SERVICE = Kind(
    name="APIService",
    plural="apiservices",
    set_name="APIService.apiregistration.k8s.io",
    group="apiregistration.k8s.io",
    doc="A group and version that another server serves, through this one.",
    spec=ApiServiceSpec,
    status=ApiServiceStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=clean,
    validate=validate,
    columns=(
        Column("Service", _service_column, "The server."),
        Column("Available", _available_column, "Whether it answers."),
    ),
)
