"""Parts of the OpenAPI document that its modules share: parameters of paths, bodies and error responses."""

from typing import Final

from koguma.api.call import JSON
from koguma.model.schema import Json

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAME_IN_PATH: Final[Json] = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The core name.",
    "schema": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 253},
}
MESH_IN_PATH: Final[Json] = {
    "name": "mesh",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
}
_ERROR_WORDS: Final = {
    400: "What was sent is wrong; `invalid_parameters` says where.",
    401: "The token does not hold.",
    403: "No access rule allows it.",
    404: "It is not there.",
    405: "Not on this control plane, or not this method.",
    409: "Somebody wrote first, or the name is taken.",
    410: "The revision is older than the history that is kept.",
    412: "If-Match or If-None-Match does not hold.",
    413: "The body is too large.",
    415: "The content type is not read here.",
    501: "The proxy's agent cannot do that.",
    502: "The proxy gave no usable answer.",
    503: "The store, or the proxy that was asked for, does not answer; try again.",
}


def content(schema: Json, media: str = JSON) -> Json:
    """A body of one media type."""
    return {media: {"schema": schema}}


def answer(words: str, schema: Json) -> Json:
    """A response with a JSON body."""
    return {"description": words, "content": content(schema)}


def errors(*codes: int) -> dict[str, Json]:
    """The error responses of these statuses."""
    error = {"$ref": "#/components/schemas/Error"}
    return {str(code): answer(_ERROR_WORDS[code], error) for code in codes}
