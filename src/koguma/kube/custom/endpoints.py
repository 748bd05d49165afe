"""Endpoints of custom resources, made from a stored definition."""

from typing import Final

import msgspec

from koguma.kube.custom.version import ConversionWebhook, CustomVersion, PrinterColumn, ScalePaths
from koguma.kube.kinds.custom_definition_types import (
    DefinitionColumn,
    DefinitionNames,
    DefinitionSpec,
    DefinitionVersion,
)
from koguma.kube.kinds.custom_definitions import DEFINITION
from koguma.kube.registry import ALL_VERBS, IDENTITY, KubeEndpoint, StorageSet
from koguma.model.kind import Kind, Scope
from koguma.model.resource import Resource
from koguma.model.schema import Json, Spec

STATUS: Final = "status"
SCALE: Final = "scale"
_HTTPS_PORT: Final = 443
_ENDING: Final = tuple(verb for verb in ALL_VERBS if verb != "create")  # while the definition is deleted


class CustomFields(Spec):
    """What a custom object has beside its metadata: its definition's schema says it, not this type."""


def of_definition(definition: Resource) -> tuple[KubeEndpoint, ...]:
    """The endpoints of a definition: none before its names are accepted, or where it cannot be read."""
    if not is_true(definition.status, "Established"):
        return ()
    try:
        spec: DefinitionSpec = DEFINITION.read(definition.spec)
    except msgspec.ValidationError:
        return ()
    versions = spec.versions or ()
    storage = next((version.name for version in versions if version.storage), None)
    called = spec.names or DefinitionNames()
    kind = _kind(spec, called)
    if storage is None or not (kind.name and kind.plural and kind.group):
        return ()
    prefix = f"/registry/{kind.group}/{kind.plural}"
    stored = StorageSet(prefix=prefix, version=f"{kind.group}/{storage}", kind_name=kind.name, kind=kind)
    is_ending = bool(definition.meta.deletion_timestamp)
    return tuple(
        _endpoint(called, stored, _version(definition, spec, version, storage), is_ending=is_ending)
        for version in versions
        if version.served and version.name
    )


def _kind(spec: DefinitionSpec, called: DefinitionNames) -> Kind:
    group, plural, kind = spec.group or "", called.plural or "", called.kind or ""
    return Kind(
        name=kind,
        plural=plural,
        set_name=stored_as(plural, group),
        group=group,
        doc=f"A {kind} of {group}, as its definition describes it.",
        spec=CustomFields,
        scope=Scope.GLOBAL,
        namespaced=spec.scope == "Namespaced",
        inline=True,
        at_root=True,
    )


def is_custom(kind: Kind) -> bool:
    """Whether a definition brought a kind."""
    return kind.spec is CustomFields


def stored_as(plural: str, group: str) -> str:
    """The word for the objects of a definition in keys; it is the definition's own name."""
    return f"{plural}.{group}"


def _version(
    definition: Resource, spec: DefinitionSpec, version: DefinitionVersion, storage: str
) -> CustomVersion:
    parts = version.subresources
    scale = parts.scale if parts else None
    words = f"{spec.group}/{version.name} {spec.names.kind if spec.names else ''} is deprecated"
    return CustomVersion(
        name=version.name or "",
        schema=(version.schema.open_api_v3_schema if version.schema else None) or {"type": "object"},
        definition=definition.key,
        definition_revision=definition.revision,
        storage=storage,
        webhook=_webhook(spec),
        has_status=bool(parts and parts.status is not None),
        scale=ScalePaths(
            scale.spec_replicas_path or "", scale.status_replicas_path or "", scale.label_selector_path or ""
        )
        if scale
        else None,
        columns=tuple(_column(column) for column in version.additional_printer_columns or ()),
        selectable=tuple(field.json_path or "" for field in version.selectable_fields or ()),
        deprecation=(version.deprecation_warning or words) if version.deprecated else "",
    )


def _webhook(spec: DefinitionSpec) -> ConversionWebhook | None:
    webhook = spec.conversion.webhook if spec.conversion and spec.conversion.strategy == "Webhook" else None
    client = webhook.client_config if webhook else None
    if client is None:
        return None
    url, service = client.url or "", client.service
    if service is not None:
        path = (service.path or "/").removeprefix("/")
        url = f"https://{service.name}.{service.namespace}.svc:{service.port or _HTTPS_PORT}/{path}"
    return ConversionWebhook(url, client.ca_bundle or "")


def _column(column: DefinitionColumn) -> PrinterColumn:
    return PrinterColumn(
        name=column.name or "",
        path=column.json_path or "",
        type=column.type or "string",
        format=column.format or "",
        doc=column.description or "",
        priority=column.priority or 0,
    )


def _endpoint(
    called: DefinitionNames, stored: StorageSet, version: CustomVersion, *, is_ending: bool
) -> KubeEndpoint:
    kind = stored.kind
    assert kind is not None, "custom objects are stored"
    return KubeEndpoint(
        group=kind.group,
        version=version.name,
        plural=kind.plural,
        set=stored,
        namespaced=kind.namespaced,
        verbs=_ENDING if is_ending else ALL_VERBS,
        short_names=called.short_names or (),
        categories=called.categories or (),
        subresources=(*((STATUS,) if version.has_status else ()), *((SCALE,) if version.scale else ())),
        converter=None if version.name == version.storage else IDENTITY,
        singular_name=called.singular or "",
        list_kind_name=called.list_kind or "",
        custom=version,
    )


def condition(status: Json, type_: str) -> Json:
    """A condition of a definition's status; empty where it has none of that type."""
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return next((each for each in conditions or () if each.get("type") == type_), {})


def is_true(status: Json, type_: str) -> bool:
    """Whether a condition of a definition's status holds."""
    return bool(condition(status, type_).get("status") == "True")
