"""Admission of the Kubernetes form: from a decoded document to a planned write, by the same rules.

Documents come here without unknown fields. Kuma's and our kinds go through `core.admission`. Kubernetes' own
kinds have no mesh, no origin and none of our labels; only the rules of their kind apply to them.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from koguma.application import custom_admission, custom_definitions, namespaces, transactions
from koguma.application.context import Context
from koguma.application.write_access import WriteAccess
from koguma.core.admission import FieldValidation
from koguma.kube import field_errors, namespaced_names, native, quota
from koguma.kube.codec import DecodedObject
from koguma.kube.custom.version import CustomVersion
from koguma.kube.registry import KubeEndpoint
from koguma.model import labels
from koguma.model.errors import Invalid, NotFound
from koguma.model.forms import Draft
from koguma.model.kind import ValidationContext
from koguma.model.resource import NO_META, Key, Resource
from koguma.model.violation import Violation, key
from koguma.store.contract import Delete, Operation, Put, Require

_MESH_LABEL: Final = key("metadata.labels", labels.MESH)


class PlannedWrite(msgspec.Struct, frozen=True):
    """An object to store over a revision, the operations that come before it, and warnings for the writer."""

    resource: Resource
    expect: int | None
    first: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether this write removes the last finalizer of an object that is being deleted.

        Not for namespaces: they have finalizers of their own.
        """
        meta = self.resource.meta
        is_free = bool(meta.deletion_timestamp) and not meta.finalizers
        return is_free and self.resource.kind != namespaces.NAMESPACE

    def operations(self, context: Context) -> Sequence[Operation]:
        """The operations that store the object, or delete it where its last finalizer is gone."""
        if self.is_gone:
            return deletion(context, self.resource, self.expect)
        return (*self.first, Put(self.resource, self.expect))


def deletion(context: Context, resource: Resource, expect: int | None) -> Sequence[Operation]:
    """The operations that delete an object: at once, or marked for deletion while it has finalizers."""
    if resource.kind in context.kinds.by_name:
        return transactions.delete(context, resource, expect)
    if custom_definitions.is_definition(resource):
        return custom_definitions.deletion(context, resource, expect)
    if resource.kind == namespaces.NAMESPACE:
        return (Put(namespaces.terminating(transactions.marked_for_deletion(resource)), expect),)
    if resource.meta.finalizers:
        return (Put(transactions.marked_for_deletion(resource), expect),)
    return (Delete(resource.key, expect),)


