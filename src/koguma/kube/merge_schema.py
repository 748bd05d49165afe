"""Shape: how the values at a place of a document are merged and owned, field by field or as a whole.

Objects are taken apart unless their schema says `atomic`; lists stay whole unless it says `set` or `map`.
What no schema describes is treated like that too: objects apart, lists whole. A shape is made lazily, one
place at a time, since schemas may refer to themselves; it is made once per endpoint and kept.
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
_WHOLE: Final = ("x-kubernetes-map-type", "x-kubernetes-struct-type")
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})


class MergeStrategy(Enum):
    """The ways in which a value is merged."""

    SCALAR = "scalar"
    ATOMIC = "atomic"  # an object or a list that has one owner as a whole
    STRUCT = "struct"  # an object with fields that its schema names
    MAP = "map"  # an object with any keys
    SET = "set"  # a list of values, each once
    LIST_MAP = "list-map"  # a list of objects, told apart by the fields of x-kubernetes-list-map-keys


class MergeSchema:
    """The form of a place, and the shapes of what lies below it."""

    def __init__(
        self,
        form: MergeStrategy,
        schemas: Mapping[str, Json] | None = None,
        rest: Json = None,
        keys: Mapping[str, Json] | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.form = form
        self.is_object = form in (MergeStrategy.STRUCT, MergeStrategy.MAP)
        self.is_list = form in (MergeStrategy.SET, MergeStrategy.LIST_MAP)
        self.keys = keys or {}  # of a list: names in order, each with what it is where an item leaves it out
        self._schemas = schemas or {}
        self._rest = rest
        self._resolve = resolve
        self._made: dict[str, MergeSchema] = {}

    def child(self, element: str) -> "MergeSchema":
        """The shape of what lies at an element below."""
        known = self._made.get(element)
        if known is not None:
            return known
        if element not in self._schemas:
            return self.rest
        made = self._made[element] = _merge_schema(self._schemas[element], self._resolve)
        return made

    @cached_property
    def rest(self) -> "MergeSchema":
        """The shape of items, and of fields that have no name in the schema."""
        return UNTYPED if not self._rest else _merge_schema(self._rest, self._resolve)

    def declares(self, element: str) -> bool:
        """Whether the schema names this field."""
        return element in self._schemas or element in self._made

    def element(self, item: Json, index: int) -> str:
        """The element that names an item of such a list."""
        if self.form is MergeStrategy.SET:
            return field_set.value_element(item)
        if isinstance(item, dict):
            found = {name: item.get(name, default) for name, default in self.keys.items()}
            named = {name: value for name, value in found.items() if value is not None}
            if named:
                return field_set.key_element(named)
        return f"i:{index}"

    def with_metadata(self) -> "MergeSchema":
        """The same at the root of a document, whose metadata has a shape of its own."""
        found = MergeSchema(MergeStrategy.STRUCT, self._schemas, self._rest, resolve=self._resolve)
        found._made["f:metadata"] = _METADATA
        return found


def merge_schema_of(schema: Json, resolve: Resolve | None = None) -> MergeSchema:
    """The shape of documents with this schema; an empty one or None describes nothing."""
    return _merge_schema(schema or {}, resolve).with_metadata()


def _merge_schema(schema: Json, resolve: Resolve | None) -> MergeSchema:
    plain = _plain(schema, resolve)
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
    if any(schema.get(word) == "atomic" for word in _WHOLE):
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
            )  # an item of a set is what it is, or is another one
        case "map":
            properties = _plain(items, resolve).get("properties", {})
            names = sorted(schema.get(_LIST_KEYS, ()))
            keys = {name: _plain(properties.get(name, {}), resolve).get("default") for name in names}
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


def _plain(schema: Json, resolve: Resolve | None) -> Json:
    """A schema without references: what stands beside one goes before what it refers to."""
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        if word not in schema:
            continue
        beside = {name: value for name, value in schema.items() if name != word}
        if word == "$ref":
            assert resolve is not None, f"{schema[word]} refers to a schema, and nobody knows it"
            return _plain({**resolve(schema[word]), **beside}, resolve)
        if word == "allOf":
            parts = [_plain(part, resolve) for part in schema[word]]
            return _plain({name: value for part in (*parts, beside) for name, value in part.items()}, resolve)
        if "type" not in schema and "properties" not in schema:
            return _plain({**_choice(schema[word], resolve), **beside}, resolve)
    return schema


def _choice(choices: list[Json], resolve: Resolve | None) -> Json:
    """The one branch that is not null; several scalar ones are as good as one, and of others none holds."""
    branches = [_plain(each, resolve) for each in choices if each.get("type") != "null"]
    if len(branches) == 1 or (branches and all(_type(branch) == "scalar" for branch in branches)):
        return branches[0]
    return {}


SCALAR: Final = MergeSchema(MergeStrategy.SCALAR)
ATOMIC: Final = MergeSchema(MergeStrategy.ATOMIC)
UNTYPED: Final = MergeSchema(
    MergeStrategy.MAP
)  # nothing is known: objects apart, lists whole, all the way down

_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final = _merge_schema(
    {
        "type": "object",
        "properties": {
            "labels": _TEXTS,
            "annotations": _TEXTS,
            "finalizers": {"type": "array", _LIST_TYPE: "set"},
            "ownerReferences": {
                "type": "array",
                _LIST_TYPE: "map",
                _LIST_KEYS: ["uid"],
                "items": {"type": "object", _WHOLE[0]: "atomic"},
            },
        },
    },
    None,
)
