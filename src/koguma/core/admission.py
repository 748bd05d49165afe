"""Admission: whether an object may be stored, and the labels that it gets.

`admitted(draft, ...)` either gives the resource to store, with warnings, or raises Invalid with all
violations at once: of the identity, the labels, then the spec. It reads only its arguments.
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
from koguma.model.violation import Violation, key, truncated_texts, under

_COMPUTED_ONCE: Final = (labels.DISPLAY_NAME, labels.ORIGIN)
_PROXYS_OWN: Final = frozenset(
    {labels.REGISTERED_BY, labels.INSTANCE}
)  # on a Dataplane that a proxy registers


class FieldValidation(Enum):
    """What happens to unknown fields: refused, stored with a warning, or just stored, as in Kubernetes."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


class Admitted(msgspec.Struct, frozen=True):
    """An object that may be stored, and warnings for its writer."""

    resource: Resource
    warnings: tuple[str, ...] = ()
    replaces: int = 0  # the revision of what it replaces


def admitted(
    draft: Draft,
    stored: Resource | None,
    control_plane: ControlPlaneInfo,
    unknown_fields: FieldValidation = FieldValidation.STRICT,
    patch_checks: PatchChecks | None = None,
) -> Admitted:
    """The resource to store for a draft; `stored` is what is stored under the same core name."""
    if stored is not None and (elsewhere := written_elsewhere(stored, control_plane)):
        raise Invalid([Violation(key(_labels_field(draft), labels.ORIGIN), elsewhere, "origin")])
    draft = _with_kept_labels(draft, stored)
    identity_ = identity.of(draft, control_plane)
    violations = [
        *_identity_violations(draft, identity_, control_plane),
        *_label_violations(draft, identity_, control_plane),
    ]
    context = ValidationContext(
        control_plane=control_plane,
        name=identity_.key.name,
        mesh=identity_.key.mesh,
        namespace=identity_.key.namespace,
        labels=draft.labels,
        stored=stored.spec if stored else None,
        patch_checks=patch_checks,
    )
    spec_violations = [*draft.unknown, *_spec_violations(draft, context)]
    is_strict = unknown_fields is FieldValidation.STRICT
    ignorable = [v for v in spec_violations if v.rule == UNKNOWN and not is_strict]
    violations += [v for v in spec_violations if v.rule != UNKNOWN or is_strict]
    if violations:
        raise Invalid(violations)
    computed = computed_labels(draft, identity_, control_plane)
    if stored is not None:
        # A display name changes only where somebody writes it; `_check_immutable` reports a changed name.
        display_name = {labels.DISPLAY_NAME: stored.labels.get(labels.DISPLAY_NAME, stored.name)}
        requested_labels = {**computed, **display_name, **_written_once(draft)}
        _check_immutable(stored, identity_, requested_labels, _labels_field(draft))
    warnings = (
        [f"{v.field}: {v.message}" for v in ignorable] if unknown_fields is FieldValidation.WARN else []
    )
    warnings += _warnings(draft, context)
    warnings += _overwritten(draft, computed)
    replaces = stored.revision if stored else 0
    resource = _resource(draft, identity_, computed, stored)
    return Admitted(resource, truncated_texts(warnings), replaces)


def identity_of(draft: Draft, stored: Resource | None, control_plane: ControlPlaneInfo) -> Identity:
    """The identity of a draft; `stored` is what is stored under the same core name."""
    return identity.of(_with_kept_labels(draft, stored), control_plane)


def is_stored(draft: Draft, stored: Resource, control_plane: ControlPlaneInfo) -> bool:
    """Whether a draft equals what is stored; that was admitted when it was written."""
    kept = _with_kept_labels(draft, stored)
    identity_ = identity.of(kept, control_plane)
    return (
        (identity_.key, identity_.core_name) == (stored.key, stored.core_name)
        and not draft.unknown
        and draft.labels.items() <= stored.labels.items()
        and not any(_origin_violations(kept, identity_, control_plane))
        and is_same(draft.kind.filled(draft.spec, stored.spec), stored.spec)
        and computed_labels(kept, identity_, control_plane) == stored.labels
    )


def is_restated(draft: Draft, stored: Resource, control_plane: ControlPlaneInfo) -> bool:
    """Whether a Dataplane that a proxy registers equals one that an operator wrote.

    Labels that name the registering proxy and its run do not count; the operator's may have more labels.
    """
    identity_ = identity.of(_with_kept_labels(draft, stored), control_plane)
    written_labels = {name: value for name, value in draft.labels.items() if name not in _PROXYS_OWN}
    return (
        identity_.key == stored.key
        and not draft.unknown
        and written_labels.items() <= stored.labels.items()
        and is_same(draft.kind.filled(draft.spec, stored.spec), stored.spec)
    )


