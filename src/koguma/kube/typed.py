"""Typed: values seen through their shape: which places they have, how they differ, merge and shrink.

All of it rests on `parts`: an object or a list that is merged item by item is a mapping from path elements to
what stands there, and everything else is a leaf. Answers share what they did not change with their arguments.
"""

from collections.abc import Iterator, Mapping
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
    """How one value differs from another. `added` has containers too; `removed` the topmost places only."""

    added: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    removed: FieldSet = EMPTY

    @property
    def written(self) -> FieldSet:
        """What the writer has set."""
        return self.added | self.modified


NO_DIFFERENCE: Final = Comparison()


def parts(value: Json, shape: MergeSchema) -> dict[str, Json] | None:
    """What a value consists of, by path element; None for a leaf."""
    if isinstance(value, dict):
        return {f"f:{name}": below for name, below in value.items()} if shape.is_object else None
    if shape.is_list and isinstance(value, list | tuple):
        return {shape.element(item, index): item for index, item in enumerate(value)}
    return None


def _whole(left: Mapping[str, Json], like: Json) -> Json:
    """Parts put together again, as an object or a list."""
    if isinstance(like, dict):
        return {element[2:]: below for element, below in left.items()}
    return list(left.values())


def field_set_of(value: Json, shape: MergeSchema, *, containers: bool = False) -> FieldSet:
    """The places of a value: leaves, items of lists and entries of maps; with `containers`, all.

    A field that the schema names is not listed beside what lies below it, since an applier who says nothing
    of its own about a container has no claim on it.
    """
    return FieldSet(under=_node(value, shape, containers).under)


def _node(value: Json, shape: MergeSchema, containers: bool) -> FieldSet:  # noqa: FBT001 - private, and called often
    if type(value) in _PLAIN:
        return LEAF
    below = parts(value, shape)
    if not below:
        return LEAF
    under = {}
    for element, part in below.items():
        node = _node(part, shape.child(element), containers)
        is_listed = node.here or containers or not shape.declares(element)
        under[element] = FieldSet(is_listed, node.under) if node.under else LEAF
    return FieldSet(under=under)


def comparison(old: Json, new: Json, shape: MergeSchema) -> Comparison:
    """What is different in `new`. The order of items that have names of their own does not count."""
    return _comparison(old, new, shape) or NO_DIFFERENCE


def _comparison(old: Json, new: Json, shape: MergeSchema) -> Comparison | None:
    """The same, with None where nothing differs."""
    old_parts, new_parts = parts(old, shape), parts(new, shape)
    if old_parts is None or new_parts is None:
        return None if same(old, new) else _replaced(new, shape)
    added, modified = dict[str, FieldSet](), dict[str, FieldSet]()
    removed = {element: LEAF for element in old_parts if element not in new_parts}
    for element, value in new_parts.items():
        if element not in old_parts:
            node = _node(value, shape.child(element), True)  # noqa: FBT003
            added[element] = FieldSet(here=True, under=node.under)
            continue
        before = old_parts[element]
        if same(before, value):
            continue
        below = _comparison(before, value, shape.child(element))
        if below is not None:
            for found, node in zip((added, modified, removed), below, strict=True):
                if node:
                    found[element] = node
    if not (added or modified or removed):
        return None
    return Comparison(FieldSet(under=added), FieldSet(under=modified), FieldSet(under=removed))


def _replaced(new: Json, shape: MergeSchema) -> Comparison:
    """A leaf that has another value, or a leaf and a container in each other's place."""
    return Comparison(modified=FieldSet(here=True, under=_node(new, shape, True).under))  # noqa: FBT003


def same(old: Json, new: Json) -> bool:
    """Whether two values are the same JSON; for Python alone, 1 and true are equal."""
    if old is new:
        return True
    if type(old) in _PLAIN:
        return type(old) is type(new) and bool(old == new)
    return bool(old == new) and _encode(old) == _encode(new)


