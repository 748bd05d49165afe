"""JSON diff: the JSON patch (RFC 6902) that makes one value of another.

What is changed or removed is tested first, so that the patch says what was there and applies to nothing else.
"""

from collections.abc import Iterator

from koguma.model.schema import Json


def patch(before: Json, after: Json) -> list[dict[str, Json]]:
    """The operations in the order in which they apply; none for equal values."""
    return list(_operations(before, after, ""))


def _operations(before: Json, after: Json, path: str) -> Iterator[dict[str, Json]]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    else:
        yield from _removed(before, path)
        yield {"op": "add", "path": path, "value": after}


def _removed(value: Json, path: str) -> Iterator[dict[str, Json]]:
    yield {"op": "test", "path": path, "value": value}
    yield {"op": "remove", "path": path}


def _of_objects(before: dict[str, Json], after: dict[str, Json], path: str) -> Iterator[dict[str, Json]]:
    for name in sorted(before.keys() | after.keys()):
        at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in after:
            yield from _removed(before[name], at)
        elif name not in before:
            yield {"op": "add", "path": at, "value": after[name]}
        else:
            yield from _operations(before[name], after[name], at)


def _of_lists(before: list[Json], after: list[Json], path: str) -> Iterator[dict[str, Json]]:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from _operations(old, new, f"{path}/{index}")
    for index in reversed(
        range(len(after), len(before))
    ):  # from the end, so that the others keep their index
        yield from _removed(before[index], f"{path}/{index}")
    for index in range(len(before), len(after)):
        yield {"op": "add", "path": f"{path}/{index}", "value": after[index]}
