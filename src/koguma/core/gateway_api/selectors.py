"""Selectors: from which namespaces a Gateway or listener takes other objects."""

from koguma.core.gateway_api import objects
from koguma.core.incremental import Db
from koguma.model import label_selector
from koguma.model.schema import Json


def allows(db: Db, from_: str, selector: Json, own: str, other: str) -> bool:
    """Whether an object of namespace `own` takes one of namespace `other`."""
    match from_:
        case "All":
            return True
        case "Selector":
            return label_selector.selects(selector, objects.namespace_labels(db, other))
        case "None":
            return False
        case _:
            return own == other
