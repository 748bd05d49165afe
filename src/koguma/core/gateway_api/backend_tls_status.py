"""Status of a BackendTLSPolicy: what is true of it, for each Service that it targets."""

from typing import Final

from koguma.core.gateway_api import backend_tls, conditions, objects
from koguma.core.gateway_api.conditions import FALSE, TRUE, StatusCondition
from koguma.core.incremental import Db
from koguma.model.resource import Resource
from koguma.model.schema import Json

_ANCESTORS_MAX: Final = 16
_FIELDS: Final = ("group", "kind", "name", "sectionName")


def status(db: Db, policy: Resource, now: str) -> Json:
    """The status of a stored policy: entries of other controllers as they are, and ours."""
    stored = [each for _, each in objects.items(objects.fields(policy.status).get("ancestors"))]
    others = [each for each in stored if each.get("controllerName") != objects.CONTROLLER]
    own = [each for each in stored if each.get("controllerName") == objects.CONTROLLER]
    said = tuple(
        StatusCondition(each.type, TRUE if each.is_true else FALSE, each.reason, each.message)
        for each in backend_tls.conditions(db, policy.key)
    )
    entries = []
    for _, target in objects.items(objects.fields(policy.spec).get("targetRefs")):
        ref = {name: target[name] for name in _FIELDS if target.get(name) is not None}
        before = next((each for each in own if each.get("ancestorRef") == ref), {})
        written = conditions.merged(before.get("conditions"), said, policy.generation, now)
        entries.append({"ancestorRef": ref, "controllerName": objects.CONTROLLER, "conditions": written})
    return {**objects.fields(policy.status), "ancestors": [*others, *entries][:_ANCESTORS_MAX]}
