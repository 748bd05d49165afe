"""Words: the keywords of structural schemas, and how to read one of them from a schema."""

from collections.abc import Mapping
from typing import Final

from koguma.model.schema import Json

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
RULES: Final = "x-kubernetes-validations"
JUNCTIONS: Final = ("allOf", "anyOf", "oneOf")
OBJECT_FIELDS: Final = ("apiVersion", "kind", "metadata")  # what every object has, whatever its schema says

MISSING: Final = object()  # no value, not even null


def properties(schema: Json) -> Mapping[str, Json]:
    """The named fields of an object's schema."""
    found: Mapping[str, Json] = schema.get("properties") or {}
    return found


def values(schema: Json) -> Json | None:
    """The schema of a map's values; None where it has none."""
    others = schema.get("additionalProperties")
    return others if isinstance(others, dict) else None


def takes_anything(schema: Json) -> bool:
    """Whether fields without a schema are kept."""
    return bool(schema.get(PRESERVE)) or schema.get("additionalProperties") is True


def list_key(item: Json, names: list[str], schema: Json) -> tuple[Json, ...] | None:
    """What tells an item of a list map apart; None where it is no object."""
    if not isinstance(item, dict):
        return None
    fields = properties(schema)
    return tuple(_hashable(item.get(name, fields.get(name, {}).get("default"))) for name in names)


def _hashable(value: Json) -> Json:
    return repr(value) if isinstance(value, (dict, list)) else (type(value) is bool, value)
