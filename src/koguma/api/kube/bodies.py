"""Bodies: what a request of the Kubernetes form sends, whichever way it is encoded."""

from typing import Final

from koguma.api.call import JSON, Call
from koguma.kube import protobuf
from koguma.model import documents
from koguma.model.documents import BadDocument
from koguma.model.errors import BadRequest, UnsupportedMedia
from koguma.model.schema import Json

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
APPLY: Final = "application/apply-patch+yaml"
YAML: Final = "application/yaml"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
BYTES_MAX: Final = 3 * 1024 * 1024


async def document(call: Call) -> Json:
    """The one value in the body: JSON unless the content type says otherwise."""
    media = call.media_type
    data = await call.body(BYTES_MAX)
    if media == PROTOBUF:
        return protobuf.decode(data)
    if media in (YAML, APPLY):
        return _one(data)
    if media in (JSON, "") or media.endswith("+json"):
        try:
            return documents.load_json(data)
        except BadDocument as error:
            raise BadRequest(f"the body cannot be read: {error.detail}") from None
    raise UnsupportedMedia(
        f"the body of the request was in an unknown format - accepted media types include: {JSON}, {YAML},"
        f" {PROTOBUF}"
    )


def _one(data: bytes) -> Json:
    try:
        found = documents.load(data)
    except BadDocument as error:
        raise BadRequest(f"the body cannot be read: {error.detail}") from None
    if len(found) != 1:
        raise BadRequest(f"one document is needed, the body has {len(found)}")
    return found[0].value


async def options(call: Call) -> Json:
    """The DeleteOptions of a request: its body where it has one."""
    if not call.request.body_exists:
        return {}
    data = await call.body(BYTES_MAX)
    if not data.strip():
        return {}
    if call.media_type == PROTOBUF:
        return protobuf.decode(data)
    try:
        found = documents.load_json(data)
    except BadDocument as error:
        raise BadRequest(f"the delete options cannot be read: {error.detail}") from None
    if not isinstance(found, dict):
        raise BadRequest("the delete options must be an object")
    return found
