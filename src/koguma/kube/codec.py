"""Codec: encodes stored objects as documents of an endpoint's version, and decodes documents to be stored."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.kube import field_errors, namespaced_names, pruning
from koguma.kube.custom import documents as custom_documents
from koguma.kube.kinds import parts
from koguma.kube.registry import KOGUMA, KUMA, KubeEndpoint
from koguma.model import forms, labels
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import BadRequest, Invalid
from koguma.model.forms import Draft, Form
from koguma.model.resource import Meta, Resource
from koguma.model.schema import Json, json_type
from koguma.model.violation import Violation, child, item, key

_META_TEXTS: Final = ("name", "generateName", "namespace", "resourceVersion", "uid")
_OWNER: Final = ("apiVersion", "kind", "name", "uid")
_OWNER_FLAGS: Final = ("controller", "blockOwnerDeletion")
_ANNOTATION_BYTES_MAX: Final = 256 * 1024


def document(resource: Resource, endpoint: KubeEndpoint, control_plane: ControlPlaneInfo) -> dict[str, Json]:
    """An object as its endpoint shows it."""
    kind = endpoint.kind
    metadata = _metadata(resource, endpoint, control_plane)
    document: dict[str, Json] = {
        "apiVersion": endpoint.api_version,
        "kind": endpoint.kind_name,
        "metadata": metadata,
    }
    if endpoint.custom is not None:
        return {**document, **custom_documents.body(resource, endpoint.custom)}
    spec = _converted(resource, endpoint)
    if kind.at_root:
        return {**document, **spec} if isinstance(spec, dict) else document
    kri = resource.kri(kind.short) if kind.short else None
    if kri is not None:
        document["kri"] = str(kri)
    document["spec"] = spec
    if kind.status is not None:
        document["status"] = resource.status or {}
    if endpoint.view is not None:
        type_ = {"apiVersion": endpoint.api_version, "kind": endpoint.kind_name}
        return {**type_, **endpoint.view.show(document)}
    return document


def _converted(resource: Resource, endpoint: KubeEndpoint) -> Json:
    """The spec in the endpoint's version, without fields that do not exist: older servers stored them.

    One that the converter cannot read is returned as it is stored.
    """
    try:
        return endpoint.conversion.from_storage(pruning.stored_spec(endpoint.kind, resource.spec))
    except Invalid:  # from a plugin's converter; one broken object must not fail a whole list
        return resource.spec


def _metadata(resource: Resource, endpoint: KubeEndpoint, control_plane: ControlPlaneInfo) -> dict[str, Json]:
    name, meta = namespaced_names.namespaced_name(resource, endpoint.kind, control_plane), resource.meta
    metadata: dict[str, Json] = {"name": name.name}
    if endpoint.namespaced:
        metadata["namespace"] = name.namespace
    if endpoint.kind.computed is None:  # one that is computed has neither, as metrics of pods
        metadata["uid"] = resource.uid
        metadata["resourceVersion"] = str(resource.revision)
    if endpoint.custom is not None or not endpoint.kind.at_root:
        metadata["generation"] = resource.generation
    metadata["creationTimestamp"] = resource.creation_time
    if meta.deletion_timestamp:
        metadata["deletionTimestamp"] = meta.deletion_timestamp
        metadata["deletionGracePeriodSeconds"] = 0
    if resource.labels:
        metadata["labels"] = dict(resource.labels)
    if resource.annotations:
        metadata["annotations"] = dict(resource.annotations)
    if meta.owner_references:
        metadata["ownerReferences"] = list(meta.owner_references)
    if meta.finalizers:
        metadata["finalizers"] = list(meta.finalizers)
    if meta.managed_fields:
        metadata["managedFields"] = list(meta.managed_fields)
    return metadata


class DecodedObject(msgspec.Struct, frozen=True):
    """A document, decoded; the spec of `draft` is in the storage version."""

    draft: Draft
    meta: Meta
    status: Json
    generate_name: str = ""
    uid: str = ""
    unknown: tuple[Violation, ...] = ()  # fields that do not exist, and are no part of it any more


def read(document: Json, endpoint: KubeEndpoint, namespace: str, name: str) -> DecodedObject:
    """A document that was sent to a path, decoded; Invalid with all that is wrong outside the spec."""
    document, unknown = pruning.pruned(typed(document, endpoint), endpoint)
    metadata = document.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise Invalid([_type("metadata", "object", metadata)])
    violations = [*_metadata_violations(metadata)]
    if violations:
        raise Invalid(violations)
    _check_path(metadata, endpoint, namespace, name)
    spec = pruning.spec_of(document, endpoint)
    refusals = list(endpoint.conversion.refusals(spec))
    if refusals:
        raise Invalid(refusals)
    labels_of_document = metadata.get("labels") or {}
    mesh = _mesh(document, labels_of_document, endpoint, namespace)
    draft = Draft(
        kind=endpoint.kind,
        form=Form.KUBERNETES,
        name=name or metadata.get("name") or "",
        mesh=mesh,
        namespace=namespace or None,
        labels=labels_of_document,
        annotations=metadata.get("annotations") or {},
        spec=endpoint.conversion.to_storage(spec),
        revision=_revision(metadata.get("resourceVersion")),
    )
    meta = Meta(
        tuple(metadata.get("finalizers") or ()),
        tuple(metadata.get("ownerReferences") or ()),
        tuple(metadata.get("managedFields") or ()),
    )
    generate_name = metadata.get("generateName") or ""
    uid = metadata.get("uid") or ""
    return DecodedObject(draft, meta, document.get("status"), generate_name, uid, unknown)


def typed(document: Json, endpoint: KubeEndpoint) -> dict[str, Json]:
    """The document with `apiVersion` and `kind`, which may be left out for Kubernetes' own kinds."""
    if not isinstance(document, dict):
        raise BadRequest(f"an object is needed, not a value of type {json_type(document)}")
    with_type = dict(document)
    if endpoint.group not in (KUMA, KOGUMA):
        with_type["apiVersion"] = document.get("apiVersion") or endpoint.api_version
        with_type["kind"] = document.get("kind") or endpoint.kind_name
    check_type(with_type, endpoint)
    return with_type


