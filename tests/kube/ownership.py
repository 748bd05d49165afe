"""A small kind for tests of ownership, and a document of it that several managers write."""

from collections.abc import Iterable, Mapping

import yaml

from koguma.kube import field_set, server_side_apply
from koguma.kube.field_set import FieldSet
from koguma.kube.merge_schema import MergeSchema, merge_schema_of
from koguma.kube.server_side_apply import FieldManager
from koguma.model.schema import Json

VERSION = "kuma.io/v1alpha1"
OTHER_VERSION = "koguma.io/v1"
TEXT = {"type": "string"}
PORTS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["port", "protocol"],
    "items": {"$ref": "#/components/schemas/Port"},
}
DEFINITIONS = {
    "#/components/schemas/Port": {
        "type": "object",
        "properties": {
            "port": {"type": "integer"},
            "protocol": {"type": "string", "default": "tcp"},
            "name": TEXT,
            "deep": {"type": "object", "properties": {"note": TEXT}},
        },
    }
}
SCHEMA = {
    "type": "object",
    "properties": {
        "metadata": {"$ref": "#/nowhere"},  # never asked: metadata has a shape of its own
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "color": {"anyOf": [TEXT, {"type": "null"}]},
                "limits": {"type": "object", "properties": {"low": {"type": "integer"}, "high": {}}},
                "selector": {"type": "object", "x-kubernetes-map-type": "atomic"},
                "tags": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
                "steps": {"type": "array", "items": TEXT},
                "ports": PORTS,
                "extra": {"type": "object", "additionalProperties": {"type": "object"}},
                "free": {"x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    },
}
SCHEMA: MergeSchema = merge_schema_of(SCHEMA, DEFINITIONS.__getitem__)


def config(spec: Json | str = None, metadata: Json = None, **rest: Json) -> Json:
    """A document as somebody writes it; `spec` may be YAML."""
    sent = yaml.safe_load(spec) if isinstance(spec, str) else spec
    collected = {
        "apiVersion": VERSION,
        "kind": "Thing",
        "metadata": {"name": "x", **(metadata or {})},
        **rest,
    }
    return collected if sent is None else {**collected, "spec": sent}


def stored(spec: Json | str = None, metadata: Json = None, **rest: Json) -> Json:
    """A document as the server has it, which nobody tracks."""
    kept = {"uid": "u-1", "resourceVersion": "7", "generation": 2, "creationTimestamp": at(0)}
    return config(spec, {**kept, **(metadata or {})}, kri="kri_thing___x_", **rest)


def at(minute: int) -> str:
    """A moment."""
    return f"2026-01-01T00:{minute:02}:00Z"


class Thing:
    """One document, and the writes to it, a minute apart."""

    def __init__(self, document: Json | None = None) -> None:
        self.document = document
        self.minute = 0

    def writer(self, manager: str, version: str = VERSION, subresource: str = "") -> FieldManager:
        self.minute += 1
        return FieldManager(manager, version, at(self.minute), subresource)

    def apply(
        self, manager: str, sent: Json | str = None, *, force: bool = False, version: str = VERSION
    ) -> "Thing":
        """An apply of a whole document, or of a spec."""
        whole = sent if isinstance(sent, dict) and "kind" in sent else config(sent)
        writer = self.writer(manager, version)
        self.document = server_side_apply.applied(self.document, whole, writer, SCHEMA, force)
        return self

    def update(
        self, manager: str, sent: Json | str = None, *, version: str = VERSION, subresource: str = ""
    ) -> "Thing":
        """Another write, with the whole document or its spec."""
        whole = sent if isinstance(sent, dict) and "kind" in sent else config(sent)
        listed = server_side_apply.updated(
            self.document, whole, self.writer(manager, version, subresource), SCHEMA
        )
        metadata = {name: value for name, value in whole["metadata"].items() if name != "managedFields"}
        self.document = {**whole, "metadata": {**metadata, "managedFields": listed} if listed else metadata}
        return self

    @property
    def spec(self) -> Json:
        return self.document.get("spec")

    @property
    def entries(self) -> list[Json]:
        return self.document["metadata"].get("managedFields", [])

    @property
    def owners(self) -> dict[str, list[str]]:
        """Who owns which places, as people read them; `name/Apply` where both operations are there."""
        return {f"{each['manager']}/{each['operation']}": places(each["fieldsV1"]) for each in self.entries}


def places(sent: Json) -> list[str]:
    """The places of FieldsV1 for people, those with nothing below them only."""
    return [field_set.path_text(path) for path in field_set.from_fields_v1(sent).leaves.paths()]


def all_owned(listed: Iterable[Mapping[str, Json]]) -> FieldSet:
    """What is owned by anybody."""
    collected = field_set.EMPTY
    for each in listed:
        collected |= field_set.from_fields_v1(each["fieldsV1"])
    return collected