class KubeAdmission(msgspec.Struct, frozen=True):
    """Admits documents at one endpoint, over one stored object, for one writer."""

    context: Context
    access: WriteAccess
    endpoint: KubeEndpoint
    before: Resource | None

    def planned(self, written: DecodedObject) -> PlannedWrite:
        """The write that a document asks for."""
        preconditions: tuple[Operation, ...] = ()
        if self.before is None:
            preconditions = self._namespace_operations(written)
        else:
            _check_finalizers(self.before, written)
        if self.endpoint.custom is not None:
            planned = self._custom(written, self.endpoint.custom)
        elif namespaced_names.is_native(self.endpoint.kind):
            planned = self._native(written)
        else:
            planned = self._ours(written)
        warnings = (*planned.warnings, *_finalizer_warnings(self.before, written))
        return msgspec.structs.replace(planned, first=(*preconditions, *planned.first), warnings=warnings)

    def _namespace_operations(self, written: DecodedObject) -> tuple[Operation, ...]:
        """The namespace of a new object: the first write into one creates it."""
        draft, endpoint = written.draft, self.endpoint
        if endpoint.kind.stored_as == namespaces.NAMESPACE:
            namespaces.check_new(self.context, draft.name)
        if not endpoint.namespaced:
            return ()
        what, name = f'{endpoint.qualified} "{draft.name}"', draft.namespace or ""
        required = namespaces.required_namespace(self.context, name, what)
        return (*namespaces.still_there(self.context, name), *required)

    def _ours(self, written: DecodedObject) -> PlannedWrite:
        before = self.before
        if before is not None:  # managed fields are computed by the caller in this form
            before = msgspec.structs.replace(before, meta=NO_META)
        draft = _in_its_mesh(written, before)
        try:
            admitted, operations = transactions.put(
                self.context, self.access, draft, before, FieldValidation.STRICT, _MESH_LABEL
            )
        except Invalid as error:
            raise Invalid(list(self._in_endpoint_fields(error.violations)), error.detail) from None
        # The stored version may use deprecated fields that the writer's version does not have.
        warnings = tuple(
            warning
            for warning in admitted.warnings
            if not self.endpoint.converter or "is deprecated" not in warning
        )
        *preconditions, put = operations
        assert isinstance(put, Put), "the object itself comes last"
        return PlannedWrite(admitted.resource, put.expect, tuple(preconditions), warnings)

    def _in_endpoint_fields(self, violations: Iterable[Violation]) -> list[Violation]:
        return list(self.endpoint.conversion.relocated(violations))

    def _native(self, written: DecodedObject) -> PlannedWrite:
        draft, kind, before = written.draft, self.endpoint.kind, self.before
        namespace = (draft.namespace or "") if self.endpoint.namespaced else ""
        validation = ValidationContext(
            control_plane=self.context.control_plane,
            name=draft.name,
            namespace=namespace,
            labels=draft.labels,
            stored=before.spec if before else None,
        )
        spec = native.stored_spec(kind, draft.spec, validation.stored)
        violations = [
            *native.name_violations(kind, draft.name),
            *labels.syntax(draft.labels, "metadata.labels"),
            *kind.violations(spec, validation),
        ]
        if violations:
            raise Invalid(violations)
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
        if custom_definitions.is_definition(resource):
            custom_definitions.check(self.context, resource, before)
            status = custom_definitions.status_of(self.context, resource)
            resource = msgspec.structs.replace(resource, status=status)
        warnings: Iterable[str] = ()
        if quota.is_quota(resource):
            warnings = quota.warnings(spec, self.context.catalog.registry)
        elif custom_definitions.is_definition(resource):
            warnings = custom_definitions.warnings(resource)
        return PlannedWrite(resource, self._expected_revision(resource), (), tuple(warnings))

    def _custom(self, written: DecodedObject, version: CustomVersion) -> PlannedWrite:
        resource = custom_admission.admitted(self.endpoint, written, self.before)
        gone = NotFound(f"the definition of {self.endpoint.qualified} was deleted in the meantime")
        first = (Require(version.definition, gone),) if self.before is None else ()
        return PlannedWrite(resource, self._expected_revision(resource), first)

    def _expected_revision(self, resource: Resource) -> int:
        if self.before is not None:
            return self.before.revision
        return _unreadable_revision(self.context, resource.key)


def _in_its_mesh(written: DecodedObject, before: Resource | None) -> Draft:
    """The draft in the mesh of the stored object, which cannot change."""
    draft = written.draft
    if before is None or not draft.kind.is_mesh_scoped:
        return draft
    mesh = draft.mesh or before.mesh
    if mesh != before.mesh:
        text = f'is stored in mesh "{before.mesh}"; delete it there to write it in mesh "{mesh}"'
        raise Invalid([Violation(key("metadata.labels", labels.MESH), text, "immutable")])
    return msgspec.structs.replace(draft, mesh=before.mesh)


def _unreadable_revision(context: Context, stored_key: Key) -> int:
    unreadable = context.state.unreadable.get(stored_key)  # may be overwritten, as it is
    return unreadable.revision if unreadable else 0


def _check_finalizers(before: Resource, written: DecodedObject) -> None:
    added = sorted(set(written.meta.finalizers) - set(before.meta.finalizers))
    if before.meta.deletion_timestamp and added:
        named = ", ".join(f'"{name}"' for name in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers"
        raise Invalid([field_errors.forbidden("metadata.finalizers", f"{text} []string{{{named}}}")])


def _finalizer_warnings(before: Resource | None, written: DecodedObject) -> list[str]:
    existing = before.meta.finalizers if before else ()
    return [
        f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name including a path (/)'
        " to avoid accidental conflicts with other finalizer writers"
        for name in written.meta.finalizers
        if "/" not in name and name not in existing and name not in native.STANDARD_FINALIZERS
    ]
