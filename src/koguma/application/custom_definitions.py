"""Custom definitions: whether one may be stored beside the others, what its status says, and how it goes.

A definition is served as soon as it is stored, so its conditions are part of the write that stores it.
Another control plane may have stored a conflicting one at the same moment; then the conditions are written
again by whoever sees it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.application.context import Context
from koguma.kube import aggregation, catalog, field_errors
from koguma.kube.custom import endpoints as custom_endpoints
from koguma.kube.kinds import gateway_api, parts
from koguma.kube.kinds.apiregistration import API_SERVICE
from koguma.kube.kinds.custom_definitions import APPROVAL, CLEANUP, DEFINITION, is_protected
from koguma.model.errors import Conflict, Forbidden, Invalid
from koguma.model.gateway_api.references import GROUP as GATEWAY_API
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, item
from koguma.runtime.clock import now
from koguma.store.contract import Delete, Operation, Put, RequireNone, rfc3339

DEFINITIONS_MAX: Final = 500
STORED_AS: Final = DEFINITION.stored_as
_NAMES: Final = (
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("shortNames", "ShortNamesConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
)
_DELETION: Final = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"


def is_definition(resource: Resource) -> bool:
    """Whether a stored object defines a custom resource."""
    return resource.kind == STORED_AS


def check(context: Context, resource: Resource, before: Resource | None) -> None:
    """Raise where a definition cannot stand beside what is served, or would lose what is stored."""
    group = str(resource.spec.get("group"))
    if before is None and len(context.state.listed(STORED_AS)) >= DEFINITIONS_MAX:
        raise Forbidden(
            f"there may be {DEFINITIONS_MAX} CustomResourceDefinitions; delete some that nobody needs"
        )
    violations: list[Violation] = []
    served = {endpoint.group for endpoint in catalog.built_in(context.kinds)} - {GATEWAY_API}
    if group in served:
        violations.append(
            field_errors.forbidden("spec.group", f"{group} is served by the control plane itself")
        )
    if is_protected(group) and not resource.annotations.get(APPROVAL):
        at = field_errors.at_key("metadata.annotations", APPROVAL)
        what = f'protected groups must have approval annotation "{APPROVAL}"'
        violations.append(
            field_errors.required(at, f"{what}, see https://github.com/kubernetes/enhancements/pull/1111")
        )
    violations += _remote_versions(context, resource.spec, before.spec if before else None)
    violations += _removed_versions(resource.spec, before.status if before else None)
    if violations:
        raise Invalid(violations)


def warnings(resource: Resource) -> Iterator[str]:
    """What the writer of a definition should know: those of the Gateway API are stored, and change nothing.

    Charts bring them along, and look whether they are there.
    """
    kind = parts.as_map(parts.as_map(resource.spec).get("names")).get("kind")
    if _group(resource) == GATEWAY_API and kind in {each.name for each in gateway_api.KINDS}:
        served = f"{kind} of {GATEWAY_API} is served by the control plane itself"
        yield f"{served}; this definition changes nothing"


def _remote_versions(context: Context, spec: Json, before: Json) -> Iterator[Violation]:
    """New versions that other servers serve: a definition takes no group from them."""
    known = {version.get("name") for version in parts.as_map(before).get("versions") or ()}
    services = map(aggregation.remote_service, context.state.listed(API_SERVICE.stored_as))
    served = {each.version: each.name for each in services if each and each.group == spec.get("group")}
    for index, version in enumerate(spec.get("versions") or ()):
        name = version.get("name")
        if name in served and name not in known:
            at = f"{item('spec.versions', index)}.name"
            yield field_errors.forbidden(at, f"another server serves it, by the APIService {served[name]}")


def _removed_versions(spec: Json, status: Json) -> Iterator[Violation]:
    served = {version.get("name") for version in spec.get("versions") or ()}
    for index, name in enumerate(parts.as_map(status).get("storedVersions") or ()):
        if name not in served:
            what = f"missing from spec.versions; {name} was previously a storage version, and must remain in"
            what += " spec.versions until a storage migration ensures no data remains persisted in"
            yield field_errors.invalid(
                item("status.storedVersions", index),
                name,
                f"{what} {name} and removes {name} from status.storedVersions",
            )


def status_of(context: Context, resource: Resource) -> Json:
    """The status of a definition beside the others that are stored."""
    others = [each for each in context.state.listed(STORED_AS) if each.key != resource.key]
    return status_beside(resource, others)


def status_beside(resource: Resource, others: Iterable[Resource]) -> Json:
    """The status of a definition beside some others: its names, whether it is served, what is stored."""
    spec, status = parts.as_map(resource.spec), parts.as_map(resource.status)
    names = parts.as_map(spec.get("names"))
    reason, message = _conflict(_group(resource), names, others)
    accepted = parts.as_map(status.get("acceptedNames")) if reason else names
    was_served = custom_endpoints.is_true(status, "Established")
    conditions = _with(
        status.get("conditions") or [],
        _condition(
            "NamesAccepted",
            "False" if reason else "True",
            reason or "NoConflicts",
            message or "no conflicts found",
        ),
        _condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
        if was_served or not reason
        else _condition("Established", "False", "NotAccepted", "not all names are accepted"),
    )
    stored = list(status.get("storedVersions") or [])
    stored += [
        version["name"]
        for version in spec.get("versions") or ()
        if version.get("storage") and version.get("name") not in stored
    ]
    return {"conditions": conditions, "acceptedNames": dict(accepted), "storedVersions": stored}


def in_doubt(definitions: Sequence[Resource]) -> list[Resource]:
    """Definitions whose names are not accepted, or were accepted although an older one has them."""
    taken: set[tuple[str, str]] = set()
    found = []
    for definition in sorted(definitions, key=_age):
        group, accepted = _group(definition), _accepted(definition)
        words = {(group, word) for word in (*_words(accepted), *_kinds(accepted))}
        if not custom_endpoints.is_true(definition.status, "NamesAccepted") or not words.isdisjoint(taken):
            found.append(definition)
        taken |= words
    return found


def reviewed_status(definition: Resource, definitions: Iterable[Resource]) -> Json:
    """The status of a stored definition: it waits for names of others, and loses its own to older ones."""
    has_names = custom_endpoints.is_true(definition.status, "NamesAccepted")
    others = [each for each in definitions if each.key != definition.key]
    return status_beside(
        definition, [each for each in others if not has_names or _age(each) < _age(definition)]
    )


def _age(definition: Resource) -> tuple[str, str]:
    return definition.creation_time, definition.name


def _group(definition: Resource) -> str:
    return str(parts.as_map(definition.spec).get("group"))


def _accepted(definition: Resource) -> Mapping[str, Json]:
    return parts.as_map(parts.as_map(definition.status).get("acceptedNames"))


def _words(names: Mapping[str, Json]) -> set[str]:
    words = {str(names[field]) for field in ("plural", "singular") if names.get(field)}
    return words | set(names.get("shortNames") or ())


def _kinds(names: Mapping[str, Json]) -> set[str]:
    return {str(names[field]) for field in ("kind", "listKind") if names.get(field)}


def _conflict(group: str, names: Mapping[str, Json], others: Iterable[Resource]) -> tuple[str, str]:
    """Why names are not accepted, as a word and as a sentence; empty where nobody else has them."""
    taken: set[str] = set()
    kinds: set[str] = set()
    for other in others:
        if _group(other) == group:
            taken |= _words(_accepted(other))
            kinds |= _kinds(_accepted(other))
    for field, reason in _NAMES:
        value = names.get(field)
        found = kinds if field in ("kind", "listKind") else taken
        for word in value if isinstance(value, list) else [value]:
            if word and word in found:
                return reason, f'"{word}" is already in use'
    return "", ""


def _condition(type_: str, status: str, reason: str, message: str) -> dict[str, Json]:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def _with(conditions: Sequence[Json], *new: dict[str, Json]) -> list[Json]:
    """Conditions with some in the place of those of their types; the time changes only with the status."""
    known = {each.get("type"): each for each in conditions if isinstance(each, dict)}
    for each in new:
        before = known.get(each["type"]) or {}
        is_same = before.get("status") == each["status"]
        since = before.get("lastTransitionTime") if is_same else None
        known[each["type"]] = {**each, "lastTransitionTime": since or rfc3339(now())}
    return [known[type_] for type_ in known]


def deletion(context: Context, resource: Resource, expect: int | None) -> Sequence[Operation]:
    """The operations that delete a definition: at once where it has no objects, else after them."""
    held = tuple(name for name in resource.meta.finalizers if name != CLEANUP)
    if not held and not any(True for _ in objects_of(context, resource)):
        left = Conflict("objects of it were created in the meantime; delete it again")
        return (RequireNone(resource.name, "", left), Delete(resource.key, expect))
    return (Put(terminating(resource), expect),)


def terminating(resource: Resource) -> Resource:
    """A definition that goes as soon as its objects are gone."""
    status = parts.as_map(resource.status)
    ending = _condition("Terminating", "True", "InstanceDeletionPending", _DELETION)
    conditions = _with(status.get("conditions") or [], ending)
    meta = resource.meta
    if CLEANUP not in meta.finalizers:
        meta = msgspec.structs.replace(meta, finalizers=(*meta.finalizers, CLEANUP))
    if not meta.deletion_timestamp:
        meta = msgspec.structs.replace(meta, deletion_timestamp=rfc3339(now()))
    return msgspec.structs.replace(resource, meta=meta, status={**status, "conditions": conditions})


def objects_of(context: Context, definition: Resource) -> Iterator[Key]:
    """The stored objects of a definition, readable or not."""
    yield from (each.key for each in context.state.listed(definition.name))
    yield from (key for key in context.state.unreadable if key.kind == definition.name)
