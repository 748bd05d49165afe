"""Admitting: from what a document asks for to what is stored, with the same rules as the plain form.

Objects of a mesh go through the house's admission. Kubernetes' own kinds have no mesh, no origin and none of
our labels; their rules are those of their kind alone.
"""

from collections.abc import Iterable, Sequence

import msgspec

from koguma.application import namespaces, transactions
from koguma.application.context import Context
from koguma.application.write_access import WriteAccess
from koguma.core.admission import FieldValidation
from koguma.kube import field_errors, namespaced_names, native
from koguma.kube.codec import DecodedObject
from koguma.kube.registry import KubeEndpoint
from koguma.model import labels
from koguma.model.errors import Invalid
from koguma.model.forms import Draft
from koguma.model.kind import ValidationContext
from koguma.model.resource import NO_META, Key, Resource
from koguma.model.schema import UNKNOWN
from koguma.model.violation import Violation, key, truncated_texts
from koguma.store.contract import Delete, Operation, Put


class PlannedWrite(msgspec.Struct, frozen=True):
    """An object that may be stored over a revision, what must hold or be done first, and what to tell."""

    resource: Resource
    expect: int | None
    first: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether it has lost its last finalizer on its way out; namespaces have finalizers of their own."""
        meta = self.resource.meta
        is_free = bool(meta.deletion_timestamp) and not meta.finalizers
        return is_free and self.resource.kind != namespaces.NAMESPACE

    def operations(self, context: Context) -> Sequence[Operation]:
        """What stores it, or removes it where it is gone by what was written."""
        if self.is_gone:
            return removal(context, self.resource, self.expect)
        return (*self.first, Put(self.resource, self.expect))


def removal(context: Context, resource: Resource, expect: int | None) -> Sequence[Operation]:
    """What deletes an object: at once, or as soon as nothing holds it any more."""
    if resource.kind in context.kinds.by_name:
        return transactions.delete(context, resource, expect)
    if resource.kind == namespaces.NAMESPACE:
        return (Put(namespaces.ended(transactions.ending(resource)), expect),)
    if resource.meta.finalizers:
        return (Put(transactions.ending(resource), expect),)
    return (Delete(resource.key, expect),)


class KubeAdmission(msgspec.Struct, frozen=True):
    """What a document is admitted to: an endpoint, over what is stored there, by somebody."""

    context: Context
    access: WriteAccess
    endpoint: KubeEndpoint
    before: Resource | None
    validation: FieldValidation

    def made(self, written: DecodedObject) -> PlannedWrite:
        """What a document stores."""
        first: tuple[Operation, ...] = ()
        if self.before is None:
            first = self._room(written)
        else:
            _check_finalizers(self.before, written)
        made = (
            self._native(written) if namespaced_names.is_native(self.endpoint.kind) else self._ours(written)
        )
        warnings = (*made.warnings, *_finalizer_warnings(self.before, written))
        return msgspec.structs.replace(made, first=(*first, *made.first), warnings=warnings)

    def _room(self, written: DecodedObject) -> tuple[Operation, ...]:
        """The namespace that a new object needs: the first write into one makes it."""
        draft, endpoint = written.draft, self.endpoint
        if endpoint.kind.stored_as == namespaces.NAMESPACE:
            namespaces.check_new(self.context, draft.name)
        if not endpoint.namespaced:
            return ()
        what = f'{endpoint.qualified} "{draft.name}"'
        return tuple(namespaces.needed(self.context, draft.namespace or "", what))

    def _ours(self, written: DecodedObject) -> PlannedWrite:
        before, validation = self.before, self.validation
        if before is not None:  # who owns what is for the writer of this form to say
            before = msgspec.structs.replace(before, meta=NO_META)
        if validation is FieldValidation.WARN:
            validation = FieldValidation.IGNORE  # told below, in Kubernetes' words
        draft = _in_its_mesh(written, before)
        try:
            done, operations = transactions.put(
                self.context, self.access, draft, before, validation, key("metadata.labels", labels.MESH)
            )
        except Invalid as error:
            raise Invalid(list(self._seen(error.violations)), error.detail) from None
        warnings = self._told(self._seen(done.ignored))
        # What is stored may be spelled in ways that its writer did not use.
        said = (each for each in done.warnings if not self.endpoint.converter or "is deprecated" not in each)
        *first, put = operations
        assert isinstance(put, Put), "the object itself comes last"
        return PlannedWrite(done.resource, put.expect, tuple(first), (*warnings, *said))

    def _seen(self, violations: Iterable[Violation]) -> list[Violation]:
        return list(self.endpoint.conversion.relocated(violations))

    def _native(self, written: DecodedObject) -> PlannedWrite:
        draft, kind, before = written.draft, self.endpoint.kind, self.before
        namespace = (draft.namespace or "") if self.endpoint.namespaced else ""
        about = ValidationContext(
            control_plane=self.context.control_plane,
            name=draft.name,
            namespace=namespace,
            labels=draft.labels,
            stored=before.spec if before else None,
        )
        spec = native.prepared(kind, draft.spec, about.stored)
        found = [
            *native.name_violations(kind, draft.name),
            *labels.syntax(draft.labels, "metadata.labels"),
            *draft.unknown,
            *kind.violations(spec, about),
        ]
        ignored = self._sifted(found)
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
        seen = before.revision if before else _broken(self.context, resource.key)
        return PlannedWrite(resource, seen, (), self._told(ignored))

    def _sifted(self, found: Sequence[Violation]) -> list[Violation]:
        """Raise Invalid for what may not be; give what is only to be told."""
        is_strict = self.validation is FieldValidation.STRICT
        ignorable = [v for v in found if v.rule == UNKNOWN and not is_strict]
        violations = [v for v in found if v.rule != UNKNOWN or is_strict]
        if violations:
            raise Invalid(violations)
        return ignorable

    def _told(self, ignored: Iterable[Violation]) -> tuple[str, ...]:
        is_told = self.validation is FieldValidation.WARN
        return truncated_texts(unknown_text(violation) for violation in ignored) if is_told else ()


def unknown_text(violation: Violation) -> str:
    """What is told of a field that does not exist, in Kubernetes' words, with what was probably meant."""
    _, mark, meant = violation.message.partition("; did you mean ")
    return f'unknown field "{violation.field}"{mark}{meant}'


