"""Patches: JSON merge patch (RFC 7396) and JSON patch (RFC 6902) on a value."""

from typing import Final

from koguma.kube import json_patches
from koguma.model.errors import UnsupportedMedia
from koguma.model.schema import Json

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


def patched(media_type: str, value: Json, patch: Json) -> Json:
    """The value with a patch of that content type laid over it."""
    if media_type == MERGE:
        return merged(value, patch)
    if media_type == JSON_PATCH:
        return json_patches.json_patched(value, patch, is_lenient=False)
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
