"""Admitting: from what a document asks for to what is stored, with the same rules as the plain form.

Objects of a mesh go through the house's admission. Kubernetes' own kinds have no mesh, no origin and none of
our labels; their rules are those of their kind alone.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from koguma.api import transactions
from koguma.api.context import Context
from koguma.api.user import User
from koguma.core.admission import FieldValidation
from koguma.kube import native, places
from koguma.kube.codec import Written
from koguma.kube.kinds import core
from koguma.kube.registry import Endpoint
from koguma.model import labels
from koguma.model.errors import Forbidden, Invalid, NotFound
from koguma.model.kind import About
from koguma.model.resource import Key, Meta, Resource
from koguma.model.schema import UNKNOWN
from koguma.model.violation import Violation
from koguma.store.contract import Delete, Ensure, Operation, Put

NAMESPACE: Final = core.NAMESPACE.stored_as


class Made(msgspec.Struct, frozen=True):
    """An object that may be stored: the operations that do it, one of which puts it, and what to tell."""

    resource: Resource
    operations: tuple[Operation, ...]
    warnings: tuple[str, ...] = ()

    def with_meta(self, meta: Meta) -> "Made":
        """The same with other metadata; what has lost its last finalizer on its way out is deleted."""
        resource = msgspec.structs.replace(self.resource, meta=meta)
        is_gone = bool(meta.deletion_timestamp) and not meta.finalizers
        operations = tuple(
            _stored(each, resource, is_gone=is_gone) if isinstance(each, Put) else each
            for each in self.operations
        )
        return msgspec.structs.replace(self, resource=resource, operations=operations)


def _stored(put: Put, resource: Resource, *, is_gone: bool) -> Operation:
    return Delete(resource.key, put.expect) if is_gone else Put(resource, put.expect)


def admitted(
    context: Context,
    user: User,
    endpoint: Endpoint,
    written: Written,
    before: Resource | None,
    validation: FieldValidation,
) -> Made:
    """What a document stores, over what is stored now."""
    if places.is_native(endpoint.kind):
        made = _native(context, endpoint, written, before, validation)
    else:
        made = _ours(context, user, endpoint, written, before, validation)
    if before is not None:
        _check_finalizers(before, written.meta)
    space = _space(context, endpoint, written, is_new=before is None)
    return msgspec.structs.replace(made, operations=(*space, *made.operations))


def _ours(
    context: Context,
    user: User,
    endpoint: Endpoint,
    written: Written,
    before: Resource | None,
    validation: FieldValidation,
) -> Made:
    draft = written.draft
    if before is not None and draft.kind.is_mesh_scoped:
        said = draft.mesh or before.mesh
        if said != before.mesh:
            text = f'is stored in mesh "{before.mesh}"; delete it there to write it in mesh "{said}"'
            at = f'metadata.labels["{labels.MESH}"]'
            raise Invalid([Violation(at, text, "immutable")])
        draft = msgspec.structs.replace(draft, mesh=before.mesh)
    try:
        done, operations = transactions.put(
            context, user, draft, before, validation, 'metadata.labels["kuma.io/mesh"]'
        )
    except Invalid as error:
        raise Invalid(list(endpoint.conversion.seen(error.violations)), error.detail) from None
    warnings = done.warnings
    if endpoint.converter is not None:  # what is stored may be spelled in ways that its writer did not use
        warnings = tuple(text for text in warnings if "is deprecated" not in text)
    return Made(done.resource, tuple(operations), warnings)


def _native(
    context: Context,
    endpoint: Endpoint,
    written: Written,
    before: Resource | None,
    validation: FieldValidation,
) -> Made:
    draft, kind = written.draft, endpoint.kind
    namespace = (draft.namespace or "") if endpoint.namespaced else ""
    about = About(
        place=context.place,
        name=draft.name,
        namespace=namespace,
        labels=draft.labels,
        stored=before.spec if before else None,
    )
    spec = native.prepared(kind, draft.spec, before.spec if before else None)
    found = [
        *native.name_violations(kind, draft.name),
        *labels.syntax(draft.labels, "metadata.labels"),
        *draft.unknown,
        *kind.violations(spec, about),
    ]
    warnings = _sifted(found, validation)
    resource = Resource(
        kind=kind.stored_as,
        namespace=namespace,
        name=draft.name,
        core_name=f"{draft.name}.{namespace}" if namespace else draft.name,
        labels={**draft.labels, **native.added_labels(kind, draft.name)},
        annotations=draft.annotations or {},
        spec=spec,
        status=before.status if before else native.first_status(kind),
    )
    seen = before.revision if before else _broken(context, resource.key)
    expected = draft.revision if draft.revision is not None else seen
    return Made(resource, (Put(resource, expected),), tuple(warnings))


def _broken(context: Context, key: Key) -> int:
    broken = context.state.unreadable.get(key)  # may be overwritten, as it is
    return broken.revision if broken else 0


def _sifted(found: Sequence[Violation], validation: FieldValidation) -> Iterator[str]:
    """Raise Invalid for what may not be; give what is only to be told."""
    ignorable = [v for v in found if v.rule == UNKNOWN and validation is not FieldValidation.STRICT]
    violations = [v for v in found if v not in ignorable]
    if violations:
        raise Invalid(violations)
    told = ignorable if validation is FieldValidation.WARN else []
    return (f"{v.field}: {v.message}" for v in told)


def _check_finalizers(before: Resource, wanted: Meta) -> None:
    added = set(wanted.finalizers) - set(before.meta.finalizers)
    if before.meta.deletion_timestamp and added:
        text = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers"
        )
        raise Invalid([Violation("metadata.finalizers", f"{text} {sorted(added)}", "forbidden")])


def _space(context: Context, endpoint: Endpoint, written: Written, *, is_new: bool) -> Iterator[Operation]:
    """The namespace that an object needs: the first write into one makes it.

    Into one that is on its way out nothing new comes; what is there can still be written, or nobody could
    take off the finalizers that hold it.
    """
    namespace = written.draft.namespace
    if not endpoint.namespaced or not namespace:
        return
    stored = context.state.get(namespace_key(namespace))
    if stored is not None:
        if stored.meta.deletion_timestamp and is_new:
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = Violation("metadata.namespace", text, "terminating")
            raise Forbidden(text, violations=[cause])
        return
    mesh = places.mesh_of(namespace)
    if mesh is not None and places.is_native(endpoint.kind) and mesh not in _reserved(context):
        raise NotFound(f'namespaces "{namespace}" not found: there is no mesh "{mesh}"')
    yield Ensure(namespace_resource(namespace))


def _reserved(context: Context) -> set[str]:
    return {"global", *(mesh.name for mesh in context.state.listed("Mesh"))}


def namespace_key(name: str) -> Key:
    """Where a Namespace is stored."""
    return Key(NAMESPACE, "", "", "", name)


def namespace_resource(name: str) -> Resource:
    """A Namespace as the first write into it makes it."""
    kind = core.NAMESPACE
    return Resource(
        kind=NAMESPACE,
        name=name,
        core_name=name,
        labels=native.added_labels(kind, name),
        spec=native.prepared(kind, {}),
        status=native.first_status(kind),
    )
