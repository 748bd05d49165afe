"""Selectable fields: what a field selector may name, beside name and namespace."""

from collections.abc import Callable, Mapping
from typing import Final

from koguma.kube.registry import KubeEndpoint
from koguma.kube.selectors import FieldSelector
from koguma.model.schema import Json

_REFERENCE: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "Event"): (
        *(f"involvedObject.{part}" for part in _REFERENCE),
        "reason",
        "reportingComponent",
        "type",
        "source",
    ),
    ("events.k8s.io/v1", "Event"): (
        *(f"regarding.{part}" for part in _REFERENCE),
        "reason",
        "reportingController",
        "type",
    ),
    ("v1", "Secret"): ("type",),
    ("v1", "Namespace"): ("status.phase",),
    ("v1", "Service"): ("spec.clusterIP", "spec.type"),
    ("v1", "Pod"): ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase"),
}
NAMES: Final = ("metadata.name", "metadata.namespace")


def fields(endpoint: KubeEndpoint) -> tuple[str, ...]:
    """The paths that a field selector may name at an endpoint."""
    if endpoint.custom is not None:
        return (*NAMES, *(path.removeprefix(".") for path in endpoint.custom.selectable))
    return (*NAMES, *_FIELDS.get((endpoint.api_version, endpoint.kind_name), ()))


def reads_spec(selector: FieldSelector) -> bool:
    """Whether a selector asks for more than names."""
    return any(term.path not in NAMES for term in selector.terms)


def value_of(document: Json) -> Callable[[str], str]:
    """Reads a dotted path of a document as text; empty where there is nothing."""

    def value(path: str) -> str:
        if path == "source":  # of an event: the component, by its older or its newer name
            return value("source.component") or value("reportingComponent")
        part_value = document
        for part in path.split("."):
            part_value = part_value.get(part) if isinstance(part_value, dict) else None
        if isinstance(part_value, bool):
            return str(part_value).lower()
        return "" if part_value is None else str(part_value)

    return value
