"""Rule settings: timeouts, retries, sessions and CORS of a rule, as our routes take them.

They have the same fields in both. A setting that Envoy could only half obey takes its rule away, with the
field and the reason.
"""

from collections.abc import Mapping
from typing import Final

from koguma.core.gateway_api import objects
from koguma.core.gateway_api.conversion import Unsupported
from koguma.envoy import cors, session_persistence
from koguma.model.schema import Json
from koguma.model.violation import child

_SESSION: Final = "sessionPersistence"
FIELDS: Final = ("timeouts", "retry", _SESSION)


def of(written: Mapping[str, Json], path: str) -> Mapping[str, Json]:
    """The settings of a rule."""
    settings = {name: objects.fields(written[name]) for name in FIELDS if written.get(name) is not None}
    for field, reason in session_persistence.problems(settings.get(_SESSION) or {}):
        raise Unsupported(f"{child(path, _SESSION)}.{field}: {reason}")
    return settings


def cors_filter(written: Mapping[str, Json], path: str) -> Mapping[str, Json]:
    """A filter of type CORS."""
    fields = objects.fields(written.get("cors"))
    for field, reason in cors.problems(fields):
        raise Unsupported(f"{path}.cors.{field}: {reason}")
    return {"type": cors.TYPE, "cors": fields}
