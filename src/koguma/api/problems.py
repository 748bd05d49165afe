"""Problems: errors as bodies, in the shape that Kuma's clients read."""

from typing import Any

import msgspec

from koguma.model.errors import BadRequest, Invalid, KogumaError
from koguma.model.violation import Violation


def body(error: KogumaError, title: str, request_id: str) -> bytes:
    """The JSON of an error; `title` is the operation's, used where the error has none of its own."""
    shown: dict[str, Any] = {
        "type": "/std-errors",
        "status": error.status,
        "title": error.title or title,
        "detail": error.detail,
        "details": error.detail,
        "instance": request_id,
    }
    violations = error.violations if isinstance(error, Invalid | BadRequest) else ()
    if violations:
        shown["invalid_parameters"] = [_parameter(violation) for violation in violations]
        shown["causes"] = [{"field": v.field, "message": v.message} for v in violations]
    return msgspec.json.encode(shown)


def _parameter(violation: Violation) -> dict[str, str]:
    shown = {"field": violation.field, "reason": violation.message}
    if violation.rule:
        shown["rule"] = violation.rule
    return shown
