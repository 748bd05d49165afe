"""Schema converter: JSON schemas of our types as the OpenAPI schemas that Kubernetes' clients can read.

Old clients read OpenAPI 2, newer ones OpenAPI 3.0, and both fail on what is not in both: a choice between
types, `const`, a boolean for `additionalProperties`. What the common part cannot express is left open
(`x-kubernetes-preserve-unknown-fields`), never narrowed: no client may refuse what the server accepts.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koguma.kube.meta_schemas import ANYTHING, REF, ref
from koguma.model.schema import KEY_DEFAULTS, Json

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
ITEM: Final = "[]"  # in a path: from a list to its items
VALUE: Final = "*"  # in a path: from a map to its values
_KEPT: Final = (
    "description",
    "type",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
)
_EXCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_WORDS: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}

FieldPaths = frozenset[tuple[str, ...]]  # fields that an endpoint does not have, each as a tuple of names
NO_FIELDS: Final[FieldPaths] = frozenset()


def removed_fields(written: Iterable[str]) -> FieldPaths:
    """Fields from dotted paths (`spec.to[].default`)."""
    return frozenset(_steps(each) for each in written)


def _steps(path: str) -> tuple[str, ...]:
    return tuple(step for step in path.replace(ITEM, f".{ITEM}").split(".") if step)


def below(without: FieldPaths, step: str) -> FieldPaths:
    """The removed fields below one field."""
    return frozenset(path[1:] for path in without if path[0] == step and len(path) > 1)


class SchemaConverter:
    """The definitions of one object, made from the components to which its types refer."""

    def __init__(self, prefix: str, components: Mapping[str, Json]) -> None:
        self.definitions: dict[str, Json] = {}
        self._prefix = prefix
        self._components = components
        self._names: dict[tuple[str, FieldPaths], str] = {}

    def schema(self, schema: Json, without: FieldPaths = NO_FIELDS) -> Json:
        """A schema without the removed fields; what it refers to becomes a definition."""
        branches, takes_null = _branches(schema)
        if len(branches) == 1:
            converted = self._plain(branches[0], without)
        elif {branch.get("type") for branch in branches} == {"integer", "string"}:
            converted = {INT_OR_STRING: True}
        else:
            converted = {ANYTHING: True}
        whole = {**converted, **_annotations(schema), **({"nullable": True} if takes_null else {})}
        self._publish_defaults(whole)
        return whole

    def _publish_defaults(self, whole: dict[str, Json]) -> None:
        """Give the key fields of a list's items their defaults, which server-side apply needs to know."""
        for name, default in (whole.pop(KEY_DEFAULTS, None) or {}).items():
            fields = self.definitions[whole["items"]["$ref"].removeprefix(REF)]["properties"]
            fields[name] = {**fields[name], "default": default}

    def component(self, name: str, without: FieldPaths = NO_FIELDS) -> Json:
        """A component, written out."""
        return self._plain(self._components[name], without)

    def _plain(self, schema: Json, without: FieldPaths) -> Json:
        if "$ref" in schema:
            return {**ref(self._defined(_after_last(schema["$ref"], "/"), without)), **_annotations(schema)}
        converted = _limits(schema) | _enum(schema) | _annotations(schema)
        match converted.get("type"):
            case "object":
                converted |= self._fields(schema, without)
            case "array":
                converted["items"] = self.schema(schema.get("items") or {}, below(without, ITEM))
            case None if INT_OR_STRING not in converted:
                converted[ANYTHING] = True
        return converted

    def _fields(self, schema: Json, without: FieldPaths) -> Json:
        if "properties" in schema:
            removed = {path[0] for path in without if len(path) == 1}
            fields = {
                name: self.schema(field, below(without, name))
                for name, field in schema["properties"].items()
                if name not in removed
            }
            required = [name for name in schema.get("required", ()) if name in fields]
            return {"properties": fields, **({"required": required} if required else {})}
        values = schema.get("additionalProperties")
        if values and values is not True:
            return {"additionalProperties": self.schema(values, below(without, VALUE))}
        return {ANYTHING: True}

    def _defined(self, component: str, without: FieldPaths) -> str:
        """The name of a definition. A definition in progress has its name already, so recursion ends."""
        schema = self._components[component]
        without = frozenset(path for path in without if self._leads(schema, path))
        known = self._names.get((component, without))
        if known is not None:
            return known
        plain = f"{self._prefix}.{_after_last(component, '.')}"
        taken = set(self._names.values())
        name, number = plain, 2
        while name in taken:
            name, number = f"{plain}{number}", number + 1
        self._names[component, without] = name
        self.definitions[name] = self.component(component, without)
        return name

    def _leads(self, schema: Json, path: tuple[str, ...]) -> bool:
        """Whether a path leads to a field of this schema; else it needs no second definition."""
        if not path:
            return True
        for branch in _branches(schema)[0]:
            plain = self._components[_after_last(branch["$ref"], "/")] if "$ref" in branch else branch
            inner = _inner(plain, path[0])
            if inner and self._leads(inner, path[1:]):
                return True
        return False


def _inner(schema: Json, element: str) -> Json:
    """The schema of a field, of items or of map values; None where there is none."""
    keyword = {ITEM: "items", VALUE: "additionalProperties"}.get(element)
    return schema.get(keyword) if keyword else schema.get("properties", {}).get(element)


def _after_last(text: str, separator: str) -> str:
    return text.rpartition(separator)[2]


def _limits(schema: Json) -> Json:
    """The type and its limits, as both versions of OpenAPI write them."""
    limits = {keyword: schema[keyword] for keyword in _KEPT if keyword in schema}
    for keyword, bound in _EXCLUSIVE.items():
        if keyword in schema:
            limits |= {bound: schema[keyword], keyword: True}
    if "pattern" in limits:  # `\\Z` is Python's own
        limits["pattern"] = limits["pattern"].replace(r"\Z", "$")
    if schema.get("contentEncoding") == "base64":
        limits.setdefault("format", "byte")
    return limits


def _annotations(schema: Json) -> Json:
    """The description, and vendor extensions such as Kubernetes' merge strategies."""
    return {key: value for key, value in schema.items() if key == "description" or key.startswith("x-")}


def _branches(schema: Json) -> tuple[list[Json], bool]:
    """The schemas of which one holds, without that of null, and whether null is one of them."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None and isinstance(schema.get("type"), list):
        choices = [{**schema, "type": each} for each in schema["type"]]
    if choices is None:
        nulls = None in schema.get("enum", ())
        return [schema], nulls
    branches = [choice for choice in choices if choice.get("type") != "null"]
    return branches, len(branches) != len(choices)


def _enum(schema: Json) -> Json:
    """The values of a closed choice, and the type that all of them have."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    values = [value for value in values if value is not None]
    if not values:
        return {}
    types = {_WORDS[type(value)] for value in values}
    return {"enum": values, **({"type": types.pop()} if len(types) == 1 else {})}
