"""The OpenAPI document of overviews: proxies and zones with their insights."""

from koguma.api import parameters
from koguma.api.openapi_parts import MESH_IN_PATH, NAME_IN_PATH, answer, errors
from koguma.model.kind import Kind
from koguma.model.schema import Json

_LIST: Json = {
    "type": "object",
    "required": ["total", "items", "next"],
    "properties": {
        "total": {"type": "integer"},
        "items": {"type": "array", "items": {"type": "object"}},
        "next": {"type": ["string", "null"]},
    },
}


def paths(kind: Kind) -> dict[str, Json]:
    """The paths of the overviews of a kind; none where it has none."""
    return {f"/{path}": _described(kind, path) for path in parameters.overview_paths(kind)}


def _described(kind: Kind, path: str) -> Json:
    """A path's operation; the list in one mesh, the list of all and the item have their own ids."""
    is_item, is_older = "{name}" in path, parameters.OVERVIEW not in path
    everywhere = kind.is_mesh_scoped and "{mesh}" not in path
    words = ("get" if is_item else "list", kind.name, "Overview" if is_item else "Overviews")
    operation = "".join((*words, "Everywhere" if everywhere else "", "Older" if is_older else ""))
    schema: Json = {"type": "object"} if is_item else _LIST
    shown = "with what is known of its connections"
    return {
        "parameters": [
            *((MESH_IN_PATH,) if "{mesh}" in path else ()),
            *((NAME_IN_PATH,) if is_item else ()),
        ],
        "get": {
            "operationId": operation,
            "tags": ["Inspect"],
            "responses": {
                "200": answer(f"{kind.display_names[0 if is_item else 1]}, {shown}.", schema),
                **errors(400, 401, 403, 404),
            },
        },
    }
