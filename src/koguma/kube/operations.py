"""Operations: what can be asked of each endpoint, before either version of OpenAPI writes it down.

Clients read three things here before they send anything: whether a kind's patches may be strategic, whether
`dryRun` and `fieldValidation` exist, and to which kind a path belongs.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from koguma.kube import endpoints, meta_schemas, schemas
from koguma.kube.registry import KubeEndpoint
from koguma.model.schema import Json

JSON: Final = "application/json"
STREAM: Final = "application/json;stream=watch"
_BODIES: Final = (JSON, "application/yaml")
_PATCHES: Final = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)
_STRATEGIC: Final = "application/strategic-merge-patch+json"


class Parameter(msgspec.Struct, frozen=True):
    """A value in the path or in the query."""

    name: str
    words: str
    type: str = "string"
    is_path: bool = False


class Body(msgspec.Struct, frozen=True):
    """What is sent: the name of a definition, in one of these media types."""

    definition: str
    media: tuple[str, ...] = _BODIES
    required: bool = True


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    action: str
    id: str
    words: str
    group_version_kind: Json
    query: tuple[Parameter, ...]
    body: Body | None = None
    answers: tuple[tuple[str, str], ...]  # status codes, and the names of definitions
    produces: tuple[str, ...] = (JSON,)


class Path(msgspec.Struct, frozen=True):
    """One path and its operations."""

    path: str
    parameters: tuple[Parameter, ...]
    operations: tuple[Operation, ...]


_NAMESPACE: Final = Parameter("namespace", "The namespace of the objects.", is_path=True)
_NAME: Final = Parameter("name", "The name of the object.", is_path=True)

_DRY_RUN: Final = Parameter("dryRun", "All: go through the request, and store nothing.")
_WRITE: Final = (
    _DRY_RUN,
    Parameter("fieldManager", "The name under which the written fields are remembered."),
    Parameter("fieldValidation", "What happens to fields that do not exist: Strict, Warn or Ignore."),
)
_PATCH: Final = (
    *_WRITE,
    Parameter("force", "Take fields over from other managers; only with an apply patch.", "boolean"),
)
_DELETE: Final = (
    _DRY_RUN,
    Parameter("gracePeriodSeconds", "How long deletion may take.", "integer"),
    Parameter("orphanDependents", "Older form of propagationPolicy Orphan.", "boolean"),
    Parameter("propagationPolicy", "What happens to owned objects: Background, Foreground or Orphan."),
)
_SELECT: Final = (
    Parameter("continue", "Where the page before ended."),
    Parameter("fieldSelector", "Only objects with these values of fields."),
    Parameter("labelSelector", "Only objects with these labels."),
    Parameter("limit", "Objects in one page.", "integer"),
    Parameter("resourceVersion", "The state to read, or to go on from."),
    Parameter("resourceVersionMatch", "How to understand resourceVersion: Exact or NotOlderThan."),
)
_LIST: Final = (
    Parameter("allowWatchBookmarks", "With watch: also say now and then how far it is.", "boolean"),
    *_SELECT,
    Parameter("sendInitialEvents", "With watch: begin with all objects that there are.", "boolean"),
    Parameter("timeoutSeconds", "End the request after this time.", "integer"),
    Parameter("watch", "Send changes as they happen.", "boolean"),
)
_GET: Final = (Parameter("resourceVersion", "The state to read; the newest one by default."),)


def root(group: str, version: str) -> str:
    """Where the paths of a group and version begin, without the slash in front."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def paths(endpoints: Iterable[KubeEndpoint]) -> Iterator[Path]:
    """All paths of some endpoints, in order."""
    for endpoint in endpoints:
        yield from (path for path in _paths(endpoint) if path.operations)


