"""Problems: the bodies of error responses, in the shape that Kuma's clients read."""

from typing import Any

import msgspec

from koguma.model.errors import KogumaError
from koguma.model.violation import Violation


def body(error: KogumaError, title: str, request_id: str) -> bytes:
    """The JSON of an error; `title` is the operation's, used where the error has none of its own."""
    problem: dict[str, Any] = {
        "type": "/std-errors",
        "status": error.status,
        "title": error.title or title,
        "detail": error.detail,
        "details": error.detail,
        "instance": request_id,
    }
    if error.violations:
        problem["invalid_parameters"] = [_parameter(violation) for violation in error.violations]
        problem["causes"] = [{"field": v.field, "message": v.message} for v in error.violations]
    return msgspec.json.encode(problem)


def _parameter(violation: Violation) -> dict[str, str]:
    parameter = {"field": violation.field, "reason": violation.message}
    if violation.rule:
        parameter["rule"] = violation.rule
    return parameter
