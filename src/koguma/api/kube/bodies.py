"""Bodies of the Kubernetes form: JSON, YAML or protobuf."""

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.api.call import JSON, JSON_BYTES_ON_LOOP, YAML_BYTES_ON_LOOP, Call, read_beside
from koguma.kube import protobuf
from koguma.model import documents
from koguma.model.documents import BadDocument, RepeatedKey
from koguma.model.errors import BadRequest, UnsupportedMedia
from koguma.model.schema import Json
from koguma.model.violation import Violation

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
APPLY: Final = "application/apply-patch+yaml"
YAML: Final = "application/yaml"
STRATEGIC: Final = "application/strategic-merge-patch+json"
BYTES_MAX: Final = 3 * 1024 * 1024


class RequestBody(msgspec.Struct, frozen=True):
    """The value in a body, and a violation for each field that it has again; the last one counts."""

    value: Json
    duplicates: tuple[Violation, ...] = ()


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
    """The patch in a body; the caller has checked that the media type is one of a patch."""
    data = await call.body(BYTES_MAX)
    if call.media_type != APPLY:
        return await read_beside(_json, data, JSON_BYTES_ON_LOOP)
    return await read_beside(_json_or_yaml, data, YAML_BYTES_ON_LOOP)


def unknown_media(taken: Iterable[str]) -> UnsupportedMedia:
    """The error for an unknown media type, in Kubernetes' words."""
    return UnsupportedMedia(
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(taken)
    )


def _json(data: bytes) -> RequestBody:
    try:
        return _lenient_json(data)
    except BadDocument as error:
        raise BadRequest(f"the body cannot be read: {error.detail}") from None


def _lenient_json(data: bytes) -> RequestBody:
    value, repeated = documents.load_lenient_json(data)
    return RequestBody(value, tuple(Violation(at, f'duplicate field "{at}"', "duplicate") for at in repeated))


def _json_or_yaml(data: bytes) -> RequestBody:
    with contextlib.suppress(BadDocument):  # most clients send JSON, which is parsed faster
        return _lenient_json(data)
    return _yaml(data)


def _yaml(data: bytes) -> RequestBody:
    repeated: list[RepeatedKey] = []
    try:
        loaded = documents.load(data, repeated=repeated)
    except BadDocument as error:
        raise BadRequest(f"the body cannot be read: {error.detail}") from None
    if len(loaded) != 1:
        raise BadRequest(f"one document is needed, the body has {len(loaded)}")
    return RequestBody(loaded[0].value, tuple(map(_yaml_duplicate, repeated)))


def _yaml_duplicate(repeated: RepeatedKey) -> Violation:
    """In the words of Kubernetes, which knows lines of YAML and no paths."""
    return Violation("", f'line {repeated.line}: key "{repeated.key}" already set in map', "duplicate")


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
            delete_options = (await read_beside(_yaml, data, YAML_BYTES_ON_LOOP)).value
        else:
            delete_options = await read_beside(documents.load_json, data, JSON_BYTES_ON_LOOP)
    except BadDocument as error:
        raise BadRequest(f"the delete options cannot be read: {error.detail}") from None
    if not isinstance(delete_options, dict):
        raise BadRequest("the delete options must be an object")
    return delete_options
