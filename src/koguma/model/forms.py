"""Forms: the two ways to write one resource, Kuma's plain one and the Kubernetes one.

Plain: `type`, `name`, `mesh`, `labels`, and `spec` (or the spec's fields inline). Kubernetes: `apiVersion`,
`kind`, `metadata`, `spec`. Reading either gives a Draft; a stored Resource is shown in either.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from koguma.model import labels
from koguma.model.errors import BadRequest, Invalid
from koguma.model.kind import Kind, Kinds, unknown_kind
from koguma.model.resource import Resource
from koguma.model.schema import Json, json_type, unknown_fields
from koguma.model.violation import Violation, key

API_VERSION: Final = "kuma.io/v1alpha1"
KUBECTL_GROUPS: Final = (
    "v1",
    "gateway.networking.k8s.io",
    "rbac.authorization.k8s.io",
)  # kinds without a plain form
NO_NAMESPACE_PREFIX: Final = "mesh-"  # the reserved namespaces where objects without one appear

_PLAIN_META: Final = ("type", "name", "mesh", "labels", "creationTime", "modificationTime", "kri", "snis")
# Secrets as Kuma keeps them in Kubernetes: the core kind, of these types, with the payload under one key.
_CORE_SECRET: Final[Mapping[str, str]] = {"apiVersion": "v1", "kind": "Secret"}
_SECRET_TYPES: Final = {"system.kuma.io/secret": "Secret", "system.kuma.io/global-secret": "GlobalSecret"}
_PAYLOAD: Final = "value"
_OUTER: Final = (*_PLAIN_META, "spec", "status")
_KUBERNETES: Final = ("apiVersion", "kind", "metadata", "spec", "status", "kri")


class Form(Enum):
    """Which way an object was written."""

    PLAIN = "universal"
    KUBERNETES = "kubernetes"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An object as a user wrote it: shaped right on the outside, not yet checked inside."""

    kind: Kind
    form: Form
    name: str
    mesh: str | None = None
    namespace: str | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] | None = None  # None: this form does not say
    spec: Json = {}
    revision: int | None = None  # the stored revision that the writer saw
    unknown: tuple[Violation, ...] = ()  # fields outside the spec that do not exist


def read(document: Json, kinds: Kinds) -> Draft:
    """The draft that a document of either form writes."""
    if not isinstance(document, dict):
        raise BadRequest(f'an object is needed, not a value of type "{json_type(document)}"')
    name = document.get("type")
    if isinstance(name, str) and name in _SECRET_TYPES and _CORE_SECRET.items() <= document.items():
        return _read_core_secret(document, kinds[_SECRET_TYPES[name]])
    if "apiVersion" in document or ("kind" in document and "metadata" in document):
        return read_kubernetes(document, kinds)
    if "type" not in document:
        raise Invalid(
            [
                Violation(
                    "type",
                    "must be set; or apiVersion, kind and metadata for the Kubernetes form",
                    "required",
                )
            ]
        )
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Invalid([Violation("type", unknown_kind(str(name), kinds), "kind")])
    return read_plain(document, kind)


def read_plain(document: Json, kind: Kind) -> Draft:
    """The draft that a plain document of a known kind writes."""
    if not isinstance(document, dict):
        raise BadRequest(f'invalid {kind.name} object: "an object is needed, not {json_type(document)}"')
    violations = list(_texts(document, ("type", "name", "mesh")))
    violations += string_map(document.get("labels"), "labels")
    if violations:
        raise Invalid(violations)
    if kind.inline:
        spec = {name: value for name, value in document.items() if name not in _PLAIN_META}
        unknown: tuple[Violation, ...] = ()
    else:
        spec = document.get("spec") or {}
        unknown = tuple(unknown_fields(document, _OUTER))
    return Draft(
        kind=kind,
        form=Form.PLAIN,
        name=document.get("name") or "",
        mesh=document.get("mesh"),
        labels=document.get("labels") or {},
        spec=spec,
        unknown=unknown,
    )


def read_kubernetes(document: Json, kinds: Kinds) -> Draft:
    """The draft that a Kubernetes document writes."""
    violations = list(_texts(document, ("apiVersion", "kind")))
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        violations.append(Violation("metadata", "must be set", "required"))
        metadata = {}
    violations += _texts(metadata, ("name", "namespace", "resourceVersion"), "metadata.")
    violations += string_map(metadata.get("labels"), "metadata.labels")
    violations += string_map(metadata.get("annotations"), "metadata.annotations")
    version = document.get("apiVersion")
    kind = kinds.get(document["kind"]) if isinstance(document.get("kind"), str) else None
    if kind is None and isinstance(version, str) and version.partition("/")[0] in KUBECTL_GROUPS:
        hint = f'must be "{API_VERSION}"; objects of {version} are written with kubectl (koguma kubeconfig)'
        raise Invalid([*violations, Violation("apiVersion", hint, "enum")])
    if kind is None:
        violations.append(Violation("kind", unknown_kind(str(document.get("kind", "")), kinds), "kind"))
    if version != API_VERSION:
        violations.append(Violation("apiVersion", f'must be "{API_VERSION}"', "enum"))
    if violations or kind is None:
        raise Invalid(violations)
    spec = document.get("spec") or {}
    return Draft(
        kind=kind,
        form=Form.KUBERNETES,
        name=metadata.get("name") or "",
        mesh=(metadata.get("labels") or {}).get(labels.MESH),
        namespace=metadata.get("namespace"),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        spec=spec,
        revision=_revision(metadata.get("resourceVersion")),
        unknown=tuple(unknown_fields(document, _KUBERNETES)),
    )


