"""Codec: a stored object as a document of an endpoint's version, and what a document asks to store."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.kube import field_errors, namespaced_names
from koguma.kube.kinds import parts
from koguma.kube.registry import KOGUMA, KUMA, KubeEndpoint
from koguma.model import forms, labels
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import BadRequest, Invalid
from koguma.model.forms import Draft, Form
from koguma.model.resource import Meta, Resource
from koguma.model.schema import Json, json_type, unknown_fields
from koguma.model.violation import Violation, child, item, key

_OURS: Final = ("apiVersion", "kind", "metadata", "kri", "mesh", "spec", "status")
_META: Final = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)
_META_TEXTS: Final = ("name", "generateName", "namespace", "resourceVersion", "uid")
_OWNER: Final = ("apiVersion", "kind", "name", "uid")
_OWNER_FLAGS: Final = ("controller", "blockOwnerDeletion")
_ANNOTATION_BYTES_MAX: Final = 256 * 1024


def document(resource: Resource, endpoint: KubeEndpoint, control_plane: ControlPlaneInfo) -> dict[str, Json]:
    """An object as its endpoint shows it."""
    kind = endpoint.kind
    metadata = _metadata(resource, endpoint, control_plane)
    shown: dict[str, Json] = {
        "apiVersion": endpoint.api_version,
        "kind": endpoint.kind_name,
        "metadata": metadata,
    }
    spec = _converted(resource, endpoint)
    if kind.at_root:
        return {**shown, **spec} if isinstance(spec, dict) else shown  # of no known shape: what is left
    kri = resource.kri(kind.short) if kind.short else None
    if kri is not None:
        shown["kri"] = str(kri)
    shown["spec"] = spec
    if kind.status is not None:
        shown["status"] = resource.status or {}
    return shown


def _converted(resource: Resource, endpoint: KubeEndpoint) -> Json:
    """The spec in the endpoint's version; one that a converter cannot read is shown as it is stored."""
    try:
        return endpoint.conversion.from_storage(resource.spec)
    except Invalid:  # of a plugin; one object never keeps others from being listed
        return resource.spec


def _metadata(resource: Resource, endpoint: KubeEndpoint, control_plane: ControlPlaneInfo) -> dict[str, Json]:
    at, meta = namespaced_names.namespaced_name(resource, endpoint.kind, control_plane), resource.meta
    shown: dict[str, Json] = {"name": at.name}
    if endpoint.namespaced:
        shown["namespace"] = at.namespace
    shown["uid"] = resource.uid
    shown["resourceVersion"] = str(resource.revision)
    if not endpoint.kind.at_root:
        shown["generation"] = resource.generation
    shown["creationTimestamp"] = resource.creation_time
    if meta.deletion_timestamp:
        shown["deletionTimestamp"] = meta.deletion_timestamp
        shown["deletionGracePeriodSeconds"] = 0
    if resource.labels:
        shown["labels"] = dict(resource.labels)
    if resource.annotations:
        shown["annotations"] = dict(resource.annotations)
    if meta.owner_references:
        shown["ownerReferences"] = list(meta.owner_references)
    if meta.finalizers:
        shown["finalizers"] = list(meta.finalizers)
    if meta.managed_fields:
        shown["managedFields"] = list(meta.managed_fields)
    return shown


class DecodedObject(msgspec.Struct, frozen=True):
    """What a document asks for. `spec` is in the stored version already."""

    draft: Draft
    meta: Meta
    status: Json
    generate_name: str = ""
    uid: str = ""


def read(given: Json, endpoint: KubeEndpoint, namespace: str, name: str) -> DecodedObject:
    """What a document asks for, at a path; Invalid with all that is wrong outside the spec."""
    given = typed(given, endpoint)
    metadata = given.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise Invalid([_type("metadata", "object", metadata)])
    violations = [*_metadata_violations(metadata)]
    if violations:
        raise Invalid(violations)
    _check_path(metadata, endpoint, namespace, name)
    spec = _spec(given, endpoint)
    refused = list(endpoint.conversion.refusals(spec))
    if refused:
        raise Invalid(refused)
    given_labels = metadata.get("labels") or {}
    mesh = _mesh(given, given_labels, endpoint, namespace)
    written = Draft(
        kind=endpoint.kind,
        form=Form.KUBERNETES,
        name=name or metadata.get("name") or "",
        mesh=mesh,
        namespace=namespace or None,
        labels=given_labels,
        annotations=metadata.get("annotations") or {},
        spec=endpoint.conversion.to_storage(spec),
        revision=_revision(metadata.get("resourceVersion")),
        unknown=tuple(_unknown(given, metadata, endpoint)),
    )
    meta = Meta(
        tuple(metadata.get("finalizers") or ()),
        tuple(metadata.get("ownerReferences") or ()),
        tuple(metadata.get("managedFields") or ()),
    )
    generate = metadata.get("generateName") or ""
    return DecodedObject(written, meta, given.get("status"), generate, metadata.get("uid") or "")


def typed(given: Json, endpoint: KubeEndpoint) -> dict[str, Json]:
    """A document with its `apiVersion` and `kind`, which documents of Kubernetes' own kinds may leave out."""
    if not isinstance(given, dict):
        raise BadRequest(f"an object is needed, not a value of type {json_type(given)}")
    said = dict(given)
    if endpoint.group not in (KUMA, KOGUMA):
        said["apiVersion"] = given.get("apiVersion") or endpoint.api_version
        said["kind"] = given.get("kind") or endpoint.kind_name
    check_type(said, endpoint)
    return said