def _with_kept_labels(draft: Draft, stored: Resource | None) -> Draft:
    """The draft, with the stored zone and namespace labels where it has none: an update moves no object."""
    if stored is None:
        return draft
    kept = {name: stored.labels[name] for name in (labels.ZONE, labels.NAMESPACE) if name in stored.labels}
    return msgspec.structs.replace(draft, labels={**kept, **draft.labels})


def _resource(
    draft: Draft, identity_: Identity, computed: Mapping[str, str], stored: Resource | None
) -> Resource:
    annotations = draft.annotations
    if annotations is None:
        annotations = stored.annotations if stored else {}
    return Resource(
        kind=draft.kind.name,
        mesh=identity_.key.mesh,
        zone=identity_.key.zone,
        namespace=identity_.key.namespace,
        name=identity_.key.name,
        core_name=stored.core_name if stored else identity_.core_name,
        labels=computed,
        annotations=annotations,
        spec=draft.kind.filled(draft.spec, _spec_of_same_run(draft, stored)),
        status=stored.status if stored else None,
        meta=stored.meta if stored else NO_META,
    )


def _spec_of_same_run(draft: Draft, stored: Resource | None) -> Json:
    """The stored spec, from which fields are filled; None where another run of the proxy registered it."""
    if stored is None or draft.labels.get(labels.INSTANCE) != stored.labels.get(labels.INSTANCE):
        return None
    return stored.spec


def _identity_violations(
    draft: Draft, identity_: Identity, control_plane: ControlPlaneInfo
) -> Iterator[Violation]:
    kind, name = draft.kind, identity_.key.name
    field = "name" if draft.form is Form.PLAIN else "metadata.name"
    name_violations = list(names.identifier(draft.name, field))
    yield from name_violations
    if not name_violations:
        yield from _length_violations(kind, name, identity_, control_plane, field)
    if kind.is_mesh_scoped and not names.is_dns1035_label(identity_.key.mesh):
        yield Violation("mesh", f'"{identity_.key.mesh}" cannot be a mesh: {names.DNS1035_MESSAGE}', "name")
    namespace = identity_.key.namespace
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
    kind: Kind, name: str, identity_: Identity, control_plane: ControlPlaneInfo, field: str
) -> Iterator[Violation]:
    if (
        control_plane.federated
        and len(f"{control_plane.zone}.{identity_.core_name}") >= names.NAME_LENGTH_MAX
    ):
        yield Violation(field, "the length of the name must be shorter", "length")
    if not kind.dns_name:
        return
    verb = "cannot" if kind.name == "Mesh" else "must not"
    if len(name) > names.LABEL_LENGTH_MAX:
        yield Violation(field, f"{verb} be longer than {names.LABEL_LENGTH_MAX} characters", "length")
    elif _is_kri_part(kind) and not names.is_dns1035_label(name):
        # The names of meshes and zones are part of every KRI, whose rule is stricter than Kuma's own check.
        yield Violation(field, names.DNS1035_MESSAGE, "name")


def _is_kri_part(kind: Kind) -> bool:
    return kind.name in ("Mesh", "Zone")


def _label_violations(
    draft: Draft, identity_: Identity, control_plane: ControlPlaneInfo
) -> Iterator[Violation]:
    yield from _origin_violations(draft, identity_, control_plane)
    yield from labels.syntax(draft.labels, _labels_field(draft))


def _labels_field(draft: Draft) -> str:
    return "labels" if draft.form is Form.PLAIN else "metadata.labels"


