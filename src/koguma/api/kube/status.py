"""Kubernetes Status objects: of errors and of finished deletions."""

from collections.abc import Sequence
from typing import Final

import msgspec

from koguma.api.kube.target import RequestTarget
from koguma.application.quota import QuotaExceeded
from koguma.application.webhooks import WebhookDenied, WebhookFailed
from koguma.model import errors
from koguma.model.errors import KogumaError
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation

_UNPROCESSABLE: Final = 422
# Status and reason by the error's type; the first that fits.
_REASONS: Final[tuple[tuple[type[KogumaError], int, str], ...]] = (
    (errors.Invalid, _UNPROCESSABLE, "Invalid"),
    (errors.BadRequest, 400, "BadRequest"),
    (errors.Unauthenticated, 401, "Unauthorized"),
    (errors.Forbidden, 403, "Forbidden"),
    (errors.NotFound, 404, "NotFound"),
    (errors.NotAllowed, 405, "MethodNotAllowed"),
    (errors.NotAcceptable, 406, "NotAcceptable"),
    (errors.TooSlow, 408, "Timeout"),
    (errors.AlreadyExists, 409, "AlreadyExists"),
    (errors.Conflict, 409, "Conflict"),
    (errors.PreconditionFailed, 409, "Conflict"),
    (errors.Gone, 410, "Expired"),
    (errors.TooLarge, 413, "RequestEntityTooLarge"),
    (errors.UnsupportedMedia, 415, "UnsupportedMediaType"),
    (errors.StoreFull, 507, "InsufficientStorage"),
    (errors.Unavailable, 503, "ServiceUnavailable"),
    (errors.TooNew, 504, "Timeout"),
)
_CAUSES: Final = {
    "required": "FieldValueRequired",
    "enum": "FieldValueNotSupported",
    "duplicate": "FieldValueDuplicate",
    "immutable": "FieldValueForbidden",
    "forbidden": "FieldValueForbidden",
    "length": "FieldValueTooLong",
    "too-many": "FieldValueTooMany",
    "type": "FieldValueTypeInvalid",
    "FieldManagerConflict": "FieldManagerConflict",
    "terminating": "NamespaceTerminating",
    "too-new": "ResourceVersionTooLarge",
}


class StatusResponse(msgspec.Struct, frozen=True):
    """An HTTP status and the Status object of an error."""

    code: int
    body: Json


def error_status(error: KogumaError, target: RequestTarget | None) -> StatusResponse:
    """The Status of an error at a target."""
    code, reason = _reason(error)
    body: dict[str, Json] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": error.resume} if isinstance(error, Expired) and error.resume else {},
        "status": "Failure",
        "message": _message(error, target, reason),
        "reason": reason,
        "code": code,
    }
    details = _details(error, target, reason)
    if details:
        body["details"] = details
    return StatusResponse(code, body)


class TargetedError(KogumaError):
    """An error with its target, where the path does not name the object: in a create."""

    def __init__(self, error: KogumaError, target: RequestTarget) -> None:
        super().__init__(error.detail)
        self.error = error
        self.target = target


class Expired(errors.Gone):
    """The snapshot of a list has expired; `resume` is a token that continues on the current state."""

    def __init__(self, detail: str, resume: str = "") -> None:
        super().__init__(detail)
        self.resume = resume


def _reason(error: KogumaError) -> tuple[int, str]:
    if isinstance(error, WebhookDenied):
        return error.code, error.reason
    for type_, code, reason in _REASONS:
        if isinstance(error, type_):
            return code, reason
    return 500, "InternalError"


def _message(error: KogumaError, target: RequestTarget | None, reason: str) -> str:
    if target is None or isinstance(error, WebhookDenied):  # whose reason is its own
        return error.detail
    endpoint, name = target.endpoint, target.name
    match reason:
        case "Invalid" if error.violations:
            group = f".{endpoint.group}" if endpoint.group else ""
            causes = [f"{v.field}: {v.message}" if v.field else v.message for v in error.violations]
            listed = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
            return f'{endpoint.kind_name}{group} "{name}" is invalid: {listed}'
        case "NotFound" if not error.violations and name and error.detail == errors.NotFound().detail:
            return f'{endpoint.qualified} "{name}" not found'
        case "AlreadyExists":
            return f'{endpoint.qualified} "{name}" already exists'
        case "InternalError" if isinstance(error, WebhookFailed):
            return f"Internal error occurred: {error.detail}"
        case "Forbidden" if isinstance(error, QuotaExceeded):
            return f'{endpoint.qualified} "{name}" is forbidden: {error.detail}'
        case "Conflict" if not error.violations:
            return f'Operation cannot be fulfilled on {endpoint.qualified} "{name}": {error.detail}'
    if error.violations and error.detail == errors.NotFound().detail:
        return "; ".join(v.message for v in error.violations)
    return error.detail


def _details(error: KogumaError, target: RequestTarget | None, reason: str) -> dict[str, Json]:
    details: dict[str, Json] = {}
    if target is not None:
        endpoint = target.endpoint
        if target.name:
            details["name"] = target.name
        if endpoint.group:
            details["group"] = endpoint.group
        details["kind"] = endpoint.kind_name if reason == "Invalid" else endpoint.plural
    if error.violations:
        details["causes"] = _causes(error.violations)
    if reason in ("Timeout", "ServiceUnavailable"):
        details["retryAfterSeconds"] = errors.Unavailable.retry_seconds
    return details


def _causes(violations: Sequence[Violation]) -> list[Json]:
    return [
        {"reason": _CAUSES.get(v.rule, "FieldValueInvalid"), "message": v.message, "field": v.field}
        for v in violations
    ]


def deleted(target: RequestTarget, resource: Resource) -> Json:
    """The Status of a finished deletion."""
    endpoint = target.endpoint
    details: dict[str, Json] = {"name": target.name, "kind": endpoint.plural, "uid": resource.uid}
    if endpoint.group:
        details["group"] = endpoint.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
