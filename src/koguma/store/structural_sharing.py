"""Structural sharing: successive revisions of an object share the parts that are equal.

Thousands of revisions are kept in memory, and most differ in one place: an annotation, a count. A resource
from a request or from a log is a full copy, of which only the changed parts are kept.
"""

import msgspec
from msgspec.structs import replace

from koguma.model.resource import Resource
from koguma.model.schema import Json

_encoded = msgspec.json.Encoder().encode


def with_shared_parts(before: Resource, after: Resource) -> Resource:
    """The later revision, with those parts of the earlier one that are equal byte for byte."""
    labels = before.labels if _is_copy(before.labels, after.labels) else after.labels
    annotations = before.annotations if _is_copy(before.annotations, after.annotations) else after.annotations
    meta = before.meta if _is_copy(before.meta, after.meta) else after.meta
    spec, status = _shared(before.spec, after.spec), _shared(before.status, after.status)
    if (
        labels is after.labels
        and annotations is after.annotations
        and meta is after.meta
        and spec is after.spec
        and status is after.status
    ):
        return after
    return replace(after, labels=labels, annotations=annotations, meta=meta, spec=spec, status=status)


def _shared(before: Json, after: Json) -> Json:
    """The earlier value if both are equal; else the later one with the earlier fields that are equal."""
    if before is after or not isinstance(before, dict) or not isinstance(after, dict):
        return after
    if _is_copy(before, after):
        return before
    return {
        name: before[name] if name in before and _is_copy(before[name], value) else value
        for name, value in after.items()
    }


def _is_copy(one: object, other: object) -> bool:
    """Whether two values are encoded equally, in the same order."""
    return one == other and (one is other or _encoded(one) == _encoded(other))
