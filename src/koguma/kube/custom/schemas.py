"""Published schemas of custom resources: those of their definitions, with what every object has."""

from collections.abc import Mapping
from typing import Final

from koguma.kube import meta_schemas
from koguma.kube.structural.words import EMBEDDED, RULES
from koguma.model.schema import Json

_HIDDEN: Final = (RULES,)


def definition(schema: Json, common: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a version's objects; `common` is `apiVersion`, `kind` and `metadata`."""
    described = dict(_published(schema))
    described["properties"] = {**(described.get("properties") or {}), **common}
    return described


def _published(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_published(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {
        name: _fields(value) if name == "properties" and isinstance(value, dict) else _part(name, value)
        for name, value in schema.items()
        if name not in _HIDDEN
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
    return {name: _published(field) for name, field in properties.items()}


def _part(name: str, value: Json) -> Json:
    return value if name in ("default", "enum", "example") else _published(value)
