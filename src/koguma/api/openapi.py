"""OpenAPI 3.1 of the plain form, generated from the kinds: what is served is what is described."""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma import __version__
from koguma.api import (
    openapi_answers,
    openapi_history,
    openapi_overviews,
    openapi_surveys,
    openapi_system,
    parameters,
    watch,
)
from koguma.api.openapi_parts import (
    MESH_IN_PATH,
    NAME_IN_PATH,
    NAME_PATTERN,
    answer,
    content,
    errors,
)
from koguma.identity.proxy_types import EGRESS, INGRESS
from koguma.model import forms, json_patch
from koguma.model.kind import Kind, Kinds
from koguma.model.schema import Json, json_schemas

_REF: Final = "#/components/schemas/{name}"

_ERROR: Final[Json] = {
    "type": "object",
    "required": ["type", "status", "title", "detail"],
    "properties": {
        "type": {"type": "string"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "details": {"type": "string", "deprecated": True},
        "instance": {"type": "string", "description": "The request's id, as in the log."},
        "invalid_parameters": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "reason"],
                "properties": {
                    "field": {"type": "string"},
                    "reason": {"type": "string"},
                    "rule": {"type": "string"},
                },
            },
        },
        "causes": {"type": "array", "deprecated": True, "items": {"type": "object"}},
    },
}
_KUBERNETES: Final[Json] = {
    "type": "object",
    "description": "Any object in the Kubernetes form; a secret is Kubernetes' own kind, with `data`.",
    "required": ["apiVersion", "kind", "metadata"],
    "properties": {
        "apiVersion": {"enum": [forms.API_VERSION, "v1"]},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {"type": "object"},
        "data": {"type": "object"},
    },
}
_WRITTEN: Final[Json] = {
    "type": "object",
    "properties": {"warnings": {"type": "array", "items": {"type": "string"}}},
}
_META: Final[Mapping[str, Json]] = {
    "labels": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    "creationTime": {"type": "string", "readOnly": True},
    "modificationTime": {"type": "string", "readOnly": True},
    "kri": {"type": "string", "readOnly": True, "description": "The resource identifier."},
}


def encoded(kinds: Kinds) -> bytes:
    """The description as it is served."""
    return msgspec.json.encode(document(kinds))


def document(kinds: Kinds) -> Json:
    """The whole description."""
    schemas, components = _schemas(kinds)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Koguma",
            "version": __version__,
            "description": "The plain REST form of the control plane's API, as Kuma users know it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(kinds),
        "components": {
            "schemas": {
                **components,
                **schemas,
                "Error": _ERROR,
                "Written": _WRITTEN,
                "KubernetesObject": _KUBERNETES,
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"bearer": []}],
    }


def _paths(kinds: Kinds) -> dict[str, Json]:
    """The operations of each path, with the query parameters of `parameters.table`."""
    descriptions = {**openapi_system.paths(), **openapi_history.system_paths()}
    for kind in kinds:
        of_kind = _kind_paths(kind), _inspect_paths(kind), _envoy_paths(kind)
        beside = openapi_overviews, openapi_surveys, openapi_history, openapi_answers
        for paths in (*of_kind, *(module.paths(kind) for module in beside)):
            descriptions |= paths
    described: dict[str, Json] = {}
    for path, declared in parameters.table(kinds).items():
        described[path] = descriptions[path]
        for method, query_parameters in declared.queries.items():
            described[path][method.lower()]["parameters"] = [
                parameter.described for parameter in query_parameters
            ]
    return described


def _schemas(kinds: Kinds) -> tuple[dict[str, Json], dict[str, Json]]:
    types = {kind.name: kind.spec for kind in kinds}
    statuses = {f"{kind.name}-status": kind.status for kind in kinds if kind.status is not None}
    refs, components = json_schemas({**types, **statuses}, _REF)
    components = {name: _portable(schema) for name, schema in components.items()}
    return {kind.name: _object(kind, refs, components) for kind in kinds}, components