def _origin_violations(
    draft: Draft, identity_: Identity, control_plane: ControlPlaneInfo
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
        yield from _zone_label_violations(written, identity_, control_plane, field)


def _zone_label_violations(
    written: Mapping[str, str], identity_: Identity, control_plane: ControlPlaneInfo, field: str
) -> Iterator[Violation]:
    zone, mesh = written.get(labels.ZONE), written.get(labels.MESH)
    if zone is not None and zone != control_plane.zone:
        yield Violation(
            key(field, labels.ZONE), f"{labels.ZONE} label should have {control_plane.zone} value", "zone"
        )
    if mesh is not None and identity_.key.mesh and mesh != identity_.key.mesh:
        yield Violation(
            key(field, labels.MESH), f"{labels.MESH} label must not differ from mesh set on resource", "mesh"
        )


def _spec_violations(draft: Draft, context: ValidationContext) -> Iterator[Violation]:
    is_invalid = False
    violations = draft.kind.violations(draft.spec, context)
    if draft.kind.inline and draft.form is Form.KUBERNETES:  # the fields stand under `spec` there
        violations = under("spec", violations)
    for violation in violations:
        is_invalid |= violation.rule != UNKNOWN
        yield violation
    if not is_invalid:
        try:
            role.of(draft.kind, draft.kind.clean(draft.spec), context.namespace, context.control_plane)
        except role.MixedRoles as error:
            yield Violation("spec", str(error), "role")


def kind_warnings(kind: Kind, written: Json, context: ValidationContext) -> Iterator[str]:
    """The warnings of a kind about a valid spec.

    The default policies of a mesh are written as Kuma 2.13 writes them, with fields that it deprecates.
    Nobody wrote them by hand, so they cause no warnings.
    """
    if not defaults.is_untouched(kind, context.mesh, context.name, written):
        yield from kind.warn(kind.read(kind.clean(written)), context)


def _warnings(draft: Draft, context: ValidationContext) -> Iterator[str]:
    kind = draft.kind
    yield from kind_warnings(kind, draft.spec, context)
    if kind.dns_name and not names.is_dns1035_label(context.name):
        yield f'name "{context.name}" is no RFC 1035 label, so it cannot be part of a host name'


def computed_labels(draft: Draft, identity_: Identity, control_plane: ControlPlaneInfo) -> Mapping[str, str]:
    """The labels to store: those that the user wrote, and those computed from identity and control plane."""
    kind = draft.kind
    computed = dict(draft.labels)
    computed[labels.DISPLAY_NAME] = identity_.key.name
    computed[labels.ORIGIN] = control_plane.origin
    if kind.is_mesh_scoped:
        computed.setdefault(labels.MESH, identity_.key.mesh)
    if control_plane.is_global:
        computed.pop(labels.ZONE, None)
    if identity_.key.zone:
        computed.setdefault(labels.ZONE, identity_.key.zone)
        computed.setdefault(labels.ENV, "universal")
    if identity_.key.namespace:
        computed[labels.NAMESPACE] = identity_.key.namespace
    if kind.proxy_type is not None:
        computed[labels.PROXY_TYPE] = kind.proxy_type(kind.clean(draft.spec))
    if kind.policy is not None and identity_.key.namespace:
        computed[labels.ROLE] = role.of(
            kind, kind.clean(draft.spec), identity_.key.namespace, control_plane
        ).value
    return {name: computed[name] for name in sorted(computed)}


def _written_once(draft: Draft) -> dict[str, str]:
    """Computed labels that the user wrote: an update must not ask for another value."""
    return {name: draft.labels[name] for name in _COMPUTED_ONCE if name in draft.labels}


def _overwritten(draft: Draft, computed: Mapping[str, str]) -> Iterator[str]:
    """Warnings about labels that were written and are overwritten; Kuma gives none."""
    for name in (*_COMPUTED_ONCE, labels.ZONE):
        value, kept = draft.labels.get(name), computed.get(name)
        if value is not None and value != kept:
            becomes = f'becomes "{kept}"' if kept is not None else "is not set on Global"
            yield f'{key(_labels_field(draft), name)}: is computed, and {becomes}; "{value}" is not kept'


def written_elsewhere(stored: Resource, control_plane: ControlPlaneInfo) -> str:
    """Why an object cannot be written here, and where it can be; empty where it can.

    It begins with Kuma's words, which say less.
    """
    here = control_plane.origin
    is_alone = not (control_plane.is_global or control_plane.federated)
    if is_alone or stored.origin in ("", here):
        return ""
    what = f'{stored.kind} "{stored.name}"' + (
        f' of namespace "{stored.namespace}"' if stored.namespace else ""
    )
    place = f'in zone "{stored.zone}"' if stored.zone else "on Global"
    who = "the control plane of that zone" if stored.zone else "Global"
    return (
        f"the origin label must be set to '{here}'; {what} was written {place}: change it at {who}, and it"
        " changes here"
    )


def _check_immutable(
    stored: Resource, identity_: Identity, requested_labels: Mapping[str, str], field: str
) -> None:
    violations = []
    for name in (*_COMPUTED_ONCE, labels.ZONE, labels.NAMESPACE):
        before, after = stored.labels.get(name), requested_labels.get(name)
        if before is not None and before != after:
            change = (
                f'is immutable, cannot be changed from "{before}" to "{after}"'
                if after is not None
                else f'is immutable, cannot be removed (was "{before}")'
            )
            violations.append(Violation(key(field, name), change, "immutable"))
    if not violations and stored.key != identity_.key:
        violations.append(Violation("name", f"is stored as {stored.key}", "immutable"))
    if violations:
        raise Invalid(violations, title="Could not update a resource")


MASK: Final = "*****"


def masked(spec: Json, kind: Kind) -> Json:
    """The spec with secret values hidden, for logs, diffs and people: by kind, and by the type of a field."""
    return _mask(spec) if kind.admin_only else typed_parts.masked(kind.spec, spec, MASK, kind.named_types)


def masked_document(document: Json, kind: Kind) -> Json:
    """A document of either form with secret values of its spec hidden."""
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
