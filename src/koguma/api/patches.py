"""Patches: JSON merge patch (RFC 7396) and JSON patch (RFC 6902) on a value."""

from typing import Final

import jsonpatch
import jsonpointer

from koguma.model.errors import BadRequest, Invalid, UnsupportedMedia
from koguma.model.schema import Json
from koguma.model.violation import Violation

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
OPERATIONS_MAX: Final = 1_000


def patched(media_type: str, value: Json, patch: Json) -> Json:
    """The value with a patch of that content type laid over it."""
    if media_type == MERGE:
        return merged(value, patch)
    if media_type == JSON_PATCH:
        return _json_patched(value, patch)
    raise UnsupportedMedia(f'content type "{media_type}" is no patch; send {MERGE} or {JSON_PATCH}')


def merged(value: Json, patch: Json) -> Json:
    """RFC 7396: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _json_patched(value: Json, patch: Json) -> Json:
    if not isinstance(patch, list):
        raise BadRequest("a JSON patch is a list of operations")
    if len(patch) > OPERATIONS_MAX:
        raise BadRequest(f"a JSON patch has at most {OPERATIONS_MAX} operations, this one {len(patch)}")
    result = value
    for index, operation in enumerate(patch):
        try:
            result = jsonpatch.apply_patch(result, [operation])
        except jsonpatch.JsonPatchTestFailed:
            message = f"the value at {operation.get('path')} is not what the test expects"
            raise Invalid([Violation(f"[{index}]", message, "test")], "the patch's test failed") from None
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError) as error:
            raise BadRequest(f"operation {index} of the patch: {error}") from None
    return result
