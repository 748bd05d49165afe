"""Kubernetes' core kinds that a control plane needs: Namespace, ConfigMap, Secret, ServiceAccount."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Bytes, LocalObjectReference, ObjectReference, SecretBytes
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, item

PAYLOAD_BYTES_MAX: Final = 1024 * 1024
OPAQUE: Final = "Opaque"
FINALIZER: Final = "kubernetes"  # holds a namespace until nothing is left in it
NAME_LABEL: Final = "kubernetes.io/metadata.name"
ACTIVE: Final = "Active"

_WHOLE_OBJECT: Final = "[]"  # how Kubernetes writes a path that is no field's
_IMMUTABLE: Final = "field is immutable when `immutable` is set"
_STANDARD_FINALIZERS: Final = (FINALIZER, "orphan", "foregroundDeletion")
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_LENGTH_MAX: Final = 253
_KEY_MESSAGE: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or"
    f" 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY.pattern}')"
)


class NamespaceSpec(Spec):
    """What holds the namespace."""

    finalizers: Annotated[
        tuple[str, ...] | None, doc("What must be done before a deleted namespace is gone.")
    ] = None


class NamespaceCondition(parts.ObjectCondition):
    """One thing that is true of a namespace, or not, and why."""


class NamespaceStatus(Spec):
    """How far the namespace is."""

    phase: Annotated[str | None, doc("Active, or Terminating while it is being emptied.")] = None
    conditions: Annotated[
        tuple[NamespaceCondition, ...] | None,
        doc("What stands in the way of its end."),
        parts.keyed_by("type"),
    ] = None


class ConfigMapSpec(Spec):
    """Settings by name."""

    data: Annotated[Mapping[str, str | None] | None, doc("Texts by name.")] = None
    binary_data: Annotated[Mapping[str, Bytes | None] | None, doc("Bytes by name, as base64.")] = None
    immutable: Annotated[bool | None, doc("Whether nothing of it may change any more.")] = None


class CoreSecretSpec(Spec):
    """Payloads by name."""

    data: Annotated[Mapping[str, SecretBytes | None] | None, doc("Payloads by name, as base64.")] = None
    string_data: Annotated[
        Mapping[str, str | None] | None,
        doc("Payloads as plain text, for writing only; they become part of data."),
        msgspec.Meta(extra={"sensitive": True}),
    ] = None
    type: Annotated[str | None, doc("What it is for; Opaque by default. It cannot change.")] = None
    immutable: Annotated[bool | None, doc("Whether nothing of it may change any more.")] = None


class ServiceAccountSpec(Spec):
    """An identity for programs."""

    secrets: Annotated[
        tuple[Annotated[ObjectReference, parts.ATOMIC], ...] | None,
        doc("Secrets that belong to it."),
        parts.keyed_by("name"),
    ] = None
    image_pull_secrets: Annotated[
        tuple[Annotated[LocalObjectReference, parts.ATOMIC], ...] | None,
        doc("Secrets for fetching container images."),
    ] = None
    automount_service_account_token: Annotated[
        bool | None, doc("Whether programs find a token where they run.")
    ] = None


def validate_namespace(spec: NamespaceSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Finalizers without a domain, other than Kubernetes' own."""
    for index, name in enumerate(spec.finalizers or ()):
        at = item("spec.finalizers", index)
        messages = list(parts.qualified_name_messages(name))
        if not messages and "/" not in name and name not in _STANDARD_FINALIZERS:
            messages = ["name is neither a standard finalizer name nor is it fully qualified"]
        for message in messages:
            yield field_errors.invalid(at, name, message)


def clean_config_map(spec: Json) -> Json:
    """Null texts as empty ones, payloads as canonical base64."""
    read = parts.changed(spec, {"data": _texts, "binaryData": _payloads})
    return parts.without_nulls(read)


def validate_config_map(spec: ConfigMapSpec, context: ValidationContext) -> Iterator[Violation]:
    """Names, sizes, and changes of what does not change any more."""
    data, binary = spec.data or {}, spec.binary_data or {}
    for name in sorted(data):
        yield from _key_violations("data", name)
        if name in binary:
            message = "duplicate of key present in binaryData"
            yield field_errors.invalid(field_errors.at_key("data", name), name, message, "duplicate-key")
    for name in sorted(binary):
        yield from _key_violations("binaryData", name)
    yield from _payload_violations("binaryData", binary)
    if sum(len((text or "").encode()) for text in data.values()) + _size(binary) > PAYLOAD_BYTES_MAX:
        yield field_errors.too_long(_WHOLE_OBJECT, PAYLOAD_BYTES_MAX)
    yield from _immutable_violations(spec, {"data": data, "binaryData": binary}, context)


def clean_secret(spec: Json) -> Json:
    """Texts folded into the payloads, and a type."""
    if not isinstance(spec, dict):
        return spec
    read = dict(parts.changed(spec, {"data": _payloads, "stringData": _texts}))
    texts = read.get("stringData")
    if isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values()):
        folded = {name: parts.encoded(text.encode()) for name, text in texts.items()}
        del read["stringData"]
        if folded:
            read["data"] = {**parts.as_map(read.get("data")), **folded}
    return {**parts.without_nulls(read), "type": read.get("type") or OPAQUE}


