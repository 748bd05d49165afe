"""OpenAPI of the Kubernetes form: version 3 for one group and version at a time, version 2 for all at once.

Both are written from the same operations and definitions. They differ in where a body and its media types
are written, in how a reference with a description is written, and in `nullable`, which version 2 lacks.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from koguma import __version__
from koguma.kube import operations
from koguma.kube.meta_schemas import REF, STATUS
from koguma.kube.openapi_v2_protobuf import encoded as v2_protobuf
from koguma.kube.operations import Body, Operation, Parameter, Path
from koguma.kube.registry import Registry
from koguma.kube.schemas import Schemas
from koguma.model.schema import Json

__all__ = ["digest", "v2_document", "v2_protobuf", "v3_document", "v3_index", "v3_roots", "v3_url"]

_INFO: Final = {"title": "Koguma", "version": __version__}
_V3_ONLY: Final = ("nullable", "allOf", "anyOf", "oneOf", "not", "example", "externalDocs")
_REF_V2: Final = "#/definitions/"
_WORDS: Final = {"200": "OK", "201": "Created", "401": "Unauthorized"}


def v3_roots(registry: Registry) -> dict[str, tuple[str, str]]:
    """The groups and versions that have a document, by where their paths begin."""
    return {
        operations.root(group, version): (group, version)
        for group, versions in registry.groups().items()
        for version in versions
    }


def digest(document: bytes) -> str:
    """The hash of a document as it is served; clients keep a copy for as long as the index names it."""
    return hashlib.sha256(document).hexdigest().upper()


def v3_index(digests: Mapping[str, str]) -> Json:
    """Where the documents are: digests by the roots of `v3_roots`."""
    return {"paths": {root: {"serverRelativeURL": v3_url(root, digests[root])} for root in sorted(digests)}}


def v3_url(root: str, digest: str) -> str:
    """Where a document with this digest is; it never changes there."""
    return f"/openapi/v3/{root}?hash={digest}"


def v3_document(registry: Registry, schemas: Schemas, group: str, version: str) -> Json:
    """The description of one group and version, with the definitions that it needs and no others."""
    paths = tuple(operations.paths(registry.at(group, version)))
    definitions = schemas.reachable(*_definition_names(paths))
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": {path.path: _v3_path(path) for path in paths},
        "components": {
            "schemas": {name: _v3_schema(schema) for name, schema in definitions.items()},
            "securitySchemes": {"BearerToken": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"BearerToken": []}],
    }


def v2_document(registry: Registry, schemas: Schemas) -> Json:
    """The description of everything."""
    paths = tuple(operations.paths(registry))
    definitions = schemas.reachable(*_definition_names(paths))
    return {
        "swagger": "2.0",
        "info": _INFO,
        "paths": {path.path: _v2_path(path) for path in paths},
        "definitions": {name: _v2_schema(schema) for name, schema in definitions.items()},
    }


def _definition_names(paths: Iterable[Path]) -> set[str]:
    definitions = {STATUS}
    for path in paths:
        for operation in path.operations:
            definitions |= {name for _, name in operation.answers}
            if operation.body is not None:
                definitions.add(operation.body.definition)
    return definitions


def _v3_path(path: Path) -> Json:
    path_item: dict[str, Json] = {entry.method: _v3_operation(entry) for entry in path.operations}
    if path.parameters:
        path_item["parameters"] = [_v3_parameter(entry) for entry in path.parameters]
    return path_item


def _v3_operation(operation: Operation) -> Json:
    described = _operation(operation)
    described["parameters"] = [_v3_parameter(parameter) for parameter in operation.query]
    if operation.body is not None:
        described["requestBody"] = _v3_body(operation.body)
    described["responses"] = {
        code: {"description": _WORDS[code], "content": _v3_content(name, operation.produces)}
        for code, name in operation.answers
    } | {"401": {"description": _WORDS["401"]}}
    return described


def _operation(operation: Operation) -> dict[str, Json]:
    return {
        "operationId": operation.id,
        "description": operation.words,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.group_version_kind,
    }


def _v3_parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": "path" if parameter.is_path else "query",
        "description": parameter.words,
        **({"required": True} if parameter.is_path else {}),
        "schema": {"type": parameter.type},
    }


def _v3_body(body: Body) -> Json:
    content = _v3_content(body.definition, body.media)
    return {"content": content, **({"required": True} if body.required else {})}


def _v3_content(definition: str, media: tuple[str, ...]) -> Json:
    return {media_type: {"schema": {"$ref": f"{REF}{definition}"}} for media_type in media}


def _v3_schema(schema: Json) -> Json:
    """A schema as version 3 writes it: beside a reference nothing counts, so it is wrapped."""
    if isinstance(schema, list):
        return [_v3_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _v3_schema(value) for key, value in schema.items()}
    if isinstance(converted.get("$ref"), str) and len(converted) > 1:
        return {"allOf": [{"$ref": converted.pop("$ref")}], **converted}
    return converted


def _v2_schema(schema: Json) -> Json:
    """A schema as version 2 writes it, which has neither null nor choices."""
    if isinstance(schema, list):
        return [_v2_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            converted[key] = {name: _v2_schema(field) for name, field in value.items()}
        elif key in ("default", "enum"):
            converted[key] = value
        elif key not in _V3_ONLY:
            converted[key] = _v2_schema(value)
    if isinstance(converted.get("$ref"), str):
        converted["$ref"] = f"{_REF_V2}{converted['$ref'].removeprefix(REF)}"
    return converted


def _v2_path(path: Path) -> Json:
    path_item: dict[str, Json] = {entry.method: _v2_operation(entry) for entry in path.operations}
    if path.parameters:
        path_item["parameters"] = [_v2_parameter(entry) for entry in path.parameters]
    return path_item


def _v2_operation(operation: Operation) -> Json:
    described = _operation(operation)
    described["produces"] = list(operation.produces)
    described["parameters"] = [_v2_parameter(parameter) for parameter in operation.query]
    if operation.body is not None:
        described["consumes"] = list(operation.body.media)
        described["parameters"].insert(0, _v2_body(operation.body))
    described["responses"] = {
        code: {"description": _WORDS[code], "schema": {"$ref": f"{_REF_V2}{name}"}}
        for code, name in operation.answers
    } | {"401": {"description": _WORDS["401"]}}
    return described


def _v2_parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": "path" if parameter.is_path else "query",
        "description": parameter.words,
        **({"required": True} if parameter.is_path else {}),
        "type": parameter.type,
    }


def _v2_body(body: Body) -> Json:
    return {
        "name": "body",
        "in": "body",
        **({"required": True} if body.required else {}),
        "schema": {"$ref": f"{_REF_V2}{body.definition}"},
    }
