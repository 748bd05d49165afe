"""Admission candidate: an object as a draft asks for it, which mutating webhooks see before it is validated.

It has the shape of a stored object, in the version of the endpoint that is written through, and is never
stored itself: what webhooks change of it goes back into the draft.
"""

import msgspec

from koguma.application.context import Context
from koguma.core import admission
from koguma.kube import namespaced_names
from koguma.kube.codec import DecodedObject
from koguma.kube.custom import documents
from koguma.kube.custom.documents import CustomBody
from koguma.kube.registry import KubeEndpoint
from koguma.model import labels
from koguma.model.forms import Draft
from koguma.model.resource import NO_META, Meta, Resource
from koguma.model.schema import Json


def candidate_of(
    context: Context,
    draft: Draft,
    endpoint: KubeEndpoint,
    before: Resource | None,
    meta: Meta = NO_META,
    status: Json = None,
) -> Resource:
    """A draft as the object that it asks for, not validated yet; the mesh is among its labels."""
    kind = draft.kind
    if namespaced_names.is_native(kind):
        namespace = (draft.namespace or "") if kind.namespaced else ""
        core_name = f"{draft.name}.{namespace}" if namespace else draft.name
        new = Resource(kind=kind.stored_as, namespace=namespace, name=draft.name, core_name=core_name)
    else:
        identity = admission.identity_of(draft, before, context.control_plane)
        _, mesh, zone, namespace, name = identity.key
        new = Resource(
            kind=kind.name, mesh=mesh, zone=zone, namespace=namespace, name=name, core_name=identity.core_name
        )
    fields = _stored_fields(draft.spec, endpoint)
    if status is None:
        status = fields.status if endpoint.custom else before.status if before else None
    with_mesh = {labels.MESH: new.mesh} if new.mesh else {}
    return msgspec.structs.replace(
        new,
        labels={**with_mesh, **draft.labels},
        annotations=draft.annotations or (before.annotations if before and draft.annotations is None else {}),
        spec=fields.fields,
        status=status,
        stored_version=endpoint.api_version if endpoint.custom else "",
        meta=meta,
        uid=before.uid if before else "",
        revision=before.revision if before else 0,
        generation=before.generation if before else 1,
        creation_time=before.creation_time if before else "",
    )


def _stored_fields(spec: Json, endpoint: KubeEndpoint) -> CustomBody:
    """Spec and status as they are stored: those of a custom object stand together in a document."""
    if endpoint.custom is None or not isinstance(spec, dict):
        return CustomBody(spec, None)
    return documents.to_store(spec, endpoint.custom)


def with_decoded(candidate: Resource, decoded: DecodedObject, endpoint: KubeEndpoint) -> Resource:
    """The candidate with what a patched document says."""
    fields = _stored_fields(decoded.draft.spec, endpoint)
    meta = msgspec.structs.replace(
        candidate.meta, finalizers=decoded.meta.finalizers, owner_references=decoded.meta.owner_references
    )
    return msgspec.structs.replace(
        candidate,
        labels=decoded.draft.labels,
        annotations=decoded.draft.annotations or {},
        spec=fields.fields,
        status=fields.status if endpoint.custom else decoded.status,
        meta=meta,
    )


def with_candidate(draft: Draft, before: Resource, after: Resource) -> Draft:
    """The draft with what webhooks changed between two candidates of it."""
    spec = after.spec
    if after.stored_version and after.status is not None:
        spec = {**spec, "status": after.status}
    changed = dict(after.labels)
    if labels.MESH not in draft.labels and changed.get(labels.MESH) == before.labels.get(labels.MESH):
        changed.pop(labels.MESH, None)
    return msgspec.structs.replace(
        draft,
        labels=changed,
        annotations=after.annotations if after.annotations != before.annotations else draft.annotations,
        spec=spec,
    )
