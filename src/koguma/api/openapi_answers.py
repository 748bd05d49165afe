"""The OpenAPI document of the paths that answer questions about a mesh: `_can`."""

from koguma.api import parameters
from koguma.api.openapi_parts import NAME_IN_PATH, answer, errors
from koguma.model.kind import Kind
from koguma.model.schema import Json


def paths(kind: Kind) -> dict[str, Json]:
    """What stands below an object of a kind and answers a question about it."""
    if "_can" not in parameters.answers(kind):
        return {}
    schema = {
        "type": "object",
        "required": ["verdict", "groups"],
        "properties": {
            "verdict": {"type": "string", "enum": ["yes", "partly", "no", "unknown"]},
            "groups": {"type": "array"},
        },
    }
    words = "Whether all such requests reach what is called, and who decides it."
    operation = {
        "operationId": "can",
        "tags": ["Inspect"],
        "responses": {"200": answer(words, schema), **errors(400, 401, 403, 404, 405, 503)},
    }
    return {f"/{kind.path}/{{name}}/_can": {"parameters": [NAME_IN_PATH], "get": operation}}