def check_type(document: Mapping[str, Json], endpoint: KubeEndpoint) -> None:
    """Raise where a document's own `apiVersion` or `kind` is not the endpoint's."""
    version, kind = document.get("apiVersion"), document.get("kind")
    for name, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{name} must be set: the object does not say what it is")
    if version != endpoint.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({endpoint.api_version})"
        )
    if kind != endpoint.kind_name:
        raise Invalid([field_errors.invalid("kind", kind, f"must be {endpoint.kind_name}", "kind")])


def _check_path(metadata: Mapping[str, Json], endpoint: KubeEndpoint, namespace: str, name: str) -> None:
    namespace_of_document = metadata.get("namespace")
    if namespace_of_document and not endpoint.namespaced:
        raise BadRequest(f"{endpoint.plural} live in no namespace; leave metadata.namespace out")
    if namespace_of_document and namespace_of_document != namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if name and metadata.get("name") not in (None, "", name):
        raise BadRequest(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        )


def _mesh(
    document: Mapping[str, Json],
    labels_of_document: Mapping[str, str],
    endpoint: KubeEndpoint,
    namespace: str,
) -> str | None:
    """The mesh: from the label, the deprecated field `mesh`, or the reserved namespace."""
    if not endpoint.kind.is_mesh_scoped or namespaced_names.is_native(endpoint.kind):
        return None
    reserved = namespaced_names.mesh_of(namespace)
    field = document.get("mesh")
    mesh = labels_of_document.get(labels.MESH) or (field if isinstance(field, str) else None)
    if reserved is not None and mesh is not None and mesh != reserved:
        at = key("metadata.labels", labels.MESH)
        text = f'must be "{reserved}" in namespace {namespace}, which is that mesh\'s own, or be left out'
        raise Invalid([Violation(at, text, "mesh")])
    return mesh or reserved


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


def _type(path: str, expected: str, value: Json) -> Violation:
    return Violation(path, f'in body must be of type {expected}: "{json_type(value)}"', "type")
