"""Shape: how the values at a place of a document are merged and owned, field by field or as a whole.

Objects are taken apart unless their schema says `atomic`; lists stay whole unless it says `set` or `map`.
What no schema describes is treated like that too: objects apart, lists whole. A shape is made lazily, one
place at a time, since schemas may refer to themselves; it is made once per endpoint and kept.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Final

from koguma.kube import fields
from koguma.model.schema import Json

Resolve = Callable[[str], Json]

_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"
_WHOLE: Final = ("x-kubernetes-map-type", "x-kubernetes-struct-type")
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})


class Form(Enum):
    """The ways in which a value is merged."""

    SCALAR = "scalar"
    ATOMIC = "atomic"  # an object or a list that has one owner as a whole
    STRUCT = "struct"  # an object with fields that its schema names
    MAP = "map"  # an object with any keys
    SET = "set"  # a list of values, each once
    KEYED = "keyed"  # a list of objects that some of their fields tell apart


class Shape:
    """The form of a place, and the shapes of what lies below it."""

    def __init__(
        self,
        form: Form,
        schemas: Mapping[str, Json] | None = None,
        rest: Json = None,
        keys: Mapping[str, Json] | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.form = form
        self.is_object = form in (Form.STRUCT, Form.MAP)
        self.is_list = form in (Form.SET, Form.KEYED)
        self.keys = keys or {}  # of a list: names in order, each with what it is where an item leaves it out
        self._schemas = schemas or {}
        self._rest = rest
        self._resolve = resolve
        self._made: dict[str, Shape] = {}

    def child(self, element: str) -> "Shape":
        """The shape of what lies at an element below."""
        known = self._made.get(element)
        if known is not None:
            return known
        if element not in self._schemas:
            return self.rest
        made = self._made[element] = _shape(self._schemas[element], self._resolve)
        return made

    @cached_property
    def rest(self) -> "Shape":
        """The shape of items, and of fields that have no name in the schema."""
        return OPEN if not self._rest else _shape(self._rest, self._resolve)

    def declares(self, element: str) -> bool:
        """Whether the schema names this field."""
        return element in self._schemas or element in self._made

    def element(self, item: Json, index: int) -> str:
        """The element that names an item of such a list."""
        if self.form is Form.SET:
            return fields.of_value(item)
        if isinstance(item, dict):
            found = {name: item.get(name, default) for name, default in self.keys.items()}
            named = {name: value for name, value in found.items() if value is not None}
            if named:
                return fields.of_keys(named)
        return f"i:{index}"

    def with_metadata(self) -> "Shape":
        """The same at the root of a document, whose metadata has a shape of its own."""
        found = Shape(Form.STRUCT, self._schemas, self._rest, resolve=self._resolve)
        found._made["f:metadata"] = _METADATA
        return found


def shape_of(schema: Json, resolve: Resolve | None = None) -> Shape:
    """The shape of documents with this schema; an empty one or None describes nothing."""
    return _shape(schema or {}, resolve).with_metadata()


def _shape(schema: Json, resolve: Resolve | None) -> Shape:
    plain = _plain(schema, resolve)
    match _type(plain):
        case "array":
            return _list_shape(plain, resolve)
        case "object":
            return _object_shape(plain, resolve)
        case "scalar":
            return SCALAR
        case _:
            return OPEN


def _object_shape(schema: Json, resolve: Resolve | None) -> Shape:
    if any(schema.get(word) == "atomic" for word in _WHOLE):
        return ATOMIC
    others = schema.get("additionalProperties")
    rest = others if isinstance(others, dict) else None
    named = {f"f:{name}": field for name, field in schema.get("properties", {}).items()}
    return Shape(Form.STRUCT if named else Form.MAP, named, rest, resolve=resolve)


def _list_shape(schema: Json, resolve: Resolve | None) -> Shape:
    items = schema.get("items") or {}
    match schema.get(_LIST_TYPE):
        case "set":
            return Shape(
                Form.SET, rest={"type": "string"}
            )  # an item of a set is what it is, or is another one
        case "map":
            properties = _plain(items, resolve).get("properties", {})
            names = sorted(schema.get(_LIST_KEYS, ()))
            keys = {name: _plain(properties.get(name, {}), resolve).get("default") for name in names}
            return Shape(Form.KEYED, rest=items, keys=keys, resolve=resolve)
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


SCALAR: Final = Shape(Form.SCALAR)
ATOMIC: Final = Shape(Form.ATOMIC)
OPEN: Final = Shape(Form.MAP)  # nothing is known: objects apart, lists whole, all the way down

_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final = _shape(
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
