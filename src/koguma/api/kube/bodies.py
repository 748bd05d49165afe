"""Bodies: what a request of the Kubernetes form sends, whichever way it is encoded."""

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.api.call import JSON, JSON_BYTES_ON_LOOP, YAML_BYTES_ON_LOOP, Call, read_beside
from koguma.kube import protobuf
from koguma.model import documents
from koguma.model.documents import BadDocument
from koguma.model.errors import BadRequest, UnsupportedMedia
from koguma.model.schema import Json

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
APPLY: Final = "application/apply-patch+yaml"
YAML: Final = "application/yaml"
STRATEGIC: Final = "application/strategic-merge-patch+json"
BYTES_MAX: Final = 3 * 1024 * 1024


class RequestBody(msgspec.Struct, frozen=True):
    """The one value in a body, and the paths of fields that it gives more than once; the last one counts."""

    value: Json
    repeated: tuple[str, ...] = ()


async def document(call: Call) -> RequestBody:
    """The object in a body: JSON unless the content type says otherwise."""
    media = call.media_type
    if media not in (JSON, "", YAML, PROTOBUF):
        raise unknown_media((JSON, YAML, PROTOBUF))
    data = await call.body(BYTES_MAX)
    if media == PROTOBUF:
        return RequestBody(await read_beside(protobuf.decode, data, YAML_BYTES_ON_LOOP))
    if media == YAML:
        return await read_beside(_yaml, data, YAML_BYTES_ON_LOOP)
    return await read_beside(_json, data, JSON_BYTES_ON_LOOP)


async def patch(call: Call) -> RequestBody:
    """The patch in a body; who calls knows its media type to be one of a patch."""
    data = await call.body(BYTES_MAX)
    if call.media_type != APPLY:
        return await read_beside(_json, data, JSON_BYTES_ON_LOOP)
    return await read_beside(_json_or_yaml, data, YAML_BYTES_ON_LOOP)


def unknown_media(taken: Iterable[str]) -> UnsupportedMedia:
    """The refusal of a media type, in Kubernetes' words."""
    return UnsupportedMedia(
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(taken)
    )


def _json(data: bytes) -> RequestBody:
    try:
        return RequestBody(*documents.load_lenient_json(data))
    except BadDocument as error:
        raise BadRequest(f"the body cannot be read: {error.detail}") from None


def _json_or_yaml(data: bytes) -> RequestBody:
    with contextlib.suppress(BadDocument):  # most clients send JSON there, which is read faster
        return RequestBody(*documents.load_lenient_json(data))
    return _yaml(data)


def _yaml(data: bytes) -> RequestBody:
    try:
        found = documents.load(data)
    except BadDocument as error:
        raise BadRequest(f"the body cannot be read: {error.detail}") from None
    if len(found) != 1:
        raise BadRequest(f"one document is needed, the body has {len(found)}")
    return RequestBody(found[0].value)


async def options(call: Call) -> Json:
    """The DeleteOptions of a request: its body where it has one."""
    if not call.request.body_exists:
        return {}
    data = await call.body(BYTES_MAX)
    if not data.strip():
        return {}
    if call.media_type == PROTOBUF:
        return await read_beside(protobuf.decode, data, YAML_BYTES_ON_LOOP)
    try:
        if call.media_type == YAML:
            found = (await read_beside(_yaml, data, YAML_BYTES_ON_LOOP)).value
        else:
            found = await read_beside(documents.load_json, data, JSON_BYTES_ON_LOOP)
    except BadDocument as error:
        raise BadRequest(f"the delete options cannot be read: {error.detail}") from None
    if not isinstance(found, dict):
        raise BadRequest("the delete options must be an object")
    return found
