"""Negotiation: in which shape a client wants its answer: whole objects, tables, or metadata alone."""

from enum import Enum
from typing import Final, get_args

import msgspec

from koguma.api.call import JSON, Call
from koguma.kube import tables
from koguma.model.errors import BadRequest, NotAcceptable
from koguma.model.short_keys import kept_if_short

_META_GROUP: Final = "meta.k8s.io"
_META_VERSIONS: Final = ("v1", "v1beta1")


class AnswerFormat(Enum):
    """What an answer holds."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


class AcceptedFormat(msgspec.Struct, frozen=True):
    """A shape, and the version of meta.k8s.io in which it is said."""

    shape: AnswerFormat
    version: str = "v1"

    @property
    def api_version(self) -> str:
        """As in the answer's `apiVersion`, where it is not the object itself."""
        return f"{_META_GROUP}/{self.version}"


_OBJECTS: Final = AcceptedFormat(AnswerFormat.OBJECT)


def wanted(call: Call) -> AcceptedFormat:
    """The first shape that the Accept header names and we have."""
    return _wanted(call.header("Accept") or "*/*")


@kept_if_short(maxsize=256)
def _wanted(accept: str) -> AcceptedFormat:
    for entry in accept.split(","):
        found = _one(entry)
        if found is not None:
            return found
    raise NotAcceptable(
        f"only the following media types are accepted: {JSON}, {JSON};as=Table;v=v1;g={_META_GROUP},"
        f" {JSON};as=PartialObjectMetadata;v=v1;g={_META_GROUP}"
    )


def parameters(entry: str) -> tuple[str, dict[str, str]]:
    """A media type and its parameters."""
    media, *rest = (part.strip() for part in entry.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media.lower(), {name.strip(): value.strip() for name, _, value in pairs}


def _one(entry: str) -> AcceptedFormat | None:
    media, said = parameters(entry)
    if media not in (JSON, "*/*", "application/*"):
        return None
    shape, version = said.get("as"), said.get("v", "v1")
    if shape is None:
        return _OBJECTS
    if said.get("g") != _META_GROUP or version not in _META_VERSIONS:
        return None
    if shape == "Table":
        return AcceptedFormat(AnswerFormat.TABLE, version)
    if shape in ("PartialObjectMetadata", "PartialObjectMetadataList"):
        return AcceptedFormat(AnswerFormat.PARTIAL, version)
    return None


def include(call: Call) -> tables.Include:
    """How much of each object a table's rows carry."""
    word = call.query.get("includeObject") or "Metadata"
    for known in get_args(tables.Include):
        if word == known:
            return known  # type: ignore[no-any-return] # one of the words themselves
    raise BadRequest(f'unrecognized includeObject value: "{word[:100]}"')


def flag(call: Call, name: str) -> bool:
    """Whether a query parameter is on: Kubernetes' clients spell yes in many ways."""
    value = call.query.get(name)
    return value is not None and value.lower() not in ("0", "false")
