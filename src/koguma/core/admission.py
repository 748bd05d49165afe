"""Admission: what an object must look like before it may be stored, and the labels that it gets.

`admitted(draft, ...)` either gives the resource to store, with warnings, or raises Invalid with every
violation at once: identity, labels, then the spec. It reads only its arguments.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from koguma.core import defaults, identity, role
from koguma.core.identity import Identity
from koguma.model import labels, names, typed_parts
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Invalid
from koguma.model.forms import Draft, Form
from koguma.model.kind import Kind, PatchChecks, ValidationContext
from koguma.model.resource import NO_META, Resource, is_same
from koguma.model.schema import UNKNOWN, Json
from koguma.model.violation import Violation, key, told_texts, under

_COMPUTED_ONCE: Final = (labels.DISPLAY_NAME, labels.ORIGIN)
_PROXYS_OWN: Final = frozenset({labels.REGISTERED_BY, labels.INSTANCE})  # on a Dataplane that a proxy brings


class FieldValidation(Enum):
    """What happens to fields that do not exist: refused, stored with a warning, or stored in silence."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


class Admitted(msgspec.Struct, frozen=True):
    """An object that may be stored, and what its writer should hear."""

    resource: Resource
    warnings: tuple[str, ...] = ()
    replaces: int = 0  # the revision of what it replaces
    ignored: tuple[Violation, ...] = ()  # fields that do not exist, and are stored all the same


def admitted(
    draft: Draft,
    stored: Resource | None,
    control_plane: ControlPlaneInfo,
    unknown_fields: FieldValidation = FieldValidation.STRICT,
    patch_checks: PatchChecks | None = None,
) -> Admitted:
    """The resource that a draft makes, on top of what is stored under the same core name."""
    draft = _with_kept_labels(draft, stored)
    wanted = identity.of(draft, control_plane)
    violations = [
        *_identity_violations(draft, wanted, control_plane),
        *_label_violations(draft, wanted, control_plane),
    ]
    context = ValidationContext(
        control_plane=control_plane,
        name=wanted.key.name,
        mesh=wanted.key.mesh,
        namespace=wanted.key.namespace,
        labels=draft.labels,
        stored=stored.spec if stored else None,
        patch_checks=patch_checks,
    )
    found = [*draft.unknown, *_spec_violations(draft, context)]
    is_strict = unknown_fields is FieldValidation.STRICT
    ignorable = [v for v in found if v.rule == UNKNOWN and not is_strict]
    violations += [v for v in found if v.rule != UNKNOWN or is_strict]
    if violations:
        raise Invalid(violations)
    computed = computed_labels(draft, wanted, control_plane)
    if stored is not None:
        # Only who writes it asks for another display name; a name that differs is told below as such.
        named = {labels.DISPLAY_NAME: stored.labels.get(labels.DISPLAY_NAME, stored.name)}
        asked = {**computed, **named, **_written_once(draft)}
        _check_immutable(stored, wanted, asked, _labels_field(draft))
    warnings = (
        [f"{v.field}: {v.message}" for v in ignorable] if unknown_fields is FieldValidation.WARN else []
    )
    warnings += _warnings(draft, context)
    warnings += _not_kept(draft, computed)
    replaces = stored.revision if stored else 0
    made = _resource(draft, wanted, computed, stored)
    return Admitted(made, told_texts(warnings), replaces, tuple(ignorable))


def identity_of(draft: Draft, stored: Resource | None, control_plane: ControlPlaneInfo) -> Identity:
    """Where a draft is to be stored, on top of what is stored under the same core name."""
    return identity.of(_with_kept_labels(draft, stored), control_plane)


def is_stored(draft: Draft, stored: Resource, control_plane: ControlPlaneInfo) -> bool:
    """Whether a draft says what is stored and nothing else; that was admitted when it was written."""
    kept = _with_kept_labels(draft, stored)
    wanted = identity.of(kept, control_plane)
    return (
        (wanted.key, wanted.core_name) == (stored.key, stored.core_name)
        and not draft.unknown
        and draft.labels.items() <= stored.labels.items()
        and not any(_origin_violations(kept, wanted, control_plane))
        and is_same(draft.kind.filled(draft.spec, stored.spec), stored.spec)
        and computed_labels(kept, wanted, control_plane) == stored.labels
    )


def is_restated(draft: Draft, stored: Resource, control_plane: ControlPlaneInfo) -> bool:
    """Whether a Dataplane that a proxy brings says nothing else than one that an operator wrote.

    Labels that say who brought it, and which run of it, are the proxy's own; the operator may have more.
    """
    wanted = identity.of(_with_kept_labels(draft, stored), control_plane)
    own = {name: value for name, value in draft.labels.items() if name not in _PROXYS_OWN}
    return (
        wanted.key == stored.key
        and not draft.unknown
        and own.items() <= stored.labels.items()
        and is_same(draft.kind.filled(draft.spec, stored.spec), stored.spec)
    )


