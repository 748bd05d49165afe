"""Patches of the plain form: JSON merge patch (RFC 7396) or JSON patch (RFC 6902) by content type."""

from koguma.model import json_patch
from koguma.model.errors import UnsupportedMedia
from koguma.model.schema import Json


def patched(media_type: str, value: Json, patch: Json) -> Json:
    """The value after a patch of that content type."""
    if media_type == json_patch.MERGE_PATCH_TYPE:
        return json_patch.merge_patched(value, patch)
    if media_type == json_patch.JSON_PATCH_TYPE:
        return json_patch.json_patched(value, patch)
    taken = f"{json_patch.MERGE_PATCH_TYPE} or {json_patch.JSON_PATCH_TYPE}"
    raise UnsupportedMedia(f'content type "{media_type}" is no patch; send {taken}')
