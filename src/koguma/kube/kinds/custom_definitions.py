"""CustomResourceDefinitions: kinds that users bring, each with the schemas of its versions."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koguma.kube import field_errors, jsonpath
from koguma.kube.kinds import parts
from koguma.kube.kinds.custom_definition_types import (
    DefinitionConversion,
    DefinitionNames,
    DefinitionSpec,
    DefinitionStatus,
    DefinitionSubresources,
    DefinitionVersion,
    DefinitionWebhookClient,
)
from koguma.kube.structural import schema_form, schema_rules
from koguma.kube.structural.words import properties
from koguma.model import names
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json
from koguma.model.violation import Violation, item

GROUP: Final = "apiextensions.k8s.io"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"  # the finalizer that holds it for its objects
APPROVAL: Final = "api-approved.kubernetes.io"
OWN_GROUPS: Final = ("kuma.io", "koguma.io")
VERSIONS_MAX: Final = 50
COLUMNS_MAX: Final = 50
SELECTABLE_MAX: Final = 8
_PROTECTED: Final = re.compile(r"(.*\.)?(k8s|kubernetes)\.io")
_VERSION: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_COLUMN_TYPES: Final = ("integer", "number", "string", "boolean", "date")
_SCALARS: Final = ("boolean", "integer", "string")


def clean(spec: Json) -> Json:
    """Names and the conversion filled in."""
    read = parts.without_nulls(spec, "openAPIV3Schema")
    if not isinstance(read, dict):
        return read
    filled = {"conversion": {"strategy": "None"}, **read}
    if filled.get("preserveUnknownFields") is False:
        del filled["preserveUnknownFields"]
    called = filled.get("names")
    if isinstance(called, dict) and isinstance(called.get("kind"), str):
        kind = called["kind"]
        filled["names"] = {**called, "singular": called.get("singular") or kind.lower()}
        filled["names"]["listKind"] = called.get("listKind") or f"{kind}List"
    return filled


def with_known_schemas(spec: Json, unknown: Callable[[str], None]) -> Json:
    """A spec whose schemas have known keywords only; `unknown` is told the paths of the others."""
    versions = spec.get("versions") if isinstance(spec, dict) else None
    if not isinstance(versions, list):
        return spec
    kept = [
        _with_known_schema(version, item("spec.versions", i), unknown) for i, version in enumerate(versions)
    ]
    return {**spec, "versions": kept}


def _with_known_schema(version: Json, at: str, unknown: Callable[[str], None]) -> Json:
    schema = version.get("schema") if isinstance(version, dict) else None
    if not isinstance(schema, dict) or "openAPIV3Schema" not in schema:
        return version
    known = schema_form.known_only(schema["openAPIV3Schema"], f"{at}.schema.openAPIV3Schema", unknown)
    return {**version, "schema": {**schema, "openAPIV3Schema": known}}


def validate(spec: DefinitionSpec, context: ValidationContext) -> Iterator[Violation]:
    """What is wrong with a definition by itself, whatever other definitions there are."""
    group, called = spec.group or "", spec.names or DefinitionNames()
    yield from _group_violations(group)
    yield from _names_violations(called)
    if called.plural and group and context.name != f"{called.plural}.{group}":
        what = f'must be spec.names.plural+"."+spec.group: {called.plural}.{group}'
        yield field_errors.invalid("metadata.name", context.name, what, "name")
    if spec.scope not in ("Cluster", "Namespaced"):
        yield _one_of("spec.scope", spec.scope, ("Cluster", "Namespaced"))
    if spec.preserve_unknown_fields:
        what = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in the schema instead"
        yield field_errors.invalid("spec.preserveUnknownFields", value=True, detail=what)
    yield from _versions_violations(spec.versions or ())
    yield from _conversion_violations(spec.conversion or DefinitionConversion())
    yield from _unchanged_violations(spec, parts.as_map(context.stored))


def _one_of(path: str, value: str | None, words: tuple[str, ...]) -> Violation:
    return field_errors.unsupported(path, value, words) if value else field_errors.required(path)


def _group_violations(group: str) -> Iterator[Violation]:
    at = "spec.group"
    if not group:
        yield field_errors.required(at)
        return
    for message in parts.subdomain_messages(group):
        yield field_errors.invalid(at, group, message)
    if "." not in group:
        yield field_errors.invalid(at, group, "should be a domain with at least one dot")
    if any(group == own or group.endswith(f".{own}") for own in OWN_GROUPS):
        yield field_errors.forbidden(
            at, f"the groups {' and '.join(OWN_GROUPS)} are this control plane's own"
        )


def is_protected(group: str) -> bool:
    """Whether a group is of Kubernetes' community, which approves what stands in it."""
    return _PROTECTED.fullmatch(group) is not None