def _with_kept_labels(draft: Draft, stored: Resource | None) -> Draft:
    """An update that does not mention where the object lives leaves it there."""
    if stored is None:
        return draft
    kept = {name: stored.labels[name] for name in (labels.ZONE, labels.NAMESPACE) if name in stored.labels}
    return msgspec.structs.replace(draft, labels={**kept, **draft.labels})


def _resource(
    draft: Draft, wanted: Identity, computed: Mapping[str, str], stored: Resource | None
) -> Resource:
    annotations = draft.annotations
    if annotations is None:
        annotations = stored.annotations if stored else {}
    return Resource(
        kind=draft.kind.name,
        mesh=wanted.key.mesh,
        zone=wanted.key.zone,
        namespace=wanted.key.namespace,
        name=wanted.key.name,
        core_name=stored.core_name if stored else wanted.core_name,
        labels=computed,
        annotations=annotations,
        spec=draft.kind.filled(draft.spec, _spec_of_same_run(draft, stored)),
        status=stored.status if stored else None,
        meta=stored.meta if stored else NO_META,
    )


def _spec_of_same_run(draft: Draft, stored: Resource | None) -> Json:
    """What is stored already; nothing where another run of a proxy wrote it, since that knew of another."""
    if stored is None or draft.labels.get(labels.INSTANCE) != stored.labels.get(labels.INSTANCE):
        return None
    return stored.spec


def _identity_violations(
    draft: Draft, wanted: Identity, control_plane: ControlPlaneInfo
) -> Iterator[Violation]:
    kind, name = draft.kind, wanted.key.name
    field = "name" if draft.form is Form.PLAIN else "metadata.name"
    found = list(names.identifier(draft.name, field))
    yield from found
    if not found:
        yield from _length_violations(kind, name, wanted, control_plane, field)
    if kind.is_mesh_scoped and not names.is_dns1035_label(wanted.key.mesh):
        yield Violation("mesh", f'"{wanted.key.mesh}" cannot be a mesh: {names.DNS1035_MESSAGE}', "name")
    namespace = wanted.key.namespace
    at = key("labels", labels.NAMESPACE) if draft.form is Form.PLAIN else "metadata.namespace"
    if namespace and not names.is_dns_label(namespace):
        yield Violation(at, "must be an RFC 1123 label: at most 63 of a-z, 0-9 and '-'", "name")
    elif identity.is_reserved(namespace):
        yield Violation(
            at, f'"{namespace}" is reserved for objects of a mesh that have no namespace', "reserved"
        )
    elif namespace and kind.system_namespace_only and namespace != control_plane.system_namespace:
        yield Violation(
            at, f"{kind.name} is allowed in namespace {control_plane.system_namespace} only", "namespace"
        )


def _length_violations(
    kind: Kind, name: str, wanted: Identity, control_plane: ControlPlaneInfo, field: str
) -> Iterator[Violation]:
    if control_plane.federated and len(f"{control_plane.zone}.{wanted.core_name}") >= names.NAME_LENGTH_MAX:
        yield Violation(field, "the length of the name must be shorter", "length")
    if not kind.dns_name:
        return
    verb = "cannot" if kind.name == "Mesh" else "must not"
    if len(name) > names.LABEL_LENGTH_MAX:
        yield Violation(field, f"{verb} be longer than {names.LABEL_LENGTH_MAX} characters", "length")
    elif _is_kri_part(kind) and not names.is_dns1035_label(name):
        # A mesh's and a zone's name stand in every KRI, whose rule is stricter than Kuma's own check.
        yield Violation(field, names.DNS1035_MESSAGE, "name")


def _is_kri_part(kind: Kind) -> bool:
    return kind.name in ("Mesh", "Zone")


def _label_violations(draft: Draft, wanted: Identity, control_plane: ControlPlaneInfo) -> Iterator[Violation]:
    yield from _origin_violations(draft, wanted, control_plane)
    yield from labels.syntax(draft.labels, _labels_field(draft))


def _labels_field(draft: Draft) -> str:
    return "labels" if draft.form is Form.PLAIN else "metadata.labels"


def _origin_violations(
    draft: Draft, wanted: Identity, control_plane: ControlPlaneInfo
) -> Iterator[Violation]:
    written = draft.labels
    field = _labels_field(draft)
    origin = written.get(labels.ORIGIN)
    at = key(field, labels.ORIGIN)
    if origin is not None and origin not in ("global", "zone"):
        yield Violation(at, f'unknown resource origin "{origin}"', "enum")
    elif control_plane.is_global and origin not in (None, "global"):
        yield Violation(at, "the origin label must be set to 'global'", "origin")
    elif control_plane.federated and not draft.kind.inline and origin != "zone":
        yield Violation(at, "the origin label must be set to 'zone'", "origin")
    if not control_plane.is_global:
        yield from _zone_label_violations(written, wanted, control_plane, field)


def _zone_label_violations(
    written: Mapping[str, str], wanted: Identity, control_plane: ControlPlaneInfo, field: str
) -> Iterator[Violation]:
    zone, mesh = written.get(labels.ZONE), written.get(labels.MESH)
    if zone is not None and zone != control_plane.zone:
        yield Violation(
            key(field, labels.ZONE), f"{labels.ZONE} label should have {control_plane.zone} value", "zone"
        )
    if mesh is not None and wanted.key.mesh and mesh != wanted.key.mesh:
        yield Violation(
            key(field, labels.MESH), f"{labels.MESH} label must not differ from mesh set on resource", "mesh"
        )


