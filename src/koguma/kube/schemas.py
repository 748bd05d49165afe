"""Schemas: what the objects of every endpoint look like, for clients that explain, check and merge them.

They are made from the kinds' own types, so that what is described is what is checked. A definition's name is
its group backwards, the version and the kind; the types inside a kind carry the kind's name in front.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.kube import meta_schemas, namespaced_names, schema_converter
from koguma.kube.meta_schemas import REF
from koguma.kube.registry import KubeEndpoint
from koguma.kube.schema_converter import FieldPaths, SchemaConverter
from koguma.model.kind import Kind
from koguma.model.schema import Json, json_schemas

_INNER: Final = "#/{name}"
_EXTENSION: Final = "x-kubernetes-group-version-kind"
_KRI: Final = {
    "type": "string",
    "readOnly": True,
    "description": "The resource identifier. Set by the server.",
}
_MESH: Final = meta_schemas.text(
    "Older place of the label kuma.io/mesh: the mesh that the object belongs to."
)
_WORDS: Final = {"spec": "What is asked for.", "status": "What the control plane found. Set by the server."}
_OPEN: Final = {"type": "object", meta_schemas.ANYTHING: True}

VersionAndKind = tuple[str, str]  # an `apiVersion` and a `kind`


class ObjectParts(msgspec.Struct, frozen=True):
    """The parts of an endpoint's objects beside `apiVersion`, `kind` and `metadata`."""

    doc: str
    spec: type[msgspec.Struct]
    status: type[msgspec.Struct] | None = None
    at_root: bool = False  # the fields of `spec` stand beside metadata
    mesh: bool = False
    kri: bool = False


class Schemas:
    """The schemas of some endpoints, made once, beside those that are `known` already.

    `without` names fields of the storage version that an endpoint does not have; `parts` gives
    the parts of endpoints that differ from the stored kind, and of requests that are answered and not stored.
    """

    def __init__(
        self,
        endpoints: Iterable[KubeEndpoint],
        without: Mapping[VersionAndKind, frozenset[str]] | None = None,
        parts: Mapping[VersionAndKind, ObjectParts] | None = None,
        known: "Schemas | None" = None,
    ) -> None:
        definitions: dict[str, Json] = dict(known.definitions if known else meta_schemas.DEFINITIONS)
        for endpoint in endpoints:
            version_and_kind = (endpoint.api_version, endpoint.kind_name)
            removed = schema_converter.removed_fields((without or {}).get(version_and_kind, ()))
            own_parts = object_parts_of(endpoint.set.kind) if endpoint.set.kind else None
            definitions |= _definitions(endpoint, (parts or {}).get(version_and_kind, own_parts), removed)
        self.definitions: Mapping[str, Json] = {name: definitions[name] for name in sorted(definitions)}

    def of(self, endpoint: KubeEndpoint) -> Json:
        """The schema of an endpoint's objects."""
        return self.definitions[name_of(endpoint)]

    def resolve(self, ref: str) -> Json:
        """What a `$ref` stands for."""
        return self.definitions[ref.removeprefix(REF)]

    def reachable(self, *names: str) -> Mapping[str, Json]:
        """Those definitions and all that they refer to, by name."""
        reached: set[str] = set()
        names_left = set(names)
        while names_left:
            reached |= names_left
            names_left = {to for name in names_left for to in references(self.definitions[name])} - reached
        return {name: self.definitions[name] for name in sorted(reached)}


def references(schema: Json) -> Iterator[str]:
    """The names of the definitions to which a schema refers."""
    if isinstance(schema, list):
        for each in schema:
            yield from references(each)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(REF)
            else:
                yield from references(value)


def definition_name(group: str, version: str, kind: str) -> str:
    """`io.kuma.v1alpha1.MeshTimeout`, or as Kubernetes calls its own: `io.k8s.api.rbac.v1.Role`."""
    if "." in group and not group.endswith(".k8s.io"):
        return f"{'.'.join(reversed(group.split('.')))}.{version}.{kind}"
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}.{kind}"


def name_of(endpoint: KubeEndpoint) -> str:
    """The name of the definition of an endpoint's objects."""
    return definition_name(endpoint.group, endpoint.version, endpoint.kind_name)


def list_name_of(endpoint: KubeEndpoint) -> str:
    """The name of the definition of an endpoint's lists."""
    return f"{name_of(endpoint)}List"


