"""Rule settings: timeouts, retries, sessions and CORS of a rule, as our routes take them.

They have the same fields in both. A setting that Envoy could only half obey takes its rule away, with the
field and the reason.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.core.gateway_api import objects
from koguma.core.gateway_api.conversion import Unsupported
from koguma.envoy import cors, session_persistence
from koguma.model import duration
from koguma.model.schema import Json
from koguma.model.violation import child

FIELDS: Final = ("timeouts", "retry", "sessionPersistence")
_DURATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "timeouts": ("request", "backendRequest"),
    "retry": ("backoff",),
    "sessionPersistence": ("absoluteTimeout", "idleTimeout"),
}


def of(written: Mapping[str, Json], path: str) -> Mapping[str, Json]:
    """The settings of a rule."""
    settings = {name: objects.fields(written[name]) for name in FIELDS if written.get(name) is not None}
    for name, fields in settings.items():
        for problem in _problems(name, fields, child(path, name)):
            raise Unsupported(problem)
    return settings


def cors_filter(written: Mapping[str, Json], path: str) -> Mapping[str, Json]:
    """A filter of type CORS."""
    fields = objects.fields(written.get("cors"))
    for field, reason in cors.problems(fields):
        raise Unsupported(f"{path}.cors.{field}: {reason}")
    return {"type": cors.TYPE, "cors": fields}


def _problems(name: str, fields: Mapping[str, Json], path: str) -> Iterator[str]:
    for field in _DURATIONS[name]:
        if fields.get(field) is not None and not duration.is_duration(objects.text(fields[field])):
            yield f"{child(path, field)}: {duration.MESSAGE}"
    if name == "sessionPersistence":
        for field, reason in session_persistence.problems(fields):
            yield f"{child(path, field)}: {reason}"
