"""Dialect: the JSON schemas of our types in the words that Kubernetes' clients read.

Old clients read OpenAPI 2, newer ones OpenAPI 3.0, and both stumble over what lies outside a common part: a
choice between types, `const`, a boolean for `additionalProperties`. What the common part cannot say is left
open (`x-kubernetes-preserve-unknown-fields`), never narrowed: no client may refuse what the server takes.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from koguma.kube.meta_schemas import ANYTHING, ref
from koguma.model.schema import Json

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
ITEM: Final = "[]"  # the step from a list to its items
VALUE: Final = "*"  # the step from a map to its values
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

Paths = frozenset[tuple[str, ...]]  # fields that are not there, each as the steps that lead to it
NOWHERE: Final[Paths] = frozenset()


def paths(written: Iterable[str]) -> Paths:
    """Dotted paths (`spec.to[].default`) as steps."""
    return frozenset(_steps(each) for each in written)


def _steps(path: str) -> tuple[str, ...]:
    return tuple(step for step in path.replace(ITEM, f".{ITEM}").split(".") if step)


def below(without: Paths, step: str) -> Paths:
    """What is not there, seen from one step further in."""
    return frozenset(path[1:] for path in without if path[0] == step and len(path) > 1)


class SchemaConverter:
    """The definitions of one object, made from the components to which its types refer."""

    def __init__(self, prefix: str, components: Mapping[str, Json]) -> None:
        self.definitions: dict[str, Json] = {}
        self._prefix = prefix
        self._components = components
        self._names: dict[tuple[str, Paths], str] = {}

    def schema(self, written: Json, without: Paths = NOWHERE) -> Json:
        """A schema, less the fields that are not there; what it refers to becomes a definition."""
        branches, takes_null = _branches(written)
        if len(branches) == 1:
            found = self._plain(branches[0], without)
        elif {branch.get("type") for branch in branches} == {"integer", "string"}:
            found = {INT_OR_STRING: True}
        else:
            found = {ANYTHING: True}
        return {**found, **_said(written), **({"nullable": True} if takes_null else {})}

    def component(self, name: str, without: Paths = NOWHERE) -> Json:
        """A component, written out."""
        return self._plain(self._components[name], without)

    def _plain(self, written: Json, without: Paths) -> Json:
        if "$ref" in written:
            return {**ref(self._defined(_last(written["$ref"], "/"), without)), **_said(written)}
        found = _limits(written) | _enum(written) | _said(written)
        match found.get("type"):
            case "object":
                found |= self._fields(written, without)
            case "array":
                found["items"] = self.schema(written.get("items") or {}, below(without, ITEM))
            case None if INT_OR_STRING not in found:
                found[ANYTHING] = True
        return found

    def _fields(self, written: Json, without: Paths) -> Json:
        if "properties" in written:
            gone = {path[0] for path in without if len(path) == 1}
            fields = {
                name: self.schema(field, below(without, name))
                for name, field in written["properties"].items()
                if name not in gone
            }
            required = [name for name in written.get("required", ()) if name in fields]
            return {"properties": fields, **({"required": required} if required else {})}
        values = written.get("additionalProperties")
        if values and values is not True:
            return {"additionalProperties": self.schema(values, below(without, VALUE))}
        return {ANYTHING: True}

    def _defined(self, component: str, without: Paths) -> str:
        """The name of a definition. One that is being made is known already, so recursion ends."""
        written = self._components[component]
        without = frozenset(path for path in without if self._leads(written, path))
        known = self._names.get((component, without))
        if known is not None:
            return known
        plain = f"{self._prefix}.{_last(component, '.')}"
        taken = set(self._names.values())
        name, number = plain, 2
        while name in taken:
            name, number = f"{plain}{number}", number + 1
        self._names[component, without] = name
        self.definitions[name] = self.component(component, without)
        return name

    def _leads(self, written: Json, path: tuple[str, ...]) -> bool:
        """Whether a path leads to a field; where none does, a type need not be written twice."""
        if not path:
            return True
        for branch in _branches(written)[0]:
            plain = self._components[_last(branch["$ref"], "/")] if "$ref" in branch else branch
            inner = _inner(plain, path[0])
            if inner and self._leads(inner, path[1:]):
                return True
        return False


def _inner(written: Json, step: str) -> Json:
    """The schema one step further in, or nothing."""
    keyword = {ITEM: "items", VALUE: "additionalProperties"}.get(step)
    return written.get(keyword) if keyword else written.get("properties", {}).get(step)


def _last(text: str, separator: str) -> str:
    return text.rpartition(separator)[2]


def _limits(written: Json) -> Json:
    """The type and its limits, as both versions of OpenAPI write them."""
    found = {keyword: written[keyword] for keyword in _KEPT if keyword in written}
    for keyword, limit in _EXCLUSIVE.items():
        if keyword in written:
            found |= {limit: written[keyword], keyword: True}
    if "pattern" in found:  # only Python has a word of its own for the very end
        found["pattern"] = found["pattern"].replace(r"\Z", "$")
    if written.get("contentEncoding") == "base64":
        found.setdefault("format", "byte")
    return found


def _said(written: Json) -> Json:
    """What the field says beside its type: words, and how Kubernetes merges it."""
    return {key: value for key, value in written.items() if key == "description" or key.startswith("x-")}


def _branches(written: Json) -> tuple[list[Json], bool]:
    """The schemas of which one holds, without that of null, and whether null is one of them."""
    choices = written.get("anyOf") or written.get("oneOf")
    if choices is None and isinstance(written.get("type"), list):
        choices = [{**written, "type": each} for each in written["type"]]
    if choices is None:
        nulls = None in written.get("enum", ())
        return [written], nulls
    found = [choice for choice in choices if choice.get("type") != "null"]
    return found, len(found) != len(choices)


def _enum(written: Json) -> Json:
    """The values of a closed choice, and the type that all of them have."""
    values = [written["const"]] if "const" in written else written.get("enum", ())
    values = [value for value in values if value is not None]
    if not values:
        return {}
    types = {_WORDS[type(value)] for value in values}
    return {"enum": values, **({"type": types.pop()} if len(types) == 1 else {})}