def _names_violations(called: DefinitionNames) -> Iterator[Violation]:
    labels = (("plural", called.plural), ("singular", called.singular))
    kinds = (("kind", called.kind), ("listKind", called.list_kind))
    for name, word in (*labels, *kinds):
        at = f"spec.names.{name}"
        if not word:
            yield field_errors.required(at)
        else:
            yield from _label_violations(at, word if name in ("plural", "singular") else word.lower(), word)
    if called.kind and called.kind == called.list_kind:
        what = "kind and listKind may not be the same"
        yield field_errors.invalid("spec.names.listKind", called.list_kind, what)
    for name, listed in (("shortNames", called.short_names), ("categories", called.categories)):
        for index, word in enumerate(listed or ()):
            yield from _label_violations(item(f"spec.names.{name}", index), word, word)


def _label_violations(at: str, text: str, written: str) -> Iterator[Violation]:
    if not names.is_dns1035_label(text):
        yield field_errors.invalid(at, written, names.DNS1035_MESSAGE)


def _versions_violations(versions: tuple[DefinitionVersion, ...]) -> Iterator[Violation]:
    if not versions:
        yield field_errors.required("spec.versions", "must have at least one version")
        return
    if len(versions) > VERSIONS_MAX:
        yield field_errors.too_many("spec.versions", len(versions), VERSIONS_MAX)
        return
    n_stored = sum(1 for version in versions if version.storage)
    if n_stored != 1:
        what = "must have exactly one version marked as storage version"
        yield field_errors.invalid("spec.versions", [version.name for version in versions], what)
    known: set[str] = set()
    for index, version in enumerate(versions):
        at = item("spec.versions", index)
        name = version.name or ""
        if not _VERSION.fullmatch(name) or not names.is_dns_label(name):
            yield field_errors.invalid(f"{at}.name", name, "must be a DNS-1035 label such as v1beta1")
        if name in known:
            yield field_errors.duplicate(f"{at}.name", name)
        known.add(name)
        yield from _version_violations(version, at)


def _version_violations(version: DefinitionVersion, at: str) -> Iterator[Violation]:
    if version.served is None:
        yield field_errors.required(f"{at}.served")
    if version.storage is None:
        yield field_errors.required(f"{at}.storage")
    if version.deprecation_warning is not None and not version.deprecated:
        what = "can only be set for deprecated versions"
        yield field_errors.invalid(f"{at}.deprecationWarning", version.deprecation_warning, what)
    schema = version.schema.open_api_v3_schema if version.schema else None
    where = f"{at}.schema.openAPIV3Schema"
    if not schema:
        yield field_errors.required(where, "schemas are required")
        return
    broken = list(schema_rules.violations(schema, where))
    yield from broken
    if not broken:
        yield from _column_violations(version, at)
        yield from _selectable_violations(version, schema, at)
        yield from _scale_violations(version.subresources, at)


def _column_violations(version: DefinitionVersion, at: str) -> Iterator[Violation]:
    columns = version.additional_printer_columns or ()
    if len(columns) > COLUMNS_MAX:
        yield field_errors.too_many(f"{at}.additionalPrinterColumns", len(columns), COLUMNS_MAX)
        return
    for index, column in enumerate(columns):
        where = item(f"{at}.additionalPrinterColumns", index)
        if not column.name:
            yield field_errors.required(f"{where}.name")
        if column.type not in _COLUMN_TYPES:
            yield _one_of(f"{where}.type", column.type, _COLUMN_TYPES)
        yield from _path_violations(f"{where}.jsonPath", column.json_path)


def _path_violations(at: str, path: str | None) -> Iterator[Violation]:
    if not path:
        yield field_errors.required(at)
        return
    try:
        jsonpath.compiled(path)
    except ValueError as error:
        yield field_errors.invalid(at, path, f"must be a valid json path: {error}")


def _selectable_violations(version: DefinitionVersion, schema: Json, at: str) -> Iterator[Violation]:
    fields = version.selectable_fields or ()
    where = f"{at}.selectableFields"
    if len(fields) > SELECTABLE_MAX:
        yield field_errors.too_many(where, len(fields), SELECTABLE_MAX)
    known: set[str] = set()
    for index, field in enumerate(fields):
        place, path = f"{item(where, index)}.jsonPath", field.json_path or ""
        if not jsonpath.is_simple(path):
            yield field_errors.invalid(
                place, path, "is an invalid path: must be a simple path such as .spec.color"
            )
            continue
        found = schema
        for name in path.split(".")[1:]:
            found = properties(found).get(name) or {}
        if found.get("type") not in _SCALARS or path.startswith(".metadata"):
            what = "must point to a field of type string, boolean or integer"
            yield field_errors.invalid(place, path, what)
        if path in known:
            yield field_errors.duplicate(place, path)
        known.add(path)


