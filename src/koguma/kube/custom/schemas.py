"""Published schemas of custom resources: those of their definitions, with what every object has."""

from collections.abc import Mapping

from koguma.kube import meta_schemas
from koguma.kube.structural.words import EMBEDDED, RULES
from koguma.model.schema import Json


def published(schema: Json) -> Json:
    """A schema as clients get it."""
    if isinstance(schema, list):
        return [published(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {
        name: _fields(value) if name == "properties" and isinstance(value, dict) else _part(name, value)
        for name, value in schema.items()
    }
    if shown.get("additionalProperties") is True:  # `kubectl explain` stumbles over a truth value
        del shown["additionalProperties"]
        shown[meta_schemas.ANYTHING] = True
    if schema.get(EMBEDDED):
        shown["properties"] = {
            "apiVersion": meta_schemas.API_VERSION,
            "kind": meta_schemas.KIND,
            "metadata": meta_schemas.ref(meta_schemas.OBJECT_META, "Its name, its labels, and so on."),
            **(shown.get("properties") or {}),
        }
    return shown


def _fields(properties: Mapping[str, Json]) -> Json:
    return {name: published(field) for name, field in properties.items()}


def _part(name: str, value: Json) -> Json:
    return value if name in ("default", "enum", "example", RULES) else published(value)