def _portable(schema: Json) -> Json:
    r"""A schema that other languages can read: Python's \Z is $ in their regular expressions."""
    if isinstance(schema, list):
        return [_portable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {name: _portable(value) for name, value in schema.items()}
    if isinstance(portable.get("pattern"), str):
        portable["pattern"] = portable["pattern"].replace(r"\Z", "$")
    return portable


def _object(kind: Kind, refs: Mapping[str, Json], components: Mapping[str, Json]) -> Json:
    properties: dict[str, Json] = {
        "type": {"type": "string", "const": kind.name},
        "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 253},
        **({"mesh": {"type": "string"}} if kind.is_mesh_scoped else {}),
        **_META,
    }
    required = ["type", "name"]  # the mesh is the path's where a body has none
    if kind.inline:
        spec = components[refs[kind.name]["$ref"].rpartition("/")[2]]
        properties |= {
            name: field for name, field in spec.get("properties", {}).items() if name not in properties
        }
        required += [name for name in spec.get("required", []) if name not in required]
    else:
        properties["spec"] = refs[kind.name]
        if kind.status is not None:
            properties["status"] = {**refs[f"{kind.name}-status"], "readOnly": True}
    return {
        "title": kind.name,
        "description": kind.doc.strip().partition("\n")[0],
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _kind_paths(kind: Kind) -> dict[str, Json]:
    if not kind.is_mesh_scoped:
        return {
            f"/{kind.path}": {"get": _list(kind)},
            f"/{kind.path}/{{name}}": _item(kind, [NAME_IN_PATH]),
        }
    base = f"/meshes/{{mesh}}/{kind.path}"
    return {
        f"/{kind.path}": {"get": _list(kind, everywhere=True)},
        base: {"parameters": [MESH_IN_PATH], "get": _list(kind)},
        f"{base}/{{name}}": _item(kind, [MESH_IN_PATH, NAME_IN_PATH]),
    }


def _list(kind: Kind, *, everywhere: bool = False) -> Json:
    items = {"type": "array", "items": _shown(kind)}
    schema = {
        "type": "object",
        "required": ["total", "items", "next"],
        "properties": {
            "total": {"type": "integer"},
            "items": items,
            "next": {"type": ["string", "null"]},
        },
    }
    shown = answer(f"{kind.display_names[1]}.", schema)
    if kind.computed is None:
        shown["content"] |= content({"type": "string"}, watch.CONTENT_TYPE)
    unwatchable = (405,) if kind.computed is not None else ()
    return {
        "operationId": f"list{kind.name}{'Everywhere' if everywhere else ''}",
        "tags": [kind.name],
        "responses": {"200": shown, **errors(400, 401, 403, 404, *unwatchable, 410)},
    }


def _shown(kind: Kind) -> Json:
    """An object in either form."""
    in_kubernetes_form = {"$ref": "#/components/schemas/KubernetesObject"}
    return {"anyOf": [{"$ref": _REF.format(name=kind.name)}, in_kubernetes_form]}


def _item(kind: Kind, parameters: list[Json]) -> Json:
    reference = {"$ref": _REF.format(name=kind.name)}
    operations: dict[str, Json] = {
        "parameters": parameters,
        "get": {
            "operationId": f"get{kind.name}",
            "tags": [kind.name],
            "responses": {
                "200": answer(f"The {kind.display_names[0]}.", _shown(kind)),
                **errors(400, 401, 403, 404),
            },
        },
    }
    if kind.read_only:
        return operations
    written = {"$ref": "#/components/schemas/Written"}
    changed = {"200": answer("It is stored.", written)}
    refused = errors(400, 401, 403, 404, 405, 409, 412, 413, 415, 503)
    operations["put"] = {
        "operationId": f"put{kind.name}",
        "tags": [kind.name],
        "requestBody": {"required": True, "content": content(reference)},
        "responses": {**changed, "201": answer("It is created.", written), **refused},
    }
    operations["patch"] = {
        "operationId": f"patch{kind.name}",
        "tags": [kind.name],
        "requestBody": {
            "required": True,
            "content": {
                **content({"type": "object"}, json_patch.MERGE_PATCH_TYPE),
                **content({"type": "array", "items": {"type": "object"}}, json_patch.JSON_PATCH_TYPE),
            },
        },
        "responses": {**changed, **refused},
    }
    operations["delete"] = {
        "operationId": f"delete{kind.name}",
        "tags": [kind.name],
        "responses": {"200": answer("It is gone.", written), **refused},
    }
    return operations


# What stands below a Dataplane: operation, the list in the answer, and words.
_OF_PROXY: Final = {
    "_rules": ("inspectRules", "rules", "All rules of the proxy, kind by kind."),
    "_policies": ("inspectPolicies", "policies", "What holds for the proxy as a whole."),
    "_layout": ("inspectLayout", "outbounds", "The ports that the proxy serves and calls."),
    "_config": ("inspectConfig", "xds", "What the proxy's Envoy is to have, by type and name."),
    "_explain": ("explainConfig", "path", "Who set the fields of the proxy's Envoy at a path."),
    "_inbounds/{kri}/_policies": ("inspectInbound", "policies", "What holds for calls to one inbound."),
    "_outbounds/{kri}/_policies": ("inspectOutbound", "policies", "What holds for calls of one port."),
    "_outbounds/{kri}/_routes": ("inspectRoutes", "routes", "The routes of calls to one port."),
    "_outbounds/{kri}/_routes/{route}/_policies": (
        "inspectRoute",
        "policies",
        "What holds for calls to one port through one route.",
    ),
}


# The same below zone proxies.
_OF_EGRESS: Final = {
    "_config": ("inspectEgressConfig", "xds", "What the egress's Envoy is to have, by type and name."),
    "_explain": ("explainEgressConfig", "path", "Who set the fields of the egress's Envoy at a path."),
    "_policies": ("inspectEgressPolicies", "services", "What acts on the egress, by external service."),
}
_OF_INGRESS: Final = {
    "_config": ("inspectIngressConfig", "xds", "What the ingress's Envoy is to have, by type and name."),
    "_explain": ("explainIngressConfig", "path", "Who set the fields of the ingress's Envoy at a path."),
}
_OF_ZONE_PROXY: Final = {EGRESS.kind: _OF_EGRESS, INGRESS.kind: _OF_INGRESS}


def _envoy_paths(kind: Kind) -> dict[str, Json]:
    """What the Envoy of a proxy shows."""
    in_mesh = [MESH_IN_PATH] if kind.is_mesh_scoped else []
    base = f"/meshes/{{mesh}}/{kind.path}" if in_mesh else f"/{kind.path}"
    return {
        f"{base}/{{name}}/{path}": {
            "parameters": [*in_mesh, NAME_IN_PATH],
            "get": openapi_system.envoy_page(kind.name, path),
        }
        for path in parameters.OF_ENVOY
        if path in parameters.below(kind)
    }


def _inspect_paths(kind: Kind) -> dict[str, Json]:
    base = f"/meshes/{{mesh}}/{kind.path}/{{name}}"
    if kind.name in _OF_ZONE_PROXY:
        return {
            f"/{kind.path}/{{name}}/{path}": _inspected(path, *operation, is_in_mesh=False)
            for path, operation in _OF_ZONE_PROXY[kind.name].items()
        }
    if kind.name == "Dataplane":
        return {f"{base}/{path}": _inspected(path, *operation) for path, operation in _OF_PROXY.items()}
    below = parameters.below(kind)
    listed = {path: operation for path, operation in _SELECTING.items() if path in below}
    paths = {f"{base}/{path}": _selected(kind, operation) for path, operation in listed.items()}
    if "_hostnames" in below:
        paths[f"{base}/_hostnames"] = _selected(kind, "hostnames", "The names by which it is called.")
    if "_rules" in below:
        words = "All rules of a proxy that serves it, kind by kind."
        paths[f"{base}/_rules"] = _inspected("_rules", f"inspect{kind.name}Rules", "rules", words)
    if "_layout" in below:
        words = "What it serves: proxies, listeners, hosts and routes, and what is refused."
        paths[f"{base}/_layout"] = _inspected("_layout", f"inspect{kind.name}Layout", "listeners", words)
    return paths


# Paths that list the proxies of a policy or a service, and the operation of each.
_SELECTING: Final = {
    "_resources/dataplanes": "inspect",
    "-resources/dataplanes": "inspectAlias",
    "_dataplanes": "inspectDataplanes",
    "dataplanes": "inspectAttached",
}


def _inspected(path: str, operation: str, listed: str, words: str, *, is_in_mesh: bool = True) -> Json:
    parts = [name for name in ("kri", "route") if f"{{{name}}}" in path]
    text = {"type": "string", "description": "A KRI, with the port as its section."}
    type_ = {"xds": "object", "path": "string"}.get(listed, "array")
    schema = {"type": "object", "required": [listed], "properties": {listed: {"type": type_}}}
    return {
        "parameters": [
            *((MESH_IN_PATH,) if is_in_mesh else ()),
            NAME_IN_PATH,
            *({"name": name, "in": "path", "required": True, "schema": text} for name in parts),
        ],
        "get": {
            "operationId": operation,
            "tags": ["Inspect"],
            "responses": {
                "200": answer(words, schema),
                **errors(400, 401, 403, 404, *((405, 503) if listed in ("xds", "path") else ())),
            },
        },
    }


def _selected(kind: Kind, operation: str, words: str = "") -> Json:
    schema = {
        "type": "object",
        "required": ["total", "items"],
        "properties": {
            "total": {"type": "integer"},
            "items": {"type": "array", "items": {"type": "object"}},
            "next": {"type": "string"},
        },
    }
    shown = answer(words or f"The proxies that the {kind.display_names[0]} selects.", schema)
    return {
        "parameters": [MESH_IN_PATH, NAME_IN_PATH],
        "get": {
            "operationId": f"{operation}{kind.name}",
            "tags": ["Inspect"],
            "responses": {"200": shown, **errors(400, 401, 403, 404)},
        },
    }
