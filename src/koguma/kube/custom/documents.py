"""Documents of custom objects: what is stored of them, and what their version shows of it.

All fields beside the metadata are stored as one value; the status stands apart where the version gives it a
path of its own. Older objects are shown as the schema has it today: without fields that are gone, and with
defaults that came.
"""

from collections.abc import Mapping
from typing import NamedTuple

from koguma.kube.custom.version import CustomVersion
from koguma.kube.structural import shaping
from koguma.model.resource import Resource
from koguma.model.schema import Json


class CustomBody(NamedTuple):
    """The fields of an object beside its metadata, and the status where it stands apart."""

    fields: Json
    status: Json


def body(resource: Resource, version: CustomVersion) -> Mapping[str, Json]:
    """All that a version shows of an object beside its metadata."""
    fields: dict[str, Json] = dict(resource.spec) if isinstance(resource.spec, dict) else {}
    if resource.status is not None:
        fields["status"] = resource.status
    return shaped(fields, version)


def shaped(fields: Json, version: CustomVersion) -> Mapping[str, Json]:
    """Fields as the schema has them: known ones only, with defaults."""
    known: Mapping[str, Json] = shaping.defaulted(shaping.pruned(fields, version.schema), version.schema)
    return known


def to_store(fields: Mapping[str, Json], version: CustomVersion) -> CustomBody:
    """What is stored of the fields of an object."""
    if not version.has_status:
        return CustomBody(dict(fields), None)
    return CustomBody(
        {name: value for name, value in fields.items() if name != "status"}, fields.get("status")
    )