def validate_secret(spec: CoreSecretSpec, context: ValidationContext) -> Iterator[Violation]:
    """Names, sizes, what each type needs, and changes of what does not change any more."""
    data = spec.data or {}
    for name in sorted(data):
        yield from _key_violations("data", name)
    yield from _payload_violations("data", data)
    if _size(data) > PAYLOAD_BYTES_MAX:
        yield field_errors.too_long("data", PAYLOAD_BYTES_MAX)
    yield from _type_violations(spec.type or OPAQUE, data)
    stored = parts.as_map(context.stored)
    if stored and (stored.get("type") or OPAQUE) != (spec.type or OPAQUE):
        yield field_errors.invalid("type", spec.type or OPAQUE, field_errors.IMMUTABLE, "changed")
    yield from _immutable_violations(spec, {"data": data}, context)


# What must be among a Secret's payloads, by its type.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON: Final = (".dockercfg", ".dockerconfigjson")
_BASIC_AUTH: Final = ("username", "password")


def _type_violations(type_: str, data: Mapping[str, str | None]) -> Iterator[Violation]:
    if type_ == "kubernetes.io/basic-auth" and not any(name in data for name in _BASIC_AUTH):
        for name in _BASIC_AUTH:
            yield field_errors.required(field_errors.at_key("data", name))
    for name in _NEEDED.get(type_, ()):
        at = field_errors.at_key("data", name)
        if name not in data or (name == "ssh-privatekey" and not data[name]):
            yield field_errors.required(at)
        elif name in _JSON and not _is_json(parts.payload(data[name])):
            yield field_errors.invalid(at, field_errors.REDACTED, "must be a JSON document", "json")


def _is_json(data: bytes | None) -> bool:
    try:
        msgspec.json.decode(data or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _texts(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: "" if text is None else text for name, text in value.items()}


def _payloads(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: _canonical(text) for name, text in value.items()}


def _canonical(text: Json) -> Json:
    data = parts.payload(text) if text is None or isinstance(text, str) else None
    return text if data is None else parts.encoded(data)


def _key_violations(path: str, name: str) -> Iterator[Violation]:
    at = field_errors.at_key(path, name)
    if len(name) > _KEY_LENGTH_MAX:
        yield field_errors.invalid(at, name, f"must be no more than {_KEY_LENGTH_MAX} bytes", "key")
    if not _KEY.fullmatch(name):
        yield field_errors.invalid(at, name, _KEY_MESSAGE, "key")
    elif name in (".", ".."):
        yield field_errors.invalid(at, name, f"must not be '{name}'", "key")
    elif name.startswith(".."):
        yield field_errors.invalid(at, name, "must not start with '..'", "key")


def _payload_violations(path: str, data: Mapping[str, str | None]) -> Iterator[Violation]:
    for name in sorted(data):
        if parts.payload(data[name]) is None:
            yield field_errors.invalid(
                field_errors.at_key(path, name), field_errors.REDACTED, "illegal base64 data", "base64"
            )


def _size(data: Mapping[str, str | None]) -> int:
    return sum(len(parts.payload(text) or b"") for text in data.values())


def _immutable_violations(
    spec: ConfigMapSpec | CoreSecretSpec,
    fields: Mapping[str, Mapping[str, str | None]],
    context: ValidationContext,
) -> Iterator[Violation]:
    stored = parts.as_map(context.stored)
    if not stored.get("immutable"):
        return
    if not spec.immutable:
        yield field_errors.forbidden("immutable", _IMMUTABLE)
    for name, value in fields.items():
        if dict(value) != dict(stored.get(name) or {}):
            yield field_errors.forbidden(name, _IMMUTABLE)


def _count(*fields: str) -> Column:
    def value(spec: Json, _status: Json) -> int:
        return sum(len(spec.get(field) or ()) for field in fields)

    return Column("Data", value, "How many entries it has.")


NAMESPACE = Kind(
    name="Namespace",
    plural="namespaces",
    set_name="Namespace.core",
    group="",
    doc="A space for names: objects of the same kind and name live side by side in different namespaces.",
    spec=NamespaceSpec,
    status=NamespaceStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=parts.without_nulls,
    validate=validate_namespace,
    columns=(Column("Status", lambda _spec, status: status.get("phase"), "Active or Terminating."),),
)

CONFIG_MAP = Kind(
    name="ConfigMap",
    plural="configmaps",
    set_name="ConfigMap.core",
    group="",
    doc="Settings by name, for programs to read.",
    spec=ConfigMapSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    clean=clean_config_map,
    validate=validate_config_map,
    columns=(_count("data", "binaryData"),),
)

SECRET = Kind(
    name="Secret",
    plural="secrets",
    set_name="Secret.core",
    group="",
    doc="Payloads by name that only some may read, such as passwords, keys and certificates.",
    spec=CoreSecretSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    admin_only=True,
    short_history=True,
    clean=clean_secret,
    validate=validate_secret,
    columns=(Column("Type", lambda spec, _status: spec.get("type"), "What it is for."), _count("data")),
)

SERVICE_ACCOUNT = Kind(
    name="ServiceAccount",
    plural="serviceaccounts",
    set_name="ServiceAccount.core",
    group="",
    doc="An identity for programs, to which roles are bound.",
    spec=ServiceAccountSpec,
    scope=Scope.GLOBAL,
    inline=True,
    at_root=True,
    clean=parts.without_nulls,
    columns=(
        Column("Secrets", lambda spec, _status: len(spec.get("secrets") or ()), "How many belong to it."),
    ),
)