def _scale_violations(subresources: DefinitionSubresources | None, at: str) -> Iterator[Violation]:
    scale = subresources.scale if subresources else None
    if scale is None:
        return
    paths: list[tuple[str, str | None, tuple[str, ...]]] = [
        ("specReplicasPath", scale.spec_replicas_path, (".spec.",)),
        ("statusReplicasPath", scale.status_replicas_path, (".status.",)),
    ]
    if scale.label_selector_path:
        paths.append(("labelSelectorPath", scale.label_selector_path, (".spec.", ".status.")))
    for name, path, roots in paths:
        where = f"{at}.subresources.scale.{name}"
        if not path:
            yield field_errors.required(where)
        elif not jsonpath.is_simple(path) or not path.startswith(roots):
            what = f"should be a simple json path under {' or '.join(root[:-1] for root in roots)}"
            yield field_errors.invalid(where, path, what)


def _conversion_violations(conversion: DefinitionConversion) -> Iterator[Violation]:
    at = "spec.conversion"
    if conversion.strategy not in ("None", "Webhook"):
        yield _one_of(f"{at}.strategy", conversion.strategy, ("None", "Webhook"))
        return
    webhook = conversion.webhook
    if conversion.strategy == "None":
        if webhook is not None:
            what = "should not be set when strategy is not set to Webhook"
            yield field_errors.forbidden(f"{at}.webhook", what)
        return
    if webhook is None or webhook.client_config is None:
        yield field_errors.required(f"{at}.webhook.clientConfig", "required when strategy is set to Webhook")
        return
    yield from _client_violations(webhook.client_config, f"{at}.webhook.clientConfig")
    if "v1" not in (webhook.conversion_review_versions or ()):
        what = "must include v1"
        where = f"{at}.webhook.conversionReviewVersions"
        yield field_errors.invalid(where, list(webhook.conversion_review_versions or ()), what)


def _client_violations(client: DefinitionWebhookClient, at: str) -> Iterator[Violation]:
    service = client.service
    if (service is None) == (not client.url):
        yield field_errors.required(f"{at}.url", "exactly one of url or service is required")
    elif service is not None:
        for name, value in (("namespace", service.namespace), ("name", service.name)):
            if not names.is_dns_label(value or ""):
                yield field_errors.invalid(f"{at}.service.{name}", value, "must be the name of a service")
    elif not (client.url or "").startswith("https://"):
        yield field_errors.invalid(f"{at}.url", client.url, "must be a url that begins with https://")
    certificates = parts.payload(client.ca_bundle)
    if client.ca_bundle and (certificates is None or b"BEGIN CERTIFICATE" not in certificates):
        what = "must be certificates in PEM, as base64"
        yield field_errors.invalid(f"{at}.caBundle", field_errors.REDACTED, what)


def _unchanged_violations(spec: DefinitionSpec, stored: Mapping[str, Json]) -> Iterator[Violation]:
    if not stored:
        return
    called, before = spec.names or DefinitionNames(), parts.as_map(stored.get("names"))
    for path, new, old in (
        ("spec.group", spec.group, stored.get("group")),
        ("spec.scope", spec.scope, stored.get("scope")),
        ("spec.names.kind", called.kind, before.get("kind")),
        ("spec.names.plural", called.plural, before.get("plural")),
    ):
        if new != old:
            yield field_errors.invalid(path, new, field_errors.IMMUTABLE, "changed")


def _established(_spec: Json, status: Json) -> str:
    conditions = status.get("conditions") or ()
    return next((str(each.get("status")) for each in conditions if each.get("type") == "Established"), "")


DEFINITION = Kind(
    name="CustomResourceDefinition",
    plural="customresourcedefinitions",
    set_name="CustomResourceDefinition.apiextensions.k8s.io",
    group=GROUP,
    doc="A kind that users bring, with the schemas of its versions.",
    spec=DefinitionSpec,
    status=DefinitionStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=clean,
    validate=validate,
    columns=(
        Column("Group", lambda spec, _status: spec.get("group"), "Its group.", is_wide=True),
        Column(
            "Kind", lambda spec, _status: (spec.get("names") or {}).get("kind"), "Its kind.", is_wide=True
        ),
        Column("Scope", lambda spec, _status: spec.get("scope"), "Namespaced or Cluster.", is_wide=True),
        Column(
            "Versions",
            lambda spec, _status: ",".join(each.get("name", "") for each in spec.get("versions") or ()),
            "The versions in which it is served.",
            is_wide=True,
        ),
        Column("Established", _established, "Whether it is served.", is_wide=True),
    ),
)