def _read_core_secret(document: Json, kind: Kind) -> Draft:
    """The draft of a secret that is written as Kubernetes' own kind; its namespace is no part of its name."""
    metadata, data = document.get("metadata"), document.get("data")
    if not isinstance(metadata, dict):
        raise Invalid([Violation("metadata", "must be set", "required")])
    if not isinstance(data, dict) or list(data) != [_PAYLOAD]:
        raise Invalid([Violation("data", f'must have one key, "{_PAYLOAD}"', "required")])
    labels_of_secret = metadata.get("labels")
    mesh = labels_of_secret.get(labels.MESH, "default") if isinstance(labels_of_secret, dict) else "default"
    document_of_secret = {
        "type": kind.name,
        "name": metadata.get("name"),
        "labels": labels_of_secret,
        "data": data[_PAYLOAD],
    }
    return read_plain({**document_of_secret, **({"mesh": mesh} if kind.is_mesh_scoped else {})}, kind)


def _revision(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        raise Invalid([Violation("metadata.resourceVersion", "must be a revision number", "format")])
    return int(text)


def _texts(document: Mapping[str, Json], names: tuple[str, ...], prefix: str = "") -> Iterator[Violation]:
    for name in names:
        value = document.get(name)
        if value is not None and not isinstance(value, str):
            yield Violation(
                f"{prefix}{name}", f'in body must be of type string: "{json_type(value)}"', "type"
            )


def string_map(value: Json, path: str) -> Iterator[Violation]:
    """What is wrong with a map of texts, such as labels."""
    if value is None:
        return
    if not isinstance(value, dict):
        yield Violation(path, f'in body must be of type object: "{json_type(value)}"', "type")
        return
    for name, entry in value.items():
        if not isinstance(entry, str):
            yield Violation(key(path, name), f'in body must be of type string: "{json_type(entry)}"', "type")


def plain(resource: Resource, kind: Kind) -> dict[str, Json]:
    """A stored object in Kuma's plain form."""
    document: dict[str, Json] = {"type": kind.name}
    if kind.is_mesh_scoped:
        document["mesh"] = resource.mesh
    document["name"] = resource.core_name
    if resource.labels:
        document["labels"] = dict(resource.labels)
    document["creationTime"] = resource.creation_time
    document["modificationTime"] = resource.modification_time
    kri = resource.kri(kind.short)
    if kri is not None:
        document["kri"] = str(kri)
    if kind.inline:
        return {**document, **{name: value for name, value in resource.spec.items() if name not in document}}
    document["spec"] = resource.spec
    if kind.status is not None:
        document["status"] = resource.status or {}
    return document


def kubernetes(resource: Resource, kind: Kind, namespace: str) -> dict[str, Json]:
    """A stored object in the Kubernetes form; one without a namespace is shown in the given one.

    Kuma keeps its secrets as Kubernetes' own kind, and so they are shown.
    """
    metadata: dict[str, Json] = {"name": resource.name}
    if kind.namespaced:
        metadata["namespace"] = resource.namespace or namespace
    if kind.computed is None:  # one that is computed has neither
        metadata["uid"] = resource.uid
        metadata["resourceVersion"] = str(resource.revision)
    metadata["generation"] = resource.generation
    metadata["creationTimestamp"] = resource.creation_time
    if resource.labels:
        metadata["labels"] = dict(resource.labels)
    if resource.annotations:
        metadata["annotations"] = dict(resource.annotations)
    for type_, name in _SECRET_TYPES.items():
        if kind.name == name:
            data = {_PAYLOAD: resource.spec.get("data") or ""}
            return {**_CORE_SECRET, "metadata": metadata, "type": type_, "data": data}
    document: dict[str, Json] = {"apiVersion": API_VERSION, "kind": kind.name, "metadata": metadata}
    document["spec"] = resource.spec
    if kind.status is not None:
        document["status"] = resource.status or {}
    return document


def reserved_namespace(mesh: str) -> str:
    """The namespace in which the Kubernetes form shows objects that have none."""
    return f"{NO_NAMESPACE_PREFIX}{mesh or 'global'}"


def key_namespace(namespace: str) -> str:
    """The namespace in keys: none for the reserved namespaces, where objects without one appear."""
    return "" if namespace.startswith(NO_NAMESPACE_PREFIX) else namespace
