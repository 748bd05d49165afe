"""Selectors: from which namespaces a Gateway or listener takes other objects."""

from collections.abc import Mapping

from koguma.core.gateway_api import objects
from koguma.core.incremental import Db
from koguma.model.schema import Json


def allows(db: Db, from_: str, selector: Json, own: str, other: str) -> bool:
    """Whether an object of namespace `own` takes one of namespace `other`."""
    match from_:
        case "All":
            return True
        case "Selector":
            return selects(selector, objects.namespace_labels(db, other))
        case "None":
            return False
        case _:
            return own == other


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a Kubernetes label selector selects these labels; an empty one selects all."""
    written = objects.fields(selector)
    equal = objects.fields(written.get("matchLabels"))
    return all(labels.get(name) == value for name, value in equal.items()) and all(
        _holds(expression, labels) for _, expression in objects.items(written.get("matchExpressions"))
    )


def _holds(expression: Mapping[str, Json], labels: Mapping[str, str]) -> bool:
    name, values = objects.text(expression.get("key")), expression.get("values")
    if not isinstance(values, list | tuple):
        values = ()
    match expression.get("operator"):
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case _:
            return False