def _spec_violations(draft: Draft, context: ValidationContext) -> Iterator[Violation]:
    broken = False
    found = draft.kind.violations(draft.spec, context)
    if draft.kind.inline and draft.form is Form.KUBERNETES:  # the fields stand under `spec` there
        found = under("spec", found)
    for violation in found:
        broken |= violation.rule != UNKNOWN
        yield violation
    if not broken:
        try:
            role.of(draft.kind, draft.kind.clean(draft.spec), context.namespace, context.control_plane)
        except role.MixedRoles as error:
            yield Violation("spec", str(error), "role")


def remarks(kind: Kind, written: Json, context: ValidationContext) -> Iterator[str]:
    """What a kind warns about in a checked spec.

    The policies that come with a mesh are written as Kuma 2.13 writes them, with fields that it deprecates.
    Whoever did not write them need not hear that.
    """
    if not defaults.is_untouched(kind, context.mesh, context.name, written):
        yield from kind.warn(kind.read(kind.clean(written)), context)


def _warnings(draft: Draft, context: ValidationContext) -> Iterator[str]:
    kind = draft.kind
    yield from remarks(kind, draft.spec, context)
    if kind.dns_name and not names.is_dns1035_label(context.name):
        yield f'name "{context.name}" is no RFC 1035 label, so it cannot be part of a host name'


def computed_labels(draft: Draft, wanted: Identity, control_plane: ControlPlaneInfo) -> Mapping[str, str]:
    """The labels to store: what the user wrote, and what follows from where and how it was written."""
    kind = draft.kind
    computed = dict(draft.labels)
    computed[labels.DISPLAY_NAME] = wanted.key.name
    computed[labels.ORIGIN] = control_plane.origin
    if kind.is_mesh_scoped:
        computed.setdefault(labels.MESH, wanted.key.mesh)
    if control_plane.is_global:
        computed.pop(labels.ZONE, None)
    if wanted.key.zone:
        computed.setdefault(labels.ZONE, wanted.key.zone)
        computed.setdefault(labels.ENV, "universal")
    if wanted.key.namespace:
        computed[labels.NAMESPACE] = wanted.key.namespace
    if kind.proxy_type is not None:
        computed[labels.PROXY_TYPE] = kind.proxy_type(kind.clean(draft.spec))
    if kind.policy is not None and wanted.key.namespace:
        computed[labels.ROLE] = role.of(
            kind, kind.clean(draft.spec), wanted.key.namespace, control_plane
        ).value
    return {name: computed[name] for name in sorted(computed)}


def _written_once(draft: Draft) -> dict[str, str]:
    """Labels that are computed anyway, as somebody wrote them: an update must not ask for another value."""
    return {name: draft.labels[name] for name in _COMPUTED_ONCE if name in draft.labels}


def _not_kept(draft: Draft, computed: Mapping[str, str]) -> Iterator[str]:
    """What a writer wrote in vain. Kuma is silent about it."""
    for name in (*_COMPUTED_ONCE, labels.ZONE):
        value, kept = draft.labels.get(name), computed.get(name)
        if value is not None and value != kept:
            becomes = f'becomes "{kept}"' if kept is not None else "is not set on Global"
            yield f'{key(_labels_field(draft), name)}: is computed, and {becomes}; "{value}" is not kept'


def _check_immutable(stored: Resource, wanted: Identity, asked: Mapping[str, str], field: str) -> None:
    violations = []
    for name in (*_COMPUTED_ONCE, labels.ZONE, labels.NAMESPACE):
        before, after = stored.labels.get(name), asked.get(name)
        if before is not None and before != after:
            change = (
                f'is immutable, cannot be changed from "{before}" to "{after}"'
                if after is not None
                else f'is immutable, cannot be removed (was "{before}")'
            )
            violations.append(Violation(key(field, name), change, "immutable"))
    if not violations and stored.key != wanted.key:
        violations.append(Violation("name", f"is stored as {stored.key}", "immutable"))
    if violations:
        raise Invalid(violations, title="Could not update a resource")


MASK: Final = "*****"


def masked(spec: Json, kind: Kind) -> Json:
    """The spec with secret values hidden, for logs, diffs and people: by kind, and by the type of a field."""
    return _mask(spec) if kind.admin_only else typed_parts.masked(kind.spec, spec, MASK)


def masked_document(document: Json, kind: Kind) -> Json:
    """A document of either form with what is secret in its spec hidden."""
    if kind.inline and "metadata" not in document:
        outside = {name: document[name] for name in ("type", "mesh", "name", "labels") if name in document}
        return {**masked(document, kind), **outside}
    return {name: masked(part, kind) if name == "spec" else part for name, part in document.items()}


def _mask(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _mask(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_mask(part) for part in value]
    return MASK if isinstance(value, str) and value else value
