"""Conditions: what a status says, merged into the one that is stored.

A condition keeps the time of its last transition while its status stays, and its observed generation never
goes back. What other controllers have written is not touched.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from koguma.core.gateway_api import objects
from koguma.model.schema import Json

TRUE: Final = "True"
FALSE: Final = "False"


class StatusCondition(NamedTuple):
    """One thing that is true of an object, or not, and why."""

    type: str
    status: str
    reason: str
    message: str = ""


def merged(stored: Json, conditions: Iterable[StatusCondition], generation: int, now: str) -> list[Json]:
    """Conditions as they are stored, over those of before; types that are no longer said are dropped."""
    before = {objects.text(each.get("type")): each for _, each in objects.items(stored)}
    return [_merged(before.get(each.type) or {}, each, generation, now) for each in conditions]


def _merged(before: Mapping[str, Json], condition: StatusCondition, generation: int, now: str) -> Json:
    is_same = before.get("status") == condition.status
    return {
        "type": condition.type,
        "status": condition.status,
        "observedGeneration": max(generation, objects.number(before.get("observedGeneration")) or 0),
        "lastTransitionTime": (is_same and objects.text(before.get("lastTransitionTime"))) or now,
        "reason": condition.reason,
        "message": condition.message,
    }
