"""Content negotiation: whether a client accepts whole objects, tables, or metadata alone."""

from enum import Enum
from typing import Final, get_args

import msgspec

from koguma.api.call import JSON, Call
from koguma.api.kube.media import JSON_MEDIA, PROTOBUF_MEDIA, Media
from koguma.kube import protobuf_writer, tables
from koguma.kube.protobuf import MEDIA_TYPE
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import BadRequest, NotAcceptable
from koguma.model.short_keys import kept_if_short

_META_GROUP: Final = "meta.k8s.io"
_META_VERSIONS: Final = ("v1", "v1beta1")


class AnswerFormat(Enum):
    """What a response holds."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


class AcceptedFormat(msgspec.Struct, frozen=True):
    """A format, its version of meta.k8s.io, and how it is written."""

    format: AnswerFormat
    version: str = "v1"
    is_protobuf: bool = False

    @property
    def media(self) -> Media:
        """How it is written."""
        return PROTOBUF_MEDIA if self.is_protobuf else JSON_MEDIA

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a table or of metadata."""
        return f"{_META_GROUP}/{self.version}"


_OBJECTS: Final = AcceptedFormat(AnswerFormat.OBJECT)
_MESSAGES: Final = AcceptedFormat(AnswerFormat.OBJECT, is_protobuf=True)


def accepted_format(call: Call, endpoint: KubeEndpoint) -> AcceptedFormat:
    """The first format in the Accept header that we serve for the objects of an endpoint."""
    has_message = protobuf_writer.has_message(endpoint.api_version, endpoint.kind_name)
    return _accepted_format(call.header("Accept") or "*/*", has_message)


@kept_if_short(maxsize=256)
def _accepted_format(accept: str, has_message: bool) -> AcceptedFormat:  # noqa: FBT001 - private, and cached by it
    for entry in accept.split(","):
        accepted = _format_of(entry)
        if accepted is not None and (has_message or accepted != _MESSAGES):
            return accepted
    raise NotAcceptable(
        f"only the following media types are accepted: {JSON}, {JSON};as=Table;v=v1;g={_META_GROUP},"
        f" {JSON};as=PartialObjectMetadata;v=v1;g={_META_GROUP}{f', {MEDIA_TYPE}' if has_message else ''}"
    )


def parameters(entry: str) -> tuple[str, dict[str, str]]:
    """A media type and its parameters."""
    media, *rest = (part.strip() for part in entry.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media.lower(), {name.strip(): value.strip() for name, _, value in pairs}


def _format_of(entry: str) -> AcceptedFormat | None:
    media, media_parameters = parameters(entry)
    if media not in (JSON, "*/*", "application/*", MEDIA_TYPE):
        return None
    is_protobuf = media == MEDIA_TYPE
    as_, version = media_parameters.get("as"), media_parameters.get("v", "v1")
    if as_ is None:
        return _MESSAGES if is_protobuf else _OBJECTS
    if media_parameters.get("g") != _META_GROUP or version not in _META_VERSIONS:
        return None
    if as_ == "Table" and not is_protobuf:  # Kubernetes has no message for it either
        return AcceptedFormat(AnswerFormat.TABLE, version)
    if as_ in ("PartialObjectMetadata", "PartialObjectMetadataList"):
        return AcceptedFormat(AnswerFormat.PARTIAL, version, is_protobuf)
    return None


def include_object(call: Call) -> tables.Include:
    """How much of each object a table's rows carry."""
    word = call.query.get("includeObject") or "Metadata"
    for choice in get_args(tables.Include):
        if word == choice:
            return choice  # type: ignore[no-any-return] # one of the literals
    raise BadRequest(f'unrecognized includeObject value: "{word[:100]}"')


def flag(call: Call, name: str) -> bool:
    """Whether a query parameter is on: Kubernetes takes anything but 0 and false for yes."""
    value = call.query.get(name)
    return value is not None and value.lower() not in ("0", "false")
