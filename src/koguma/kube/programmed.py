"""The condition Programmed of our kinds: every proxy that an object touches has it.

It is added where an object is shown, and removed from what clients send back: it is never stored.
"""

from typing import Final

from koguma.kube.registry import KubeEndpoint
from koguma.model.schema import Json

TYPE: Final = "Programmed"
_DESTINATIONS: Final = frozenset({"MeshService", "MeshExternalService", "MeshMultiZoneService"})


def applies(endpoint: KubeEndpoint) -> bool:
    """Whether objects of an endpoint have the condition: they say what proxies do."""
    kind = endpoint.kind
    if endpoint.view is not None or endpoint.custom is not None or kind.at_root:
        return False
    return kind.policy is not None or kind.name in _DESTINATIONS


def with_condition(document: dict[str, Json], generation: int, since: str) -> dict[str, Json]:
    """A document with the condition, about this generation and true since then."""
    status = document.get("status") or {}
    condition = {
        "type": TYPE,
        "status": "True",
        "reason": TYPE,
        "message": "every proxy that it touches has acknowledged it",
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
    return {**document, "status": {**status, "conditions": [*_others(status), condition]}}


def without_condition(document: dict[str, Json]) -> dict[str, Json]:
    """A document as it would be stored."""
    status = document.get("status")
    if not isinstance(status, dict) or not isinstance(status.get("conditions"), list):
        return document
    others = _others(status)
    if len(others) == len(status["conditions"]):
        return document
    rest = {name: value for name, value in status.items() if name != "conditions"}
    return {**document, "status": {**rest, "conditions": others} if others else rest}


def _others(status: dict[str, Json]) -> list[Json]:
    conditions = status.get("conditions") or []
    return [each for each in conditions if not isinstance(each, dict) or each.get("type") != TYPE]
