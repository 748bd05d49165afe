"""Merge schema: how the values of a field are merged and owned, item by item or as a whole.

As in Kubernetes, objects are merged field by field unless their OpenAPI schema says `atomic`; lists are
atomic unless it says `set` or `map`. What no schema describes is treated the same way. A merge schema is made
lazily, one field at a time, since OpenAPI schemas may refer to themselves; it is made once per endpoint and
kept.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Final

from koguma.kube import field_set
from koguma.model.schema import Json

Resolve = Callable[[str], Json]

_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"
_MAP_TYPES: Final = ("x-kubernetes-map-type", "x-kubernetes-struct-type")
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})


class MergeStrategy(Enum):
    """How a value is merged; the words are those of structured-merge-diff."""

    SCALAR = "scalar"
    ATOMIC = "atomic"  # an object or a list that has one owner as a whole
    STRUCT = "struct"  # an object with fields that its schema names
    MAP = "map"  # an object with any keys
    SET = "set"  # a list of values, each once
    LIST_MAP = "list-map"  # a list of objects, told apart by the fields of x-kubernetes-list-map-keys


class MergeSchema:
    """The merge strategy of a field, and the merge schemas of the fields inside of it."""

    def __init__(
        self,
        strategy: MergeStrategy,
        schemas: Mapping[str, Json] | None = None,
        rest: Json = None,
        keys: Mapping[str, Json] | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.strategy = strategy
        self.is_object = strategy in (MergeStrategy.STRUCT, MergeStrategy.MAP)
        self.is_list = strategy in (MergeStrategy.SET, MergeStrategy.LIST_MAP)
        self.keys = (
            keys or {}
        )  # of a list map: key fields in order, with the default that an item without the field has
        self._schemas = schemas or {}
        self._rest = rest
        self._resolve = resolve
        self._children: dict[str, MergeSchema] = {}

    def child(self, element: str) -> "MergeSchema":
        """The merge schema of the field or item that a path element names."""
        known = self._children.get(element)
        if known is not None:
            return known
        if element not in self._schemas:
            return self.rest
        child = self._children[element] = _merge_schema(self._schemas[element], self._resolve)
        return child

    @cached_property
    def rest(self) -> "MergeSchema":
        """The merge schema of items, and of fields that the OpenAPI schema does not name."""
        return UNTYPED if not self._rest else _merge_schema(self._rest, self._resolve)

    def declares(self, element: str) -> bool:
        """Whether the OpenAPI schema names this field."""
        return element in self._schemas or element in self._children

    def element(self, item: Json, index: int) -> str:
        """The path element of an item of such a list."""
        if self.strategy is MergeStrategy.SET:
            return field_set.value_element(item)
        if isinstance(item, dict):
            values = {name: item.get(name, default) for name, default in self.keys.items()}
            keys = {name: value for name, value in values.items() if value is not None}
            if keys:
                return field_set.key_element(keys)
        return f"i:{index}"

    def with_metadata(self) -> "MergeSchema":
        """The same for the root of a document: metadata has a merge schema of its own."""
        root = MergeSchema(MergeStrategy.STRUCT, self._schemas, self._rest, resolve=self._resolve)
        root._children["f:metadata"] = _METADATA
        return root


def merge_schema_of(schema: Json, resolve: Resolve | None = None) -> MergeSchema:
    """The merge schema of documents with this OpenAPI schema; an empty one or None describes nothing."""
    return _merge_schema(schema or {}, resolve).with_metadata()


def _merge_schema(schema: Json, resolve: Resolve | None) -> MergeSchema:
    plain = _resolved(schema, resolve)
    match _type(plain):
        case "array":
            return _list_schema(plain, resolve)
        case "object":
            return _object_schema(plain, resolve)
        case "scalar":
            return SCALAR
        case _:
            return UNTYPED


def _object_schema(schema: Json, resolve: Resolve | None) -> MergeSchema:
    if any(schema.get(word) == "atomic" for word in _MAP_TYPES):
        return ATOMIC
    others = schema.get("additionalProperties")
    rest = others if isinstance(others, dict) else None
    named = {f"f:{name}": field for name, field in schema.get("properties", {}).items()}
    return MergeSchema(MergeStrategy.STRUCT if named else MergeStrategy.MAP, named, rest, resolve=resolve)


def _list_schema(schema: Json, resolve: Resolve | None) -> MergeSchema:
    items = schema.get("items") or {}
    match schema.get(_LIST_TYPE):
        case "set":
            return MergeSchema(
                MergeStrategy.SET, rest={"type": "string"}
            )  # an item of a set has no fields that could be merged
        case "map":
            properties = _resolved(items, resolve).get("properties", {})
            names = sorted(schema.get(_LIST_KEYS, ()))
            keys = {name: _resolved(properties.get(name, {}), resolve).get("default") for name in names}
            return MergeSchema(MergeStrategy.LIST_MAP, rest=items, keys=keys, resolve=resolve)
        case _:
            return ATOMIC


def _type(schema: Json) -> str:
    """`object`, `array`, `scalar`, or empty where anything may stand."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named or ()) - {"null"}
    if (types and types <= _SCALARS) or schema.get(_INT_OR_STRING):
        return "scalar"
    if len(types) == 1:
        return str(types.pop())
    return "object" if "properties" in schema else ""


def _resolved(schema: Json, resolve: Resolve | None) -> Json:
    """A schema without `$ref`; keywords beside a `$ref` win over those of what it refers to."""
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        if word not in schema:
            continue
        beside = {name: value for name, value in schema.items() if name != word}
        if word == "$ref":
            assert resolve is not None, f"{schema[word]} refers to a schema, and nobody knows it"
            return _resolved({**resolve(schema[word]), **beside}, resolve)
        if word == "allOf":
            parts = [_resolved(part, resolve) for part in schema[word]]
            return _resolved(
                {name: value for part in (*parts, beside) for name, value in part.items()}, resolve
            )
        if "type" not in schema and "properties" not in schema:
            return _resolved({**_choice(schema[word], resolve), **beside}, resolve)
    return schema


def _choice(choices: list[Json], resolve: Resolve | None) -> Json:
    """The one branch that is not null, or the first of several scalar ones; nothing where branches differ."""
    branches = [_resolved(each, resolve) for each in choices if each.get("type") != "null"]
    if len(branches) == 1 or (branches and all(_type(branch) == "scalar" for branch in branches)):
        return branches[0]
    return {}


SCALAR: Final = MergeSchema(MergeStrategy.SCALAR)
ATOMIC: Final = MergeSchema(MergeStrategy.ATOMIC)
UNTYPED: Final = MergeSchema(MergeStrategy.MAP)  # no schema: objects are merged, lists are atomic

_STRING_MAP: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final = _merge_schema(
    {
        "type": "object",
        "properties": {
            "labels": _STRING_MAP,
            "annotations": _STRING_MAP,
            "finalizers": {"type": "array", _LIST_TYPE: "set"},
            "ownerReferences": {
                "type": "array",
                _LIST_TYPE: "map",
                _LIST_KEYS: ["uid"],
                "items": {"type": "object", _MAP_TYPES[0]: "atomic"},
            },
        },
    },
    None,
)
