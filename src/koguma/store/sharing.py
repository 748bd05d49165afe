"""Sharing: successive revisions of an object are made of the same parts where they say the same.

The feed keeps thousands of revisions, and mostly they differ in one place: an annotation, a count. What
comes from a request or out of a log is a copy of everything, of which only what is new is kept.
"""

import msgspec
from msgspec.structs import replace

from koguma.model.resource import Resource
from koguma.model.schema import Json

_text = msgspec.json.Encoder().encode


def built_on(before: Resource, after: Resource) -> Resource:
    """The later revision, with the parts of the earlier one that are the same, byte for byte."""
    labels = before.labels if _is_copy(before.labels, after.labels) else after.labels
    annotations = before.annotations if _is_copy(before.annotations, after.annotations) else after.annotations
    meta = before.meta if _is_copy(before.meta, after.meta) else after.meta
    spec, status = _parts(before.spec, after.spec), _parts(before.status, after.status)
    if (
        labels is after.labels
        and annotations is after.annotations
        and meta is after.meta
        and spec is after.spec
        and status is after.status
    ):
        return after
    return replace(after, labels=labels, annotations=annotations, meta=meta, spec=spec, status=status)


def _parts(before: Json, after: Json) -> Json:
    """All of the earlier value where it is the same; else its fields that are."""
    if before is after or not isinstance(before, dict) or not isinstance(after, dict):
        return after
    if _is_copy(before, after):
        return before
    return {
        name: before[name] if name in before and _is_copy(before[name], value) else value
        for name, value in after.items()
    }


def _is_copy(one: object, other: object) -> bool:
    """Whether two values are written alike, in the same order. Short texts and numbers are not worth it."""
    return one == other and (one is other or _text(one) == _text(other))