def _paths(endpoint: KubeEndpoint) -> Iterator[Path]:
    base = f"/{root(endpoint.group, endpoint.version)}"
    spaces = (_NAMESPACE,) if endpoint.namespaced else ()
    collection = (
        f"{base}/namespaces/{{namespace}}/{endpoint.plural}" if spaces else f"{base}/{endpoint.plural}"
    )
    yield Path(collection, spaces, tuple(_made(endpoint, _COLLECTION)))
    yield Path(f"{collection}/{{name}}", (*spaces, _NAME), tuple(_made(endpoint, _ITEM)))
    for part in endpoint.subresources:
        verbs = subresource_verbs(endpoint, part)
        yield Path(f"{collection}/{{name}}/{part}", (*spaces, _NAME), tuple(_made(endpoint, verbs, part)))
    if spaces:
        yield Path(f"{base}/{endpoint.plural}", (), tuple(_made(endpoint, ("list",), everywhere=True)))


_COLLECTION: Final = ("list", "create", "deletecollection")
_ITEM: Final = ("get", "update", "patch", "delete")
_STATUS_VERBS: Final = ("get", "patch", "update")
_SUBRESOURCE: Final = {"finalize": ("update",), endpoints.TOKEN: ("create",)}
_METHODS: Final = {  # verb: method, action, first word of the id
    "list": ("get", "list", "list"),
    "create": ("post", "post", "create"),
    "deletecollection": ("delete", "deletecollection", "deleteCollection"),
    "get": ("get", "get", "read"),
    "update": ("put", "put", "replace"),
    "patch": ("patch", "patch", "patch"),
    "delete": ("delete", "delete", "delete"),
}
_QUERY: Final = {
    "list": _LIST,
    "create": _WRITE,
    "deletecollection": (*_DELETE, *_SELECT),
    "get": _GET,
    "update": _WRITE,
    "patch": _PATCH,
    "delete": _DELETE,
}


def subresource_verbs(endpoint: KubeEndpoint, part: str) -> tuple[str, ...]:
    """What can be done with a part of an object: reading always, writing where the object is written."""
    verbs = _SUBRESOURCE.get(part, _STATUS_VERBS)
    return tuple(verb for verb in verbs if verb in endpoint.verbs)


def _made(
    endpoint: KubeEndpoint, verbs: tuple[str, ...], part: str = "", *, everywhere: bool = False
) -> Iterator[Operation]:
    sent = endpoints.part_endpoint(endpoint, part)
    for verb in verbs:
        if verb in endpoint.verbs:
            method, action, word = _METHODS[verb]
            yield Operation(
                method=method,
                action=action,
                id=_id(endpoint, word, part, everywhere=everywhere),
                words=f"{word} {endpoint.kind_name}{f' {part}' if part else ''}",
                group_version_kind=schemas.group_version_kind(sent),
                query=_QUERY[verb],
                body=_body(sent, verb),
                answers=_answers(sent, verb),
                produces=(JSON, STREAM) if verb == "list" else (JSON,),
            )


def _id(endpoint: KubeEndpoint, word: str, part: str, *, everywhere: bool) -> str:
    group = re.sub(r"\.k8s\.io$", "", endpoint.group) or "core"
    words = [*re.split(r"[.-]", group), endpoint.version]
    where = "Namespaced" if endpoint.namespaced and not everywhere else ""
    capital = "".join(each[:1].upper() + each[1:] for each in words)
    tail = "ForAllNamespaces" if everywhere else part.capitalize()
    return f"{word}{capital}{where}{endpoint.kind_name}{tail}"


def _body(endpoint: KubeEndpoint, verb: str) -> Body | None:
    match verb:
        case "create" | "update":
            return Body(schemas.name_of(endpoint))
        case "patch":
            media = (*_PATCHES, _STRATEGIC) if endpoint.strategic else _PATCHES
            return Body(meta_schemas.PATCH, media)
        case "delete" | "deletecollection":
            return Body(meta_schemas.DELETE_OPTIONS, required=False)
        case _:
            return None


def _answers(endpoint: KubeEndpoint, verb: str) -> tuple[tuple[str, str], ...]:
    name = schemas.name_of(endpoint)
    match verb:
        case "list":
            return (("200", schemas.list_name_of(endpoint)),)
        case "create" | "update" | "patch":
            return ("200", name), ("201", name)
        case "delete" | "deletecollection":
            return (("200", meta_schemas.STATUS),)
        case _:
            return (("200", name),)
