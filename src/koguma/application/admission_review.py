"""AdmissionReview: what a webhook is asked about a write (admission.k8s.io/v1), and what it answers."""

import base64
import binascii
import time
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.access.user import User
from koguma.kube import codec
from koguma.kube.custom import scale
from koguma.kube.custom.endpoints import SCALE
from koguma.kube.custom.version import ScalePaths
from koguma.kube.registry import KubeEndpoint
from koguma.model import documents
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Resource
from koguma.model.schema import Json, json_type

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
SECONDS_MAX: Final = 60.0  # for all mutating webhooks together, or all validating ones
_OPTIONS: Final = {CREATE: "CreateOptions", UPDATE: "UpdateOptions", DELETE: "DeleteOptions"}
_WARNINGS_MAX: Final = 20
_WARNING_LENGTH_MAX: Final = 256
_MESSAGE_LENGTH_MAX: Final = 2000


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A write that webhooks are asked about. `old` is the stored object; a create has none."""

    operation: str
    endpoint: KubeEndpoint
    namespace: str  # where the Kubernetes form shows the object
    name: str
    user: User
    old: Resource | None = None
    subresource: str = ""
    is_dry: bool = False
    options: Mapping[str, Json] = {}
    deadline: float = msgspec.field(default_factory=lambda: time.monotonic() + SECONDS_MAX)

    @property
    def seconds_left(self) -> float:
        """How long the next webhook may take: many slow ones hold a writer no longer than a request takes."""
        return max(self.deadline - time.monotonic(), 0.0)


class UnreadableReview(ValueError):
    """An answer that is no AdmissionReview for the question."""


class AdmissionAnswer(msgspec.Struct, frozen=True):
    """What a webhook answers."""

    allowed: bool
    code: int = 0
    reason: str = ""
    message: str = ""
    patch: bytes = b""
    warnings: tuple[str, ...] = ()


def review(
    request: AdmissionRequest,
    seen_as: KubeEndpoint,
    new: Resource | None,
    old: Resource | None,
    control_plane: ControlPlaneInfo,
) -> dict[str, Json]:
    """The question about both objects, which are in the version of the endpoint that a rule names."""
    asked: dict[str, Json] = {
        "uid": str(uuid.uuid4()),
        "kind": _kind(request, seen_as),
        "resource": _resource(seen_as),
        "requestKind": _kind(request, request.endpoint),
        "requestResource": _resource(request.endpoint),
        "operation": request.operation,
        "userInfo": _user_info(request.user),
        "object": object_document(new, request, seen_as, control_plane) if new is not None else None,
        "oldObject": object_document(old, request, seen_as, control_plane) if old is not None else None,
        "dryRun": request.is_dry,
        "options": {
            "kind": _OPTIONS[request.operation],
            "apiVersion": "meta.k8s.io/v1",
            **request.options,
            **({"dryRun": ["All"]} if request.is_dry else {}),
        },
    }
    if request.subresource:
        asked["subResource"] = asked["requestSubResource"] = request.subresource
    where = {"name": request.name, "namespace": request.namespace}
    asked |= {key: value for key, value in where.items() if value}
    return {"kind": KIND, "apiVersion": API_VERSION, "request": asked}


def object_document(
    resource: Resource, request: AdmissionRequest, endpoint: KubeEndpoint, control_plane: ControlPlaneInfo
) -> dict[str, Json]:
    """An object as a webhook sees it; what is not stored yet has no uid, revision and time."""
    paths = scale_paths(request, endpoint)
    if paths is not None:
        return scale.scale_document(codec.document(resource, endpoint, control_plane), paths)
    document = codec.document(resource, endpoint, control_plane)
    if not resource.revision:
        new = {"resourceVersion", "uid", "generation"}
        metadata = {key: value for key, value in document["metadata"].items() if key not in new}
        document["metadata"] = {**metadata, "creationTimestamp": None}
    return document


def scale_paths(request: AdmissionRequest, endpoint: KubeEndpoint) -> ScalePaths | None:
    """Where the replicas are, if a write is to the subresource `scale`: then webhooks see a Scale."""
    return endpoint.custom.scale if endpoint.custom and request.subresource == SCALE else None


def _kind(request: AdmissionRequest, endpoint: KubeEndpoint) -> Json:
    if scale_paths(request, endpoint) is not None:
        return {"group": scale.GROUP, "version": "v1", "kind": scale.KIND}
    return {"group": endpoint.group, "version": endpoint.version, "kind": endpoint.kind_name}


def _resource(endpoint: KubeEndpoint) -> Json:
    return {"group": endpoint.group, "version": endpoint.version, "resource": endpoint.plural}


def _user_info(user: User) -> Json:
    info: dict[str, Json] = {"username": user.name, "groups": list(user.all_groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    return info


def answer(body: bytes, uid: str) -> AdmissionAnswer:
    """The answer in the body of a response; UnreadableReview says what is wrong with it."""
    try:
        document = msgspec.json.decode(body)
        documents.check_depth(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, documents.BadDocument):
        raise UnreadableReview("its answer is no JSON") from None
    if not isinstance(document, dict):
        raise UnreadableReview(f"its answer is a value of type {json_type(document)}, not an AdmissionReview")
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise UnreadableReview(f"expected webhook response of {API_VERSION}, Kind={KIND}")
    response = document.get("response")
    if not isinstance(response, dict):
        raise UnreadableReview("webhook response is absent")
    if response.get("uid") != uid:
        raise UnreadableReview(f'expected response.uid="{uid}"')
    if not isinstance(response.get("allowed"), bool):
        raise UnreadableReview("response.allowed must be a boolean")
    status = response.get("status") or {}
    if not isinstance(status, dict):
        raise UnreadableReview("response.status must be an object")
    return AdmissionAnswer(
        response["allowed"],
        _code(status.get("code")),
        _text(status.get("reason")),
        _text(status.get("message")),
        _patch(response),
        _warnings(response.get("warnings")),
    )


def _text(value: Json, length_max: int = _MESSAGE_LENGTH_MAX) -> str:
    """A text in one line that is safe in headers and terminals."""
    words = " ".join(value.split()) if isinstance(value, str) else ""
    return "".join(character for character in words if character.isprintable())[:length_max]


def _code(value: Json) -> int:
    is_error = isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600  # noqa: PLR2004
    return value if is_error else 0


def _patch(response: Mapping[str, Json]) -> bytes:
    patch = response.get("patch")
    if not patch:
        return b""
    if response.get("patchType") != "JSONPatch":
        raise UnreadableReview('invalid response.patchType, must be "JSONPatch" where there is a patch')
    try:
        return base64.b64decode(patch, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise UnreadableReview("response.patch is no base64") from None


def _warnings(values: Json) -> tuple[str, ...]:
    texts = [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
    return tuple(_text(text, _WARNING_LENGTH_MAX) for text in texts[:_WARNINGS_MAX])
