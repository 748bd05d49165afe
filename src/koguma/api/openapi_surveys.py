"""The OpenAPI document of the paths for which many Envoys are asked: `_top` and `_endpoints`."""

from koguma.api import parameters
from koguma.api.openapi_parts import MESH_IN_PATH, NAME_IN_PATH, answer, errors
from koguma.model.kind import Kind
from koguma.model.schema import Json


def paths(kind: Kind) -> dict[str, Json]:
    """What stands below an object of a kind for which many Envoys are asked."""
    described: dict[str, Json] = {}
    if "_top" in parameters.surveys(kind):
        words = "Requests, errors and latencies of its services or proxies."
        described[f"/{kind.path}/{{name}}/_top"] = _survey("top", "items", words, [NAME_IN_PATH])
    if "_endpoints" in parameters.surveys(kind):
        words = "Who serves it, whether they do, and by whose word."
        base = f"/meshes/{{mesh}}/{kind.path}/{{name}}"
        described[f"{base}/_endpoints"] = _survey(
            f"endpoints{kind.name}", "endpoints", words, [MESH_IN_PATH, NAME_IN_PATH]
        )
    return described


def _survey(operation: str, listed: str, words: str, in_path: list[Json]) -> Json:
    schema = {"type": "object", "required": [listed], "properties": {listed: {"type": "array"}}}
    return {
        "parameters": in_path,
        "get": {
            "operationId": operation,
            "tags": ["Inspect"],
            "responses": {"200": answer(words, schema), **errors(400, 401, 403, 404, 503)},
        },
    }
