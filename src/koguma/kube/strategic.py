"""Strategic merge patch: a merge patch for Kubernetes' own kinds that also merges some of their lists.

Objects merge as in a JSON merge patch. A list is replaced, unless the kind says that it is merged: by a key
that each element has, or, for scalars, as a set. What a merge alone cannot express, directives do: `$patch`
(replace, delete, merge), `$retainKeys`, `$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from koguma.model.errors import BadRequest, Invalid
from koguma.model.schema import Json
from koguma.model.violation import Violation

MEDIA_TYPE: Final = "application/strategic-merge-patch+json"

Path: TypeAlias = tuple[str, ...]  # field names; an element of a list adds nothing
Hints: TypeAlias = Mapping[Path, str]  # the merge key of each list that merges; empty for one of plain values

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_REMOVE: Final = "$deleteFromPrimitiveList/"

_METADATA: Final[Hints] = {("metadata", "finalizers"): "", ("metadata", "ownerReferences"): "uid"}
_WEBHOOKS: Final[Hints] = {**_METADATA, ("webhooks",): "name", ("webhooks", "matchConditions"): "name"}
# The published patch strategies. Not merged, though one may expect it: a service account's
# `imagePullSecrets`, a namespace's `spec.finalizers`, rules and subjects of roles and bindings.
_BY_KIND: Final[Mapping[str, Hints]] = {
    "Namespace": {**_METADATA, ("status", "conditions"): "type"},
    "MutatingWebhookConfiguration": _WEBHOOKS,
    "ValidatingWebhookConfiguration": _WEBHOOKS,
    "ServiceAccount": {**_METADATA, ("secrets",): "name"},
}


def hints_of(kind: str) -> Hints:
    """The patch strategies of a kind: which lists merge, and by which key."""
    return _BY_KIND.get(kind, _METADATA)


def merged(value: Json, patch: Json, hints: Hints) -> Json:
    """The value after a strategic merge patch."""
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch is an object with the fields to change")
    return _object(value, patch, hints, ())


def _object(value: Json, patch: dict[str, Json], hints: Hints, path: Path) -> Json:
    match patch.get(_PATCH, "merge"):
        case "replace":
            whole = {name: change for name, change in patch.items() if name != _PATCH}
            return _object({}, whole, hints, path)
        case "delete":
            return {}
        case "merge":
            result = _retained(value if isinstance(value, dict) else {}, patch, path)
            for name in _fields(patch):
                _change(result, name, patch, hints, (*path, name))
            return result
        case other:
            raise _invalid(path, f"{_PATCH} is replace, delete or merge, not {other!r}")


def _fields(patch: dict[str, Json]) -> Iterable[str]:
    """The fields that a patch is about, also those that only a directive names, each once."""
    names = (name.removeprefix(_ORDER).removeprefix(_REMOVE) for name in patch)
    return dict.fromkeys(name for name in names if name not in (_PATCH, _RETAIN))


def _retained(value: dict[str, Json], patch: dict[str, Json], path: Path) -> dict[str, Json]:
    if _RETAIN not in patch:
        return dict(value)
    retained = {name for name in _directive(patch, _RETAIN, path) if isinstance(name, str)}
    for name, change in patch.items():
        if change is not None and not name.startswith("$") and name not in retained:
            raise BadRequest(f"{_RETAIN} at {_at(path)} leaves out {name}, which the patch sets")
    return {name: part for name, part in value.items() if name in retained}


def _change(result: dict[str, Json], name: str, patch: dict[str, Json], hints: Hints, path: Path) -> None:
    current, change = result.get(name), patch.get(name, ...)
    if change is None:
        result.pop(name, None)
    elif isinstance(change, dict):
        result[name] = _object(current, change, hints, path)
    elif isinstance(change, list) or change is ...:
        elements = current if isinstance(current, list) else []
        if change is ... and not elements:
            return
        elements = _removed(elements, patch, name, path)
        result[name] = _list(elements, change, patch, hints, path)
    else:
        result[name] = change


def _removed(elements: list[Json], patch: dict[str, Json], name: str, path: Path) -> list[Json]:
    if _REMOVE + name not in patch:
        return elements
    removed = {repr(value) for value in _directive(patch, _REMOVE + name, path)}
    return [element for element in elements if repr(element) not in removed]


def _list(current: list[Json], change: Json, patch: dict[str, Json], hints: Hints, path: Path) -> list[Json]:
    """A list after its change (`...`: only directives name it)."""
    key = hints.get(path)
    if key is None and change is ...:
        return current
    changes = [] if change is ... else change
    if key is None or any(_is(element, "replace") for element in changes):
        replacing = (element for element in changes if key is None or not _is(element, "replace", "delete"))
        return [_element({}, element, hints, path) for element in replacing]
    deleted = {_identity(element, key, path) for element in changes if _is(element, "delete")}
    merged = [(_identity(element, key, path), element) for element in changes if not _is(element, "delete")]
    stored = {_known(element, key, index): element for index, element in enumerate(current)}
    items = {identity: element for identity, element in stored.items() if identity not in deleted}
    for identity, element in merged:
        items[identity] = _element(items.get(identity), element, hints, path)
    order = _order([identity for identity, _ in merged], patch, key, path)
    return [items[identity] for identity in _ordered(list(items), order, list(stored))]


def _element(current: Json, change: Json, hints: Hints, path: Path) -> Json:
    return _object(current, change, hints, path) if isinstance(change, dict) else change


def _is(element: Json, *words: str) -> bool:
    return isinstance(element, dict) and element.get(_PATCH) in words


def _identity(element: Json, key: str, path: Path) -> str:
    """What makes an element of the patch the same as one of the list."""
    if key and isinstance(element, dict) and isinstance(element.get(key), str | int | float):
        return repr(element[key])
    if not key and not isinstance(element, dict | list):
        return repr(element)
    raise _invalid(path, f"each element needs the merge key {key}" if key else "elements are plain values")


def _known(element: Json, key: str, index: int) -> str:
    """The identity of an element that is stored; one without a key is only itself."""
    if key:
        return repr(element[key]) if isinstance(element, dict) and key in element else f"#{index}"
    return repr(element)


def _order(identities: list[str], patch: dict[str, Json], key: str, path: Path) -> list[str]:
    """The order that a patch asks for: its own, unless a directive knows more."""
    name = _ORDER + path[-1]
    if name not in patch:
        return identities
    order = [_identity(element, key, path) for element in _directive(patch, name, path)]
    position_of = {identity: index for index, identity in enumerate(order)}
    positions = [position_of.get(identity, -1) for identity in identities]
    if -1 in positions or positions != sorted(positions):
        raise BadRequest(f"{name} has to name all elements of {_at(path)} in the patch, in the same order")
    return order


def _ordered(items: Sequence[str], order: Sequence[str], before: Sequence[str]) -> list[str]:
    """Those that the patch orders in its order, among the others, which stay as they were.

    An ordered element goes before another one only if it stood before it already.
    """
    position_before = {identity: index for index, identity in enumerate(before)}
    ranks = {identity: index for index, identity in enumerate(dict.fromkeys(order))}
    ordered = sorted((item for item in items if item in ranks), key=ranks.__getitem__)
    result: list[str] = []
    at = 0
    for other in (item for item in items if item not in ranks):
        while (
            at < len(ordered)
            and ordered[at] in position_before
            and position_before[ordered[at]] < position_before[other]
        ):
            result.append(ordered[at])
            at += 1
        result.append(other)
    return result + ordered[at:]


def _directive(patch: dict[str, Json], name: str, path: Path) -> list[Json]:
    values = patch[name]
    if not isinstance(values, list):
        raise BadRequest(f"{name} at {_at(path)} is a list")
    return values


def _at(path: Path) -> str:
    return ".".join(path) or "the top"


def _invalid(path: Path, message: str) -> Invalid:
    return Invalid([Violation(".".join(path), message, "patch")], "the patch does not fit the object")