def _in_its_mesh(written: DecodedObject, before: Resource | None) -> Draft:
    """What is asked for, in the mesh of what is stored where there is something."""
    draft = written.draft
    if before is None or not draft.kind.is_mesh_scoped:
        return draft
    said = draft.mesh or before.mesh
    if said != before.mesh:
        text = f'is stored in mesh "{before.mesh}"; delete it there to write it in mesh "{said}"'
        raise Invalid([Violation(key("metadata.labels", labels.MESH), text, "immutable")])
    return msgspec.structs.replace(draft, mesh=before.mesh)


def _broken(context: Context, at: Key) -> int:
    broken = context.state.unreadable.get(at)  # may be overwritten, as it is
    return broken.revision if broken else 0


def _check_finalizers(before: Resource, written: DecodedObject) -> None:
    added = sorted(set(written.meta.finalizers) - set(before.meta.finalizers))
    if before.meta.deletion_timestamp and added:
        named = ", ".join(f'"{name}"' for name in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers"
        raise Invalid([field_errors.forbidden("metadata.finalizers", f"{text} []string{{{named}}}")])


def _finalizer_warnings(before: Resource | None, written: DecodedObject) -> list[str]:
    known = before.meta.finalizers if before else ()
    return [
        f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name including a path (/)'
        " to avoid accidental conflicts with other finalizer writers"
        for name in written.meta.finalizers
        if "/" not in name and name not in known and name not in native.STANDARD_FINALIZERS
    ]
