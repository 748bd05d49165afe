"""Admission of custom objects: what a document asks for, by the schema and the rules of its version."""

from itertools import islice

import msgspec

from koguma.kube import native
from koguma.kube.codec import DecodedObject
from koguma.kube.custom import documents
from koguma.kube.custom.version import CustomVersion
from koguma.kube.registry import KubeEndpoint
from koguma.kube.structural import cel_rules, shaping, validation
from koguma.kube.structural.words import MISSING
from koguma.model import labels
from koguma.model.errors import Invalid
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import VIOLATIONS_MAX, Violation


def admitted(endpoint: KubeEndpoint, written: DecodedObject, before: Resource | None) -> Resource:
    """The object to store, in the version of its endpoint; its status is that of the object before."""
    version, draft, kind = _custom(endpoint), written.draft, endpoint.kind
    fields = dict(draft.spec)
    old = documents.body(before, version) if before else None
    if version.has_status:
        fields.pop("status", None)
        if old and "status" in old:
            fields["status"] = old["status"]
    namespace = (draft.namespace or "") if endpoint.namespaced else ""
    shaped = shaping.defaulted(fields, version.schema)
    violations = [
        *native.name_violations(kind, draft.name),
        *labels.syntax(draft.labels, "metadata.labels"),
        *_violations(endpoint, draft.name, shaped, old),
    ]
    if violations:
        raise Invalid(violations)
    body = documents.to_store(shaped, version)
    return Resource(
        kind=kind.stored_as,
        namespace=namespace,
        name=draft.name,
        core_name=f"{draft.name}.{namespace}" if namespace else draft.name,
        labels=draft.labels,
        annotations=draft.annotations or {},
        spec=body.fields,
        status=body.status,
        stored_version=endpoint.api_version,
    )


def with_status(endpoint: KubeEndpoint, before: Resource, status: Json) -> Resource:
    """An object with another status and nothing else changed, in the version of its endpoint."""
    version = _custom(endpoint)
    old = documents.body(before, version)
    fields = {name: value for name, value in old.items() if name != "status"}
    if status is not None:
        fields["status"] = status
    shaped = documents.shaped(fields, version)
    violations = _violations(endpoint, before.name, shaped, old)
    if violations:
        raise Invalid(violations)
    body = documents.to_store(shaped, version)
    return msgspec.structs.replace(
        before, spec=body.fields, status=body.status, stored_version=endpoint.api_version
    )


def _custom(endpoint: KubeEndpoint) -> CustomVersion:
    assert endpoint.custom is not None, f"{endpoint.plural} are no custom resources"
    return endpoint.custom


def _violations(endpoint: KubeEndpoint, name: str, fields: Json, old: Json | None) -> list[Violation]:
    """What is wrong by the schema; the rules in CEL are asked only of what fits it."""
    version = _custom(endpoint)
    head = {"apiVersion": endpoint.api_version, "kind": endpoint.kind_name, "metadata": {"name": name}}
    before = MISSING if old is None else {**head, **old}
    whole = {**head, **fields}
    found = list(islice(validation.violations(whole, version.schema, "", before), VIOLATIONS_MAX))
    if found or not version.has_rules:
        return found
    return list(islice(cel_rules.violations(whole, version.schema, "", before), VIOLATIONS_MAX))
