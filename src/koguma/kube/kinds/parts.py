"""Parts: types that several of Kubernetes' kinds share, and how their values are read.

In these kinds null is the same as absence, which is how Kubernetes reads it; so every field takes it, and
`without_nulls` leaves it out of what is stored. That a field must have a value is not for the schema to say,
but for the kind's own check, in Kubernetes' words.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from koguma.kube import field_errors, times
from koguma.model import labels, names
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

_INT32_MAX: Final = 2**31 - 1
_SEGMENTS: Final = (".", "..")
_IN_SEGMENT: Final = ("/", "%")

Int32 = Annotated[int, Meta(ge=-_INT32_MAX - 1, le=_INT32_MAX, extra_json_schema={"format": "int32"})]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Bytes = Annotated[str, Meta(extra_json_schema={"format": "byte"})]
SecretBytes = Annotated[str, Meta(extra={"sensitive": True}, extra_json_schema={"format": "byte"})]

# What server-side apply and strategic patches need to know; lists that say nothing are replaced as a whole.
ATOMIC: Final = Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})


def keyed_by(name: str) -> Meta:
    """A list whose elements are told apart by one field."""
    return Meta(
        extra_json_schema={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [name],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": name,
        }
    )


class ObjectReference(Spec):
    """Another object."""

    kind: Annotated[str | None, doc("Its kind.")] = None
    namespace: Annotated[str | None, doc("Its namespace.")] = None
    name: Annotated[str | None, doc("Its name.")] = None
    uid: Annotated[str | None, doc("Its uid.")] = None
    api_version: Annotated[str | None, doc("Its API version.")] = None
    resource_version: Annotated[str | None, doc("The version of it that is meant.")] = None
    field_path: Annotated[str | None, doc("One part of it, as a path.")] = None


class LocalObjectReference(Spec):
    """Another object in the same namespace."""

    name: Annotated[str | None, doc("Its name.")] = None


class ObjectCondition(Spec):
    """One thing that is true of an object, or not, and why; kinds name their own after it."""

    type: Annotated[str | None, doc("What the condition is about.")] = None
    status: Annotated[str | None, doc("Whether it holds: True, False or Unknown.")] = None
    last_transition_time: Annotated[Time | None, doc("When that last changed.")] = None
    reason: Annotated[str | None, doc("The reason as one word.")] = None
    message: Annotated[str | None, doc("The reason in a sentence.")] = None


def without_nulls(value: Json, *whole: str) -> Json:
    """The same value without fields that are null; fields of the names in `whole` stay as they are."""
    if isinstance(value, dict):
        return {
            name: each if name in whole else without_nulls(each, *whole)
            for name, each in value.items()
            if each is not None
        }
    return [without_nulls(each, *whole) for each in value] if isinstance(value, list) else value


def changed(spec: Json, changes: Mapping[str, Callable[[Json], Json]]) -> Json:
    """An object with some of its fields read in another way; what is absent stays absent."""
    if not isinstance(spec, dict):
        return spec
    return {name: changes[name](value) if name in changes else value for name, value in spec.items()}


def payload(text: str | None) -> bytes | None:
    """The bytes of a base64 text, which may be broken into lines; None where it is no base64."""
    try:
        return base64.b64decode((text or "").replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return None


def encoded(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode()


def as_map(value: Any) -> Mapping[str, Json]:
    """An object, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def time_violations(path: str, text: str | None, *, micro: bool = False) -> Iterator[Violation]:
    """What is no time."""
    if text is not None and times.read(text) is None:
        yield field_errors.invalid(path, text, times.MICRO_MESSAGE if micro else times.MESSAGE, "time")


def qualified_name_messages(name: str) -> Iterator[str]:
    """What is wrong with a name that may have a domain before a slash."""
    for violation in labels.syntax({name: ""}):
        yield violation.message


_SUBDOMAIN: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and"
    " end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def subdomain_messages(name: str) -> Iterator[str]:
    """What is wrong with the name of most kinds."""
    if len(name) > names.NAME_LENGTH_MAX:
        yield f"must be no more than {names.NAME_LENGTH_MAX} bytes"
    if not names.is_subdomain(name[: names.NAME_LENGTH_MAX]):
        yield _SUBDOMAIN


def label_messages(name: str) -> Iterator[str]:
    """What is wrong with the name of a namespace, which becomes part of host names."""
    if len(name) > names.LABEL_LENGTH_MAX:
        yield f"must be no more than {names.LABEL_LENGTH_MAX} bytes"
    if not names.is_dns_label(name[: names.LABEL_LENGTH_MAX]):
        yield _LABEL


def segment_messages(name: str) -> Iterator[str]:
    """What is wrong with a name that need only fit into a path, as those of roles."""
    if name in _SEGMENTS:
        yield f"may not be '{name}'"
    for letter in _IN_SEGMENT:
        if letter in name:
            yield f"may not contain '{letter}'"
