"""The OpenAPI document of the paths that are not about objects of a kind: tokens, health, apply, backup."""

from typing import Final

from koguma.api.call import JSON
from koguma.api.openapi_parts import answer, content, errors
from koguma.model.schema import Json


def _page(operation: str, words: str, *codes: int, media: str = JSON) -> Json:
    schema = {"type": "object"} if media == JSON else {"type": "string"}
    return {
        "get": {
            "operationId": operation,
            "tags": ["System"],
            "responses": {
                "200": {"description": words, "content": content(schema, media)},
                **errors(400, *codes),
            },
        }
    }


def _issued(operation: str, words: str, media: str = "text/plain") -> Json:
    body = {"required": True, "content": content({"type": "object"})}
    answered = {"type": "object" if media == JSON else "string"}
    return {
        "post": {
            "operationId": operation,
            "tags": ["Tokens"],
            "requestBody": body,
            "responses": {
                "200": {"description": words, "content": content(answered, media)},
                **errors(400, 401, 403, 404, 413, 415, 503),
            },
        }
    }


def _open(path: Json) -> Json:
    """A path that answers everybody."""
    path["get"]["security"] = [{}, {"bearer": []}]
    return path


def _proxy_paths() -> dict[str, Json]:
    arrival = "Whether a revision has reached every proxy that it touches."
    return {
        "/_proxies": _page("proxies", "The proxies connected here, and how far each is.", 401, 403, 404),
        "/_arrival": _page("arrival", arrival, 400, 401, 403, 404, 405, 503),
    }


def paths() -> dict[str, Json]:
    """The paths that are not about objects of a kind."""
    return {
        **(_token_paths() | _membership_paths()),
        "/": _open(_page("index", "Who answers here.")),
        "/config": _page("config", "The effective settings, secrets masked.", 401, 403),
        "/who-am-i": _open(_page("whoAmI", "The user that this request counts as.", 401)),
        "/policies": _page("policies", "All policy kinds.", 401, 403),
        "/_resources": _page("resources", "All kinds, with paths, short names and resourceID.", 401, 403),
        "/global-insight": _page(
            "globalInsight", "Proxies, services, objects and zones in numbers.", 401, 403
        ),
        "/global-insights": _page("globalInsights", "Objects outside of meshes in numbers.", 401, 403),
        "/healthy": _open(_page("healthy", "It lives.")),
        "/ready": _open(_page("ready", "It can do its work.", 503)),
        "/metrics": _page("metrics", "Numbers for Prometheus.", 401, 403, media="text/plain"),
        "/_check": _page("check", "What was looked at, and what to do where it is not fine.", 401, 403),
        **_proxy_paths(),
        "/openapi.json": _page("openapi", "This description.", 401, 403),
        "/_kri/{kri}": {
            "parameters": [{"name": "kri", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {
                "operationId": "getByKri",
                "tags": ["System"],
                "responses": {
                    "200": answer("The object of that KRI.", {"type": "object"}),
                    **errors(400, 401, 403, 404),
                },
            },
        },
        "/_export": _page(
            "export", "Every stored object, a line each.", 401, 403, media="application/x-ndjson"
        ),
        "/_import": {
            "post": {
                "operationId": "import",
                "tags": ["System"],
                "requestBody": {
                    "required": True,
                    "content": content({"type": "string"}, "application/x-ndjson"),
                },
                "responses": {
                    "200": answer("How many objects were created, configured, ...", {"type": "object"}),
                    **errors(400, 401, 403, 413, 415, 503),
                },
            }
        },
        "/_migrations/storage": {
            **_page("storageMigration", "What is outdated.", 401, 403),
            "post": {
                "operationId": "migrateStorage",
                "tags": ["System"],
                "responses": {
                    "200": answer("How far it came, and where to go on.", {"type": "object"}),
                    **errors(400, 401, 403, 409, 503),
                },
            },
        },
        "/_plan": _applied("plan", "What would change for which proxies.", _PLAN_BODY),
        "/_apply": _applied("apply", "What happened to each object.", _APPLY_BODY),
    }


def _applied(operation: str, says: str, body: Json) -> Json:
    return {
        "post": {
            "operationId": operation,
            "tags": ["System"],
            "requestBody": {"required": True, "content": content(body)},
            "responses": {
                "200": answer(says, {"type": "object"}),
                **errors(400, 401, 403, 404, 409, 413, 415, 503),
            },
        }
    }


def _membership_paths() -> dict[str, Json]:
    return {
        path: {
            "post": {
                "operationId": operation,
                "tags": ["System"],
                "requestBody": {"required": True, "content": content({"type": "object"})},
                "responses": {"200": answer(text, {"type": "object"}), **errors(*codes)},
            }
        }
        for path, operation, text, codes in (
            ("/_zone/join", "joinGlobal", "What travels each way.", (400, 401, 403, 405, 409, 502, 503)),
            ("/_zone/leave", "leaveGlobal", "What is kept and removed.", (400, 401, 403, 405, 409, 503)),
        )
    }


def _token_paths() -> dict[str, Json]:
    return {
        "/tokens/user": _issued("issueUserToken", "A token for a user."),
        "/tokens/dataplane": _issued("issueDataplaneToken", "A token for a proxy."),
        "/tokens/zone": _issued("issueZoneToken", "A token for the proxies of a zone."),
        "/tokens/_review": _issued("reviewToken", "Whether a token holds, and what it is for.", JSON),
    }


_APPLY_BODY: Final[Json] = {
    "type": "object",
    "required": ["objects"],
    "properties": {
        "objects": {"type": "array", "items": {"type": "object"}, "maxItems": 10_000},
        "set": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        "prune": {"type": "boolean"},
    },
    "additionalProperties": False,
}


_DELETED: Final[Json] = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {name: {"type": "string"} for name in ("type", "name", "mesh")},
}
_PLAN_BODY: Final[Json] = {
    **_APPLY_BODY,
    "required": [],
    "properties": {
        **_APPLY_BODY["properties"],
        "delete": {"type": "array", "items": _DELETED, "maxItems": 10_000},
    },
}


_ENVOY_PAGES: Final = {
    "xds": "The configuration that the Envoy of the proxy has, as its config dump; secrets are masked.",
    "stats": "The figures of the Envoy of the proxy.",
    "clusters": "The clusters of the Envoy of the proxy, with the state of each endpoint.",
}


def envoy_page(kind: str, page: str) -> Json:
    """A page of the admin interface of a proxy's Envoy."""
    bodies = content({"type": "object"})
    if page != "xds":
        bodies |= content({"type": "string"}, "text/plain")
    return {
        "operationId": f"envoy{page.capitalize()}{kind}",
        "tags": ["Inspect"],
        "responses": {
            "200": {"description": _ENVOY_PAGES[page], "content": bodies},
            **errors(400, 401, 403, 404, 501, 502, 503),
        },
    }
