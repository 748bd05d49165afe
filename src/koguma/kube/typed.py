"""Typed values: which fields a value has by its merge schema, and how two values differ and merge.

This is what structured-merge-diff calls a TypedValue. All of it rests on `parts`: an object or a list that is
merged item by item is a mapping from path elements to values, and everything else is a leaf. Results share
what they did not change with their arguments.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.kube.field_set import EMPTY, LEAF, FieldSet
from koguma.kube.merge_schema import MergeSchema, MergeStrategy
from koguma.model import violation
from koguma.model.schema import Json
from koguma.model.violation import Violation

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_PLAIN: Final = frozenset({str, int, bool, float, type(None)})


class Comparison(NamedTuple):
    """How one value differs from another. `added` has containers too; `removed` only the topmost fields."""

    added: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    removed: FieldSet = EMPTY

    @property
    def written(self) -> FieldSet:
        """What the writer has set."""
        return self.added | self.modified


NO_DIFFERENCE: Final = Comparison()


def parts(value: Json, schema: MergeSchema) -> dict[str, Json] | None:
    """What a value consists of, by path element; None for a leaf."""
    if isinstance(value, dict):
        return {f"f:{name}": below for name, below in value.items()} if schema.is_object else None
    if schema.is_list and isinstance(value, list | tuple):
        items = {schema.element(item, index): item for index, item in enumerate(value)}
        # The plain form may have stored several items with one key; then they cannot be told apart.
        is_ambiguous = schema.strategy is MergeStrategy.LIST_MAP and len(items) != len(value)
        return None if is_ambiguous else items
    return None


def _whole(left: Mapping[str, Json], like: Json) -> Json:
    """Parts put together again, as an object or a list."""
    if isinstance(like, dict):
        return {element[2:]: below for element, below in left.items()}
    return list(left.values())


def field_set_of(value: Json, schema: MergeSchema, *, containers: bool = False) -> FieldSet:
    """The fields of a value: leaves, items of lists and entries of maps; with `containers`, all.

    A field that the schema declares is not listed beside its own fields: an applier who only sets something
    inside a container does not own the container.
    """
    return FieldSet(children=_field_set(value, schema, containers).children)


def _field_set(value: Json, schema: MergeSchema, containers: bool) -> FieldSet:  # noqa: FBT001 - private, and called often
    if type(value) in _PLAIN:
        return LEAF
    below = parts(value, schema)
    if not below:
        return LEAF
    children = {}
    for element, part in below.items():
        node = _field_set(part, schema.child(element), containers)
        is_listed = node.is_member or containers or not schema.declares(element)
        children[element] = FieldSet(is_listed, node.children) if node.children else LEAF
    return FieldSet(children=children)


def with_items(sets: Sequence[FieldSet], value: Json, schema: MergeSchema) -> Sequence[FieldSet]:
    """The field sets of several managers, with the items of lists that their owner owns as a whole.

    They were written before the schema told the items of such a list apart: else somebody would own an item.
    """
    below = parts(value, schema) if any(sets) else None
    if not below:
        return sets
    if schema.is_list and not any(each.children for each in sets):
        items = _field_set(value, schema, True).children  # noqa: FBT003
        return [FieldSet(is_member=True, children=items) if each.is_member else each for each in sets]
    changed = list(sets)
    for element, part in below.items():
        inner = [each.children.get(element, EMPTY) for each in sets]
        for index, after in enumerate(with_items(inner, part, schema.child(element))):
            if after is not inner[index]:
                children = {**changed[index].children, element: after}
                changed[index] = FieldSet(changed[index].is_member, children)
    return changed


def comparison(old: Json, new: Json, schema: MergeSchema) -> Comparison:
    """What is different in `new`. The order of items that have names of their own does not count."""
    return _comparison(old, new, schema) or NO_DIFFERENCE


def _comparison(old: Json, new: Json, schema: MergeSchema) -> Comparison | None:
    """The same, with None where nothing differs."""
    old_parts, new_parts = parts(old, schema), parts(new, schema)
    if old_parts is None or new_parts is None:
        return None if same(old, new) else _replaced(new, schema)
    added, modified = dict[str, FieldSet](), dict[str, FieldSet]()
    removed = {element: LEAF for element in old_parts if element not in new_parts}
    for element, value in new_parts.items():
        if element not in old_parts:
            node = _field_set(value, schema.child(element), True)  # noqa: FBT003
            added[element] = FieldSet(is_member=True, children=node.children)
            continue
        before = old_parts[element]
        if same(before, value):
            continue
        below = _comparison(before, value, schema.child(element))
        if below is not None:
            for differences, node in zip((added, modified, removed), below, strict=True):
                if node:
                    differences[element] = node
    if not (added or modified or removed):
        return None
    return Comparison(FieldSet(children=added), FieldSet(children=modified), FieldSet(children=removed))


def _replaced(new: Json, schema: MergeSchema) -> Comparison:
    """A leaf with another value, or a leaf where a container was, or the other way around."""
    return Comparison(modified=FieldSet(is_member=True, children=_field_set(new, schema, True).children))  # noqa: FBT003


def same(old: Json, new: Json) -> bool:
    """Whether two values are the same JSON; for Python alone, 1 and true are equal."""
    if old is new:
        return True
    if type(old) in _PLAIN:
        return type(old) is type(new) and bool(old == new)
    return bool(old == new) and _encode(old) == _encode(new)


def merged(live: Json, config: Json, schema: MergeSchema) -> Json:
    """`live` with the fields of `config` merged in."""
    live_parts, config_parts = parts(live, schema), parts(config, schema)
    if live_parts is None or config_parts is None:
        return config
    both = {
        element: merged(live_parts[element], value, schema.child(element)) if element in live_parts else value
        for element, value in config_parts.items()
    }
    if isinstance(config, dict):
        return _whole({**live_parts, **both}, config)
    return [both[element] if element in both else live_parts[element] for element in _order(live_parts, both)]


def _order(live: Mapping[str, Json], config: Mapping[str, Json]) -> list[str]:
    """The items of both lists: those of `config` in its order, those of `live` alone where they stood.

    What `config` alone has comes as late as that allows, so that applying the same again moves nothing.
    """
    ordered: dict[str, None] = {}
    of_config = iter(config)
    for element in live:
        if element not in config:
            ordered[element] = None
        elif element not in ordered:
            for ahead in of_config:
                ordered[ahead] = None
                if ahead == element:
                    break
    return [*ordered, *of_config]


def pruned(value: Json, last: FieldSet, kept: FieldSet, schema: MergeSchema) -> Json:
    """`value` without the fields of `last` (the set that was applied before) that are not in `kept`.

    What `last` does not name stays, even inside an object that `last` created. An object that ends empty is
    removed, unless it is in `kept` itself. An item of a list or map that was owned is removed with all its
    fields, as soon as none of them is in `kept`.
    """
    below = parts(value, schema)
    if below is None:
        return value
    left = {}
    for element, part in below.items():
        applied, stays = last.children.get(element), kept.children.get(element, EMPTY)
        remaining = part if applied is None else _remaining(part, applied, stays, schema.child(element))
        if remaining is not _NOTHING:
            left[element] = remaining if applied is None else _with_keys(remaining, part, schema)
    return _whole(left, value)


_NOTHING: Final = object()


def _remaining(part: Json, applied: FieldSet, stays: FieldSet, schema: MergeSchema) -> Json:
    """What is left of a value that was owned; `_NOTHING` where it is removed."""
    if not stays and (applied.is_member or parts(part, schema) is None):
        return _NOTHING
    remaining = pruned(part, applied, stays, schema)
    is_emptied = bool(part) and isinstance(remaining, dict | list) and not remaining
    return _NOTHING if is_emptied and not stays.is_member else remaining


def _with_keys(remaining: Json, item: Json, schema: MergeSchema) -> Json:
    """An item with its key fields, which stay as long as the item does."""
    if schema.strategy is not MergeStrategy.LIST_MAP or not isinstance(remaining, dict):
        return remaining
    return {
        name: remaining.get(name, value)
        for name, value in item.items()
        if name in remaining or name in schema.keys
    }


def extracted(value: Json, field_set: FieldSet, schema: MergeSchema) -> Json:
    """The fields of a set, with their values: what a manager would apply to own exactly these."""
    below = parts(value, schema)
    if below is None:
        return value
    left = {
        element: _with_keys(extracted(part, field_set.children[element], schema.child(element)), part, schema)
        for element, part in below.items()
        if element in field_set.children
    }
    return _whole(left, value)


def violations(value: Json, schema: MergeSchema, path: str = "") -> Iterator[Violation]:
    """Items of a list that have the same keys, or lack them."""
    if isinstance(value, dict) and schema.is_object:
        for name, below in value.items():
            yield from violations(below, schema.child(f"f:{name}"), violation.child(path, name))
    elif isinstance(value, list | tuple) and schema.is_list:
        elements = set()
        for index, item in enumerate(value):
            at = violation.item(path, index)
            element = schema.element(item, index)
            if element in elements:
                yield Violation(at, f"Duplicate value: {element[2:]}", "duplicate")
            elements.add(element)
            yield from _key_violations(item, schema, at)
            yield from violations(item, schema.rest, at)


def _key_violations(item: Json, schema: MergeSchema, path: str) -> Iterator[Violation]:
    if schema.strategy is MergeStrategy.LIST_MAP and not isinstance(item, dict):
        yield Violation(path, "must be an object, since the list tells its items apart by fields", "type")
        return
    for name, default in schema.keys.items():
        if default is None and item.get(name) is None:
            at = violation.child(path, name)
            yield Violation(at, "Required value: the list tells its items apart by it", "required")