def merged(live: Json, config: Json, shape: MergeSchema) -> Json:
    """`live` with all that `config` says."""
    live_parts, config_parts = parts(live, shape), parts(config, shape)
    if live_parts is None or config_parts is None:
        return config
    both = {
        element: merged(live_parts[element], value, shape.child(element)) if element in live_parts else value
        for element, value in config_parts.items()
    }
    if isinstance(config, dict):
        return _whole({**live_parts, **both}, config)
    return [both[element] if element in both else live_parts[element] for element in _order(live_parts, both)]


def _order(live: Mapping[str, Json], config: Mapping[str, Json]) -> list[str]:
    """The items of both lists: those of `config` in its order, those of `live` alone where they stood.

    What `config` alone has comes as late as that allows, so that saying the same again moves nothing.
    """
    found: dict[str, None] = {}
    wanted = iter(config)
    for element in live:
        if element not in config:
            found[element] = None
        elif element not in found:
            for ahead in wanted:
                found[ahead] = None
                if ahead == element:
                    break
    return [*found, *wanted]


def pruned(value: Json, last: FieldSet, kept: FieldSet, shape: MergeSchema) -> Json:
    """`value` without the places of `last` that nobody keeps.

    What `last` does not name stays, even inside an object that `last` filled; an object that ends empty goes,
    unless it is kept itself. An item of a list or map that was owned goes with all that is in it, as soon as
    nothing in it is kept.
    """
    below = parts(value, shape)
    if below is None:
        return value
    left = {}
    for element, part in below.items():
        gone, stay = last.under.get(element), kept.under.get(element, EMPTY)
        rest = part if gone is None else _left(part, gone, stay, shape.child(element))
        if rest is not _NOTHING:
            left[element] = rest if gone is None else _with_keys(rest, part, shape)
    return _whole(left, value)


_NOTHING: Final = object()


def _left(part: Json, gone: FieldSet, stay: FieldSet, shape: MergeSchema) -> Json:
    """What is left of a part that was owned."""
    if not stay and (gone.here or parts(part, shape) is None):
        return _NOTHING
    rest = pruned(part, gone, stay, shape)
    is_emptied = bool(part) and isinstance(rest, dict | list) and not rest
    return _NOTHING if is_emptied and not stay.here else rest


def _with_keys(rest: Json, item: Json, shape: MergeSchema) -> Json:
    """An item with the fields that name it, which stay as long as the item does."""
    if shape.form is not MergeStrategy.LIST_MAP or not isinstance(rest, dict):
        return rest
    return {name: rest.get(name, value) for name, value in item.items() if name in rest or name in shape.keys}


def extracted(value: Json, wanted: FieldSet, shape: MergeSchema) -> Json:
    """The places of a set, with their values: what a manager would apply to own just this."""
    below = parts(value, shape)
    if below is None:
        return value
    left = {
        element: _with_keys(extracted(part, wanted.under[element], shape.child(element)), part, shape)
        for element, part in below.items()
        if element in wanted.under
    }
    return _whole(left, value)


def violations(value: Json, shape: MergeSchema, path: str = "") -> Iterator[Violation]:
    """Items that cannot be told apart, or not told at all."""
    if isinstance(value, dict) and shape.is_object:
        for name, below in value.items():
            yield from violations(below, shape.child(f"f:{name}"), violation.child(path, name))
    elif isinstance(value, list | tuple) and shape.is_list:
        seen = set()
        for index, item in enumerate(value):
            at = violation.item(path, index)
            element = shape.element(item, index)
            if element in seen:
                yield Violation(at, f"Duplicate value: {element[2:]}", "duplicate")
            seen.add(element)
            yield from _unnamed(item, shape, at)
            yield from violations(item, shape.rest, at)


def _unnamed(item: Json, shape: MergeSchema, path: str) -> Iterator[Violation]:
    if shape.form is MergeStrategy.LIST_MAP and not isinstance(item, dict):
        yield Violation(path, "must be an object, since the list tells its items apart by fields", "type")
        return
    for name, default in shape.keys.items():
        if default is None and item.get(name) is None:
            at = violation.child(path, name)
            yield Violation(at, "Required value: the list tells its items apart by it", "required")