def object_parts_of(kind: Kind) -> ObjectParts:
    """The parts of a kind's objects."""
    ours = not namespaced_names.is_native(kind)
    return ObjectParts(
        doc=kind.doc,
        spec=kind.spec,
        status=kind.status,
        at_root=kind.at_root,
        mesh=ours and kind.is_mesh_scoped,
        kri=ours and bool(kind.short),
    )


def _definitions(
    endpoint: KubeEndpoint, object_parts: ObjectParts | None, without: FieldPaths
) -> dict[str, Json]:
    name = name_of(endpoint)
    if endpoint.custom is not None:
        described = dict(endpoint.custom.published_schema)
        described["properties"] = {**(described.get("properties") or {}), **_common()}
        described["description"] = described.get("description") or f"A {endpoint.kind_name}."
        described[_EXTENSION] = [group_version_kind(endpoint)]
        return {name: described, list_name_of(endpoint): _list(endpoint)}
    if object_parts is None:  # a request without a type of its own
        open_parts = {part: {**_OPEN, "description": words} for part, words in _WORDS.items()}
        return {name: _object(endpoint, "", {}, _common() | open_parts)}
    types = {"spec": object_parts.spec, **({"status": object_parts.status} if object_parts.status else {})}
    refs, components = json_schemas(types, _INNER)
    converter = SchemaConverter(name, components)
    body, fields = _body(object_parts, refs, converter, without)
    if "status" in refs:
        status = refs["status"] | {"description": _WORDS["status"]}
        fields["status"] = converter.schema(status, schema_converter.below(without, "status"))
    schema = _object(endpoint, object_parts.doc, body, _common() | fields)
    lists = {list_name_of(endpoint): _list(endpoint)} if "list" in endpoint.verbs else {}
    return {name: schema, **converter.definitions, **lists}


def _body(
    object_parts: ObjectParts, refs: Json, converter: SchemaConverter, without: FieldPaths
) -> tuple[Json, dict[str, Json]]:
    """What users write, as keywords of the object's schema and as its properties."""
    if object_parts.at_root:
        body = converter.component(refs["spec"]["$ref"].rpartition("/")[2], without)
        return body, body.pop("properties", {})
    fields = {**({"mesh": _MESH} if object_parts.mesh else {}), **({"kri": _KRI} if object_parts.kri else {})}
    described = refs["spec"] | {"description": _WORDS["spec"]}
    fields["spec"] = converter.schema(described, schema_converter.below(without, "spec"))
    spec = converter.definitions[fields["spec"]["$ref"].removeprefix(REF)]
    body = {"required": ["spec"]} if spec.get("required") else {}
    return body, {name: field for name, field in fields.items() if (name,) not in without}


def _common() -> dict[str, Json]:
    return {
        "apiVersion": meta_schemas.API_VERSION,
        "kind": meta_schemas.KIND,
        "metadata": meta_schemas.ref(
            meta_schemas.OBJECT_META, "Its name, its labels, and what the server keeps."
        ),
    }


def _object(endpoint: KubeEndpoint, doc: str, body: Json, properties: Json) -> Json:
    return {
        **body,
        "type": "object",
        "description": _prose(doc) or f"A {endpoint.kind_name}.",
        "properties": properties,
        _EXTENSION: [group_version_kind(endpoint)],
    }


def group_version_kind(endpoint: KubeEndpoint, *, of_list: bool = False) -> Json:
    """How clients find a schema, or an operation, by what an object says of itself."""
    kind = endpoint.list_kind if of_list else endpoint.kind_name
    return {"group": endpoint.group, "version": endpoint.version, "kind": kind}


def _list(endpoint: KubeEndpoint) -> Json:
    items = {"type": "array", "items": meta_schemas.ref(name_of(endpoint)), "description": "The objects."}
    return {
        "type": "object",
        "description": f"A list of {endpoint.plural}.",
        "properties": {
            "apiVersion": meta_schemas.API_VERSION,
            "items": items,
            "kind": meta_schemas.KIND,
            "metadata": meta_schemas.ref(
                meta_schemas.LIST_META, "The version of the list, and its next page."
            ),
        },
        "required": ["items"],
        _EXTENSION: [group_version_kind(endpoint, of_list=True)],
    }


def _prose(doc: str) -> str:
    """The words of a page up to its example, one line for each paragraph."""
    words = doc.partition("```")[0].strip()
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", words))
