"""Gateway rules: what must hold in the other objects of the Gateway API beside their schemas."""

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.model.gateway_api.backend_tls import (
    BackendTlsPolicySpec,
    BackendTlsTarget,
    BackendTlsValidation,
    SubjectAltName,
)
from koguma.model.gateway_api.gateways import (
    GatewayClassSpec,
    GatewayObjectSpec,
    ListenerEntry,
    ListenerSetSpec,
    SpecAddress,
)
from koguma.model.kind import ValidationContext
from koguma.model.violation import Violation, child, item

_HOSTNAME: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UNENCRYPTED: Final = ("HTTP", "TCP", "UDP")
_WITHOUT_NAMES: Final = ("TCP", "UDP")


def gateway_class(spec: GatewayClassSpec, context: ValidationContext) -> Iterator[Violation]:
    """The controller of a class does not change."""
    before = parts.as_map(context.stored).get("controllerName")
    if before is not None and before != spec.controller_name:
        at = "spec.controllerName"
        yield field_errors.invalid(at, spec.controller_name, field_errors.IMMUTABLE, "changed")


def gateway(spec: GatewayObjectSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What must hold in a Gateway."""
    yield from _listeners(spec.listeners)
    yield from _addresses(spec.addresses or ())
    if spec.infrastructure is not None:
        yield from _keys(spec.infrastructure.labels, "spec.infrastructure.labels")
        yield from _keys(spec.infrastructure.annotations, "spec.infrastructure.annotations")


def listener_set(spec: ListenerSetSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What must hold in a ListenerSet."""
    yield from _listeners(spec.listeners)


def _listeners(listeners: Sequence[ListenerEntry]) -> Iterator[Violation]:
    for index, listener in enumerate(listeners):
        yield from _listener(listener, item("spec.listeners", index))
    for (first, one), (second, other) in itertools.combinations(enumerate(listeners), 2):
        if _bound_to(one) == _bound_to(other):
            text = f"has the port, protocol and hostname of {item('spec.listeners', first)}"
            at = item("spec.listeners", second)
            yield field_errors.invalid(at, other.name, text, "distinct")


def _bound_to(listener: ListenerEntry) -> tuple[int, str, str | None]:
    return listener.port, listener.protocol.upper(), listener.hostname


def _listener(listener: ListenerEntry, path: str) -> Iterator[Violation]:
    protocol, tls = listener.protocol.upper(), listener.tls
    if tls is not None and protocol in _UNENCRYPTED:
        yield field_errors.forbidden(f"{path}.tls", f"protocol {listener.protocol} has no TLS")
    if protocol == "HTTPS" and tls is not None and tls.mode != "Terminate":
        text = "HTTPS is read here, so TLS ends here: it must be Terminate"
        yield field_errors.invalid(f"{path}.tls.mode", tls.mode, text)
    if protocol == "TLS" and tls is None:
        yield field_errors.required(f"{path}.tls.mode", "protocol TLS needs Terminate or Passthrough")
    if tls is not None and tls.mode == "Terminate" and not tls.certificate_refs and not tls.options:
        yield field_errors.required(f"{path}.tls.certificateRefs", "mode Terminate needs a certificate")
    if listener.hostname is not None and protocol in _WITHOUT_NAMES:
        text = f"protocol {listener.protocol} knows no host names"
        yield field_errors.forbidden(f"{path}.hostname", text)


def _addresses(addresses: Sequence[SpecAddress]) -> Iterator[Violation]:
    seen: set[tuple[str, str]] = set()
    for index, address in enumerate(addresses):
        at, value = f"{item('spec.addresses', index)}.value", address.value
        if not value:
            continue
        if address.type == "Hostname" and not _HOSTNAME.fullmatch(value):
            yield field_errors.invalid(at, value, "is no host name")
        if address.type == "IPAddress" and not _is_ip(value):
            yield field_errors.invalid(at, value, "is no IPv4 or IPv6 address")
        if address.type in ("Hostname", "IPAddress"):
            if (address.type, value) in seen:
                yield field_errors.duplicate(at, value)
            seen.add((address.type, value))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _keys(values: Mapping[str, str] | None, path: str) -> Iterator[Violation]:
    for name in sorted(values or {}):
        for message in parts.qualified_name_messages(name):
            yield field_errors.invalid(field_errors.at_key(path, name), name, message, "key")


def backend_tls_policy(spec: BackendTlsPolicySpec, _context: ValidationContext) -> Iterator[Violation]:
    """What must hold in a BackendTLSPolicy."""
    yield from _targets(spec.target_refs)
    yield from _validation(spec.validation)


def _targets(targets: Sequence[BackendTlsTarget]) -> Iterator[Violation]:
    for (first, one), (second, other) in itertools.combinations(enumerate(targets), 2):
        if (one.group, one.kind, one.name) != (other.group, other.kind, other.name):
            continue
        at, there = item("spec.targetRefs", second), item("spec.targetRefs", first)
        if bool(one.section_name) != bool(other.section_name):
            text = f"names the same target as {there}: both must set sectionName"
            yield field_errors.invalid(at, other.name, text, "distinct")
        elif one.section_name == other.section_name:
            text = f"names the same target and sectionName as {there}"
            yield field_errors.invalid(at, other.name, text, "distinct")


def _validation(validation: BackendTlsValidation) -> Iterator[Violation]:
    path = "spec.validation"
    if validation.ca_certificate_refs and validation.well_known_ca_certificates:
        text = "caCertificateRefs are set: only one of both may be"
        yield field_errors.forbidden(f"{path}.wellKnownCACertificates", text)
    if not validation.ca_certificate_refs and not validation.well_known_ca_certificates:
        yield field_errors.required(f"{path}.caCertificateRefs", "or wellKnownCACertificates")
    for index, name in enumerate(validation.subject_alt_names or ()):
        yield from _alt_name(name, item(f"{path}.subjectAltNames", index))


def _alt_name(name: SubjectAltName, path: str) -> Iterator[Violation]:
    values: Iterable[tuple[str, str, str | None]] = (
        ("Hostname", "hostname", name.hostname),
        ("URI", "uri", name.uri),
    )
    for type_, field, value in values:
        if name.type == type_ and not value:
            yield field_errors.required(child(path, field), f"type {type_} needs it")
        elif name.type != type_ and value:
            yield field_errors.forbidden(child(path, field), f"belongs to type {type_}")
