"""Tables (meta.k8s.io Table) with printer columns for `kubectl get`, and PartialObjectMetadata.

The server writes the cells, ages included, so that clients need not know the kinds. Columns with a priority
above 0 are for `-o wide`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from koguma.kube import namespaced_names, times
from koguma.kube.custom import columns as custom_columns
from koguma.kube.custom.version import PrinterColumn
from koguma.kube.kinds import custom_definitions, events, rbac
from koguma.kube.registry import KubeEndpoint
from koguma.model import columns as shared
from koguma.model import labels
from koguma.model.kind import Column
from koguma.model.schema import Json

META_VERSION: Final = "meta.k8s.io/v1"
Include = Literal["Metadata", "Object", "None"]
INCLUDES: Final[tuple[Include, ...]] = ("Metadata", "Object", "None")
_OUTER: Final = ("apiVersion", "kind", "metadata", "kri")
_UNREADABLE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class TableObject(msgspec.Struct, frozen=True):
    """The object of a row; `spec` is in the storage version."""

    document: Json
    spec: Json
    now: datetime

    @property
    def metadata(self) -> Json:
        """Its metadata."""
        return self.document.get("metadata") or {}

    @property
    def status(self) -> Json:
        """Its status, empty where it has none."""
        return self.document.get("status") or {}


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table as clients get it."""

    name: str
    cell: Callable[[TableObject], str | int | float | None]
    type: str = "string"
    format: str = ""
    doc: str = ""
    priority: int = 0
    empty: str | None = ""  # the cell where there is no value

    @property
    def definition(self) -> dict[str, Json]:
        """Its heading, as JSON."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.doc,
            "priority": self.priority,
        }


def table(
    documents: Iterable[Json],
    endpoint: KubeEndpoint,
    now: datetime,
    include: Include = "Metadata",
    list_meta: Mapping[str, Json] | None = None,
    *,
    with_columns: bool = True,
    version: str = META_VERSION,
) -> dict[str, Json]:
    """A Table of documents; in a watch only the first one has column definitions, as in Kubernetes."""
    chosen = columns(endpoint)
    rows = [
        {"cells": _cells(document, endpoint, chosen, now), "object": _included(document, include, version)}
        for document in documents
    ]
    return {
        "kind": "Table",
        "apiVersion": version,
        "metadata": dict(list_meta or {}),
        "columnDefinitions": [column.definition for column in chosen] if with_columns else None,
        "rows": rows,
    }


def _cells(
    document: Json, endpoint: KubeEndpoint, chosen: Iterable[TableColumn], now: datetime
) -> list[str | int | float | None]:
    row = TableObject(document, _spec(document, endpoint), now)
    return [_cell(column, row) for column in chosen]


def _cell(column: TableColumn, row: TableObject) -> str | int | float | None:
    # What is stored may have been written under older schemas, or be malformed.
    try:
        value = column.cell(row)
    except _UNREADABLE:
        return column.empty
    return column.empty if value is None else value


def _spec(document: Json, endpoint: KubeEndpoint) -> Json:
    """What columns read: the spec in the storage version, of our own kinds normalized by `clean`."""
    kind = endpoint.shown_kind
    if kind.at_root:
        return endpoint.conversion.to_storage({n: value for n, value in document.items() if n not in _OUTER})
    try:
        spec = endpoint.conversion.to_storage(document.get("spec") or {})
        return spec if namespaced_names.is_native(kind) else kind.clean(spec)
    except _UNREADABLE:
        return {}


def _included(document: Json, include: Include, version: str) -> Json:
    match include:
        case "Metadata":
            return partial(document, version)
        case "Object":
            return document
        case "None":
            return None


def partial(document: Json, version: str = META_VERSION) -> dict[str, Json]:
    """An object without its contents."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": version,
        "metadata": document.get("metadata") or {},
    }


def partial_list(
    documents: Iterable[Json], list_meta: Mapping[str, Json], version: str = META_VERSION
) -> dict[str, Json]:
    """A list of objects without their contents."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": version,
        "metadata": dict(list_meta),
        "items": [partial(document, version) for document in documents],
    }


def columns(endpoint: KubeEndpoint) -> tuple[TableColumn, ...]:
    """The columns of an endpoint's tables, from left to right."""
    kind = endpoint.shown_kind
    if kind.stored_as == events.EVENT.stored_as:
        return _EVENT
    if endpoint.custom is not None:
        own = [_of_custom(column) for column in endpoint.custom.columns]
        return (_NAME, *(own or [_AGE]))
    own = [_of_kind(column) for column in kind.columns or ((shared.TARGET,) if kind.policy else ())]
    return (
        _NAME,
        *((_MESH,) if kind.is_mesh_scoped else ()),
        *(column for column in own if not column.priority),
        _CREATED if kind.stored_as in _WITHOUT_AGE else _AGE,
        *(column for column in own if column.priority),
        *(() if namespaced_names.is_native(kind) else _WIDE),
    )


