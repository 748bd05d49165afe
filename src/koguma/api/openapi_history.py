"""The OpenAPI document of the history: changes of all objects and of one, differences, and undo."""

from koguma.api import parameters
from koguma.api.openapi_parts import MESH_IN_PATH, NAME_IN_PATH, answer, errors
from koguma.model.kind import Kind
from koguma.model.schema import Json


def system_paths() -> dict[str, Json]:
    """The paths that are not below an object."""
    return {
        "/_history": {"get": _operation("history", "items", "Who changed what, newest first.")},
        "/_differences": {
            "get": _operation("differences", "items", "The objects that differ between two revisions.", 410)
        },
        "/_undo": {
            "post": _operation("undo", "changes", "What was taken back, object by object.", 404, 409, 410)
        },
    }


def paths(kind: Kind) -> dict[str, Json]:
    """The changes of one object."""
    in_mesh = [MESH_IN_PATH] if kind.is_mesh_scoped else []
    base = f"/meshes/{{mesh}}/{kind.path}" if in_mesh else f"/{kind.path}"
    return {
        f"{base}/{{name}}/{path}": {
            "parameters": [*in_mesh, NAME_IN_PATH],
            "get": _operation(f"history{kind.name}", "items", "Who changed it, newest first."),
        }
        for path in parameters.histories(kind)
    }


def _operation(name: str, listed: str, words: str, *codes: int) -> Json:
    schema = {"type": "object", "required": [listed], "properties": {listed: {"type": "array"}}}
    return {
        "operationId": name,
        "tags": ["History"],
        "responses": {"200": answer(words, schema), **errors(400, 401, 403, *codes, 503)},
    }
