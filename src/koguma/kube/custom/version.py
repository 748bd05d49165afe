"""Custom version: one version of a custom resource, as its definition describes it."""

from functools import cached_property

import msgspec

from koguma.kube.custom import schemas
from koguma.kube.structural import cel_rules
from koguma.model.resource import Key
from koguma.model.schema import Json


class ScalePaths(msgspec.Struct, frozen=True):
    """Simple JSON paths to the replicas of an object; `selector` may be empty."""

    spec: str
    status: str
    selector: str = ""


class PrinterColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of tables: a JSON path into the object, printed by its type."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    doc: str = ""
    priority: int = 0


class ConversionWebhook(msgspec.Struct, frozen=True):
    """The server that converts objects, and the certificates (PEM, base64) that its own is verified with."""

    url: str
    ca_bundle: str = ""


class CustomVersion(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """One version of a custom resource; what it says of the whole definition is the same for all versions."""

    name: str
    schema: Json
    definition: Key
    definition_revision: int
    storage: str  # the version in which objects are stored
    webhook: ConversionWebhook | None = None  # converts objects; without one only `apiVersion` differs
    has_status: bool = False
    scale: ScalePaths | None = None
    columns: tuple[PrinterColumn, ...] = ()
    selectable: tuple[str, ...] = ()  # simple JSON paths that field selectors may name
    deprecation: str = ""  # the warning for its users

    def shows_as(self, other: "CustomVersion") -> bool:
        """Whether objects look the same by another definition of this version."""
        return self.schema == other.schema and self.webhook == other.webhook

    @cached_property
    def published_schema(self) -> Json:
        """Its schema as clients get it; made once, however often other definitions change."""
        return schemas.published(self.schema)

    @cached_property
    def has_rules(self) -> bool:
        """Whether its schema has rules in CEL."""
        return cel_rules.has_rules(self.schema)