def _of_kind(column: Column) -> TableColumn:
    return TableColumn(
        name=column.title,
        cell=lambda row: column.value(row.spec, row.status),
        doc=column.doc,
        priority=int(column.is_wide),
    )


def _of_custom(column: PrinterColumn) -> TableColumn:
    value = custom_columns.cell(column)
    return TableColumn(
        name=column.name,
        cell=lambda row: value(row.document, row.now),
        type=column.type,
        format=column.format,
        doc=column.doc or f"Custom resource definition column (in JSONPath format): {column.path}",
        priority=column.priority,
        empty=None,
    )


def _label(title: str, name: str, doc: str, priority: int = 0) -> TableColumn:
    def cell(row: TableObject) -> str | None:
        found: str | None = (row.metadata.get("labels") or {}).get(name)
        return found

    return TableColumn(name=title, cell=cell, doc=doc, priority=priority)


_NAME: Final = TableColumn(
    name="Name",
    cell=lambda row: row.metadata.get("name"),
    format="name",
    doc="Its name, unique in its namespace.",
)
_MESH: Final = _label("Mesh", labels.MESH, "The mesh that it is part of.")
_AGE: Final = TableColumn(
    name="Age",
    cell=lambda row: times.age(row.metadata.get("creationTimestamp"), row.now),
    type="date",
    doc="How long ago it was made.",
)
_CREATED: Final = TableColumn(
    name="Created At",
    cell=lambda row: times.to_seconds(row.metadata.get("creationTimestamp")),
    type="date",
    doc="When it was made.",
)
_WITHOUT_AGE: Final = (
    rbac.ROLE.stored_as,
    rbac.CLUSTER_ROLE.stored_as,
    custom_definitions.DEFINITION.stored_as,
)
_WIDE: Final = (
    _label("Zone", labels.ZONE, "The zone that it comes from.", 1),
    _label("Origin", labels.ORIGIN, "Whether a zone or the Global control plane wrote it.", 1),
    TableColumn(
        name="KRI",
        cell=lambda row: row.document.get("kri"),
        doc="What identifies it everywhere.",
        priority=1,
    ),
)


def _first_seen(row: TableObject) -> str:
    return times.age(row.spec.get("firstTimestamp") or row.spec.get("eventTime"), row.now)


def _last_seen(row: TableObject) -> str:
    spec = row.spec
    if spec.get("series"):
        return times.age(spec["series"].get("lastObservedTime"), row.now)
    last = spec.get("lastTimestamp")
    return times.age(last, row.now) if last else _first_seen(row)


def _event_count(row: TableObject) -> int:
    count = (row.spec.get("series") or row.spec).get("count")
    return count if isinstance(count, int) and count else 1


def _event_object(row: TableObject) -> str:
    reference = row.spec.get("involvedObject") or {}
    kind = (reference.get("kind") or "").lower()
    return f"{kind}/{reference['name']}" if reference.get("name") else kind


def _event_source(row: TableObject) -> str:
    source = row.spec.get("source") or {}
    component = source.get("component") or row.spec.get("reportingComponent") or ""
    host = source.get("host") or row.spec.get("reportingInstance") or ""
    return ", ".join(word for word in (component, host) if word)


def _event_field(title: str, name: str, doc: str) -> TableColumn:
    return TableColumn(name=title, cell=lambda row: (row.spec.get(name) or "").strip(), doc=doc)


# For events what happened matters, not their names, so they have columns of their own.
_EVENT: Final = (
    TableColumn(name="Last Seen", cell=_last_seen, doc="How long ago it last happened."),
    _event_field("Type", "type", "Normal or Warning."),
    _event_field("Reason", "reason", "Why, in a word."),
    TableColumn(name="Object", cell=_event_object, doc="What it happened to."),
    TableColumn(
        name="Subobject",
        cell=lambda row: (row.spec.get("involvedObject") or {}).get("fieldPath"),
        doc="Which part of it.",
        priority=1,
    ),
    TableColumn(name="Source", cell=_event_source, doc="Who saw it.", priority=1),
    _event_field("Message", "message", "What happened."),
    TableColumn(name="First Seen", cell=_first_seen, doc="How long ago it first happened.", priority=1),
    TableColumn(name="Count", cell=_event_count, doc="How often it happened.", priority=1),
    TableColumn(name="Name", cell=_NAME.cell, format="name", doc="The event's own name.", priority=1),
)