def check_type(given: Mapping[str, Json], endpoint: KubeEndpoint) -> None:
    """Raise where a document's own `apiVersion` or `kind` is not the endpoint's."""
    version, kind = given.get("apiVersion"), given.get("kind")
    for name, said in (("apiVersion", version), ("kind", kind)):
        if not isinstance(said, str) or not said:
            raise BadRequest(f"{name} must be set: the object does not say what it is")
    if version != endpoint.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({endpoint.api_version})"
        )
    if kind != endpoint.kind_name:
        raise Invalid([field_errors.invalid("kind", kind, f"must be {endpoint.kind_name}", "kind")])


def _check_path(metadata: Mapping[str, Json], endpoint: KubeEndpoint, namespace: str, name: str) -> None:
    written = metadata.get("namespace")
    if written and not endpoint.namespaced:
        raise BadRequest(f"{endpoint.plural} live in no namespace; leave metadata.namespace out")
    if written and written != namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if name and metadata.get("name") not in (None, "", name):
        raise BadRequest(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        )


def _mesh(
    given: Mapping[str, Json], given_labels: Mapping[str, str], endpoint: KubeEndpoint, namespace: str
) -> str | None:
    """The mesh: the label's, the older field's, or that of the reserved namespace."""
    if not endpoint.kind.is_mesh_scoped or namespaced_names.is_native(endpoint.kind):
        return None
    reserved = namespaced_names.mesh_of(namespace)
    field = given.get("mesh")
    said = given_labels.get(labels.MESH) or (field if isinstance(field, str) else None)
    if reserved is not None and said is not None and said != reserved:
        at = key("metadata.labels", labels.MESH)
        text = f'must be "{reserved}" in namespace {namespace}, which is that mesh\'s own, or be left out'
        raise Invalid([Violation(at, text, "mesh")])
    return said or reserved


def _spec(given: Mapping[str, Json], endpoint: KubeEndpoint) -> Json:
    if endpoint.kind.at_root:
        return {
            name: value for name, value in given.items() if name not in ("apiVersion", "kind", "metadata")
        }
    spec = given.get("spec")
    return {} if spec is None else spec


def _revision(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:  # noqa: PLR2004 - int64
        message = f'must be a number that was read from the object, not "{text}"'
        raise Invalid([Violation("metadata.resourceVersion", message, "format")])
    return int(text)


def _metadata_violations(metadata: Mapping[str, Json]) -> Iterator[Violation]:
    for name in _META_TEXTS:
        value = metadata.get(name)
        if value is not None and not isinstance(value, str):
            yield _type(f"metadata.{name}", "string", value)
    for name in ("labels", "annotations"):
        yield from forms.string_map(metadata.get(name), f"metadata.{name}")
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        texts = (text for pair in annotations.items() for text in pair if isinstance(text, str))
        size = sum(len(text.encode()) for text in texts)
        if size > _ANNOTATION_BYTES_MAX:
            yield Violation(
                "metadata.annotations",
                f"Too long: may not be more than {_ANNOTATION_BYTES_MAX} bytes",
                "length",
            )
    yield from _finalizer_violations(metadata.get("finalizers"))
    yield from _owner_violations(metadata.get("ownerReferences"))
    managed = metadata.get("managedFields")
    if managed is not None and not (isinstance(managed, list) and all(isinstance(e, dict) for e in managed)):
        yield _type("metadata.managedFields", "array of objects", managed)


def _finalizer_violations(finalizers: Json) -> Iterator[Violation]:
    if finalizers is None:
        return
    if not isinstance(finalizers, list):
        yield _type("metadata.finalizers", "array", finalizers)
        return
    for index, name in enumerate(finalizers):
        at = item("metadata.finalizers", index)
        if not isinstance(name, str) or not name:
            yield Violation(at, "must be a name such as example.com/clean-up", "type")
            continue
        for message in parts.qualified_name_messages(name):
            yield field_errors.invalid(at, name, message, "name")


def _owner_violations(owners: Json) -> Iterator[Violation]:
    if owners is None:
        return
    if not isinstance(owners, list):
        yield _type("metadata.ownerReferences", "array", owners)
        return
    controllers = 0
    for index, owner in enumerate(owners):
        at = item("metadata.ownerReferences", index)
        if not isinstance(owner, dict):
            yield _type(at, "object", owner)
            continue
        for name in _OWNER:
            if not isinstance(owner.get(name), str) or not owner[name]:
                yield Violation(child(at, name), "must not be empty", "required")
        for name in _OWNER_FLAGS:
            if not isinstance(owner.get(name, False), bool):
                yield _type(child(at, name), "boolean", owner[name])
        controllers += owner.get("controller") is True
    if controllers > 1:
        text = f"Only one reference can have Controller set to true; {controllers} have"
        yield Violation("metadata.ownerReferences", text, "controller")


def _unknown(
    given: Mapping[str, Json], metadata: Mapping[str, Json], endpoint: KubeEndpoint
) -> Iterator[Violation]:
    if not endpoint.kind.at_root:
        known = (
            _OURS
            if not namespaced_names.is_native(endpoint.kind)
            else ("apiVersion", "kind", "metadata", "spec", "status")
        )
        yield from unknown_fields(given, known)
    yield from unknown_fields(metadata, _META, "metadata.")


def _type(path: str, wanted: str, value: Json) -> Violation:
    return Violation(path, f'in body must be of type {wanted}: "{json_type(value)}"', "type")
