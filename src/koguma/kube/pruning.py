"""Pruning: documents without the fields that do not exist, which Kubernetes does not store.

Clients of Kubernetes send whatever they like, and are warned. What older servers stored with such a field is
shown without it, so that a document that was read can be written.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.kube import namespaced_names, programmed
from koguma.kube.custom.version import CustomVersion
from koguma.kube.kinds import ALIAS_KINDS, custom_definitions
from koguma.kube.registry import KubeEndpoint
from koguma.kube.structural import shaping
from koguma.model import pruning
from koguma.model.kind import Kind
from koguma.model.schema import UNKNOWN, Json, unknown_fields
from koguma.model.violation import VIOLATIONS_MAX, Violation, item

TYPE_AND_METADATA: Final = ("apiVersion", "kind", "metadata")
_NATIVE: Final = (*TYPE_AND_METADATA, "spec", "status")
_OURS: Final = (*TYPE_AND_METADATA, "kri", "mesh", "spec", "status")
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
_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")


class PrunedDocument(NamedTuple):
    """A document with known fields only, and a violation for each field that was removed."""

    document: dict[str, Json]
    unknown: tuple[Violation, ...] = ()


def pruned(document: Mapping[str, Json], endpoint: KubeEndpoint) -> PrunedDocument:
    """A document of an endpoint without the fields that this endpoint does not have."""
    kind = endpoint.kind
    unknown: list[Violation] = []
    kept = dict(document)
    if programmed.applies(endpoint):
        document = kept = programmed.without_condition(kept)
    if not kind.at_root:
        known = _NATIVE if namespaced_names.is_native(kind) else _OURS
        unknown += unknown_fields(document, known)
        kept = {name: value for name, value in document.items() if name in known}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = _metadata(kept["metadata"], unknown)
    if endpoint.custom is not None:
        return PrunedDocument(_custom(kept, endpoint.custom, unknown), tuple(unknown))
    written = spec_of(kept, endpoint)
    spec = _spec(written, endpoint)
    if spec is not written:
        unknown += _unknown_in_spec(written, endpoint)
        head = {name: value for name, value in kept.items() if name in TYPE_AND_METADATA}
        kept = {**head, **spec} if kind.at_root else {**kept, "spec": spec}
    if kind.stored_as == custom_definitions.DEFINITION.stored_as:
        kept["spec"] = custom_definitions.with_known_schemas(kept.get("spec"), _noted(unknown))
    if kind.status is not None and "status" in kept:
        status = pruning.pruner(kind.status)(kept["status"])
        if status is not kept["status"]:
            unknown += _unknown(kind.status_checker(kept["status"], "status"))
            kept["status"] = status
    return PrunedDocument(kept, tuple(unknown))


def _custom(document: Json, version: CustomVersion, unknown: list[Violation]) -> dict[str, Json]:
    """A document of a custom resource: its definition's schema says which fields exist."""
    kept: dict[str, Json] = shaping.pruned(document, version.schema, _noted(unknown))
    return kept


def _noted(unknown: list[Violation]) -> Callable[[str], None]:
    """Adds the path of a field that does not exist; of very many only the first."""

    def note(path: str) -> None:
        if len(unknown) < VIOLATIONS_MAX:
            unknown.append(Violation(path, "does not exist", UNKNOWN))

    return note


def spec_of(document: Mapping[str, Json], endpoint: KubeEndpoint) -> Json:
    """What stands beside the metadata of a document: its `spec`, or all other fields."""
    if endpoint.kind.at_root:
        return {name: value for name, value in document.items() if name not in TYPE_AND_METADATA}
    spec = document.get("spec")
    return {} if spec is None else spec


def stored_spec(kind: Kind, spec: Json) -> Json:
    """A spec in the storage version with known fields only; the very same where it has no others.

    Our kinds have older names for some fields. `Kind.clean` knows them, so that it comes first. Kubernetes'
    own kinds have none, and their `clean` would add fields that nobody wrote.
    """
    prune = pruning.pruner(kind.spec)
    known = prune(spec)
    if known is spec or namespaced_names.is_native(kind):
        return known
    written = kind.clean(spec)
    known = prune(written)
    return spec if known is written else known


def _spec(spec: Json, endpoint: KubeEndpoint) -> Json:
    """A spec in the endpoint's version. One that the version does not take is refused as it is."""
    alias = _alias(endpoint)
    if alias is not None:
        return pruning.pruner(alias.spec)(spec)
    written = endpoint.conversion.to_storage(spec)
    known = stored_spec(endpoint.kind, written)
    if known is written or any(endpoint.conversion.refusals(spec)):
        return spec
    return endpoint.conversion.from_storage(known)


def _alias(endpoint: KubeEndpoint) -> Kind | None:
    """The kind that describes an endpoint whose version has words of its own."""
    return ALIAS_KINDS.get((endpoint.api_version, endpoint.kind_name))


def _unknown_in_spec(spec: Json, endpoint: KubeEndpoint) -> Iterator[Violation]:
    kind, alias = endpoint.kind, _alias(endpoint)
    if alias is not None:
        return _unknown(alias.checker(spec))
    written = kind.clean(endpoint.conversion.to_storage(spec))
    violations = kind.checker(written, "" if kind.at_root else "spec")
    return endpoint.conversion.relocated(_unknown(violations))


def _unknown(violations: Iterator[Violation]) -> Iterator[Violation]:
    return (violation for violation in violations if violation.rule == UNKNOWN)


def _metadata(metadata: Mapping[str, Json], unknown: list[Violation]) -> Json:
    unknown += unknown_fields(metadata, _META, "metadata.")
    kept = {name: value for name, value in metadata.items() if name in _META}
    owners = kept.get("ownerReferences")
    if isinstance(owners, list):
        kept["ownerReferences"] = [_owner(owner, index, unknown) for index, owner in enumerate(owners)]
    return kept


def _owner(owner: Json, index: int, unknown: list[Violation]) -> Json:
    if not isinstance(owner, dict):
        return owner
    unknown += unknown_fields(owner, _OWNER, f"{item('metadata.ownerReferences', index)}.")
    return {name: value for name, value in owner.items() if name in _OWNER}
