"""Namespace conditions: what stands in the way of a namespace that is being deleted.

Types, reasons and messages are those of Kubernetes' namespace controller, which tools and people look for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from koguma.model.schema import Json


class RemainingObject(NamedTuple):
    """An object that is still in the namespace: its resource, and what holds it."""

    resource: str  # with the group, as in `configmaps.`
    finalizers: tuple[str, ...]


class _ConditionTexts(NamedTuple):
    """A type of condition: its reason and message while nothing is wrong."""

    type: str
    reason: str
    message: str


_DISCOVERY: Final = _ConditionTexts(
    "NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"
)
_PARSING: Final = _ConditionTexts(
    "NamespaceDeletionGroupVersionParsingFailure",
    "ParsedGroupVersions",
    "All legacy kube types successfully parsed",
)
_CONTENT: Final = _ConditionTexts(
    "NamespaceDeletionContentFailure",
    "ContentDeleted",
    "All content successfully deleted, may be waiting on finalization",
)
_REMAINING: Final = _ConditionTexts(
    "NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"
)
_FINALIZERS: Final = _ConditionTexts(
    "NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"
)


def conditions(
    before: Sequence[Json], remaining: Iterable[RemainingObject], failures: Sequence[str], now: str
) -> list[Json]:
    """The conditions of a namespace that is being emptied; `failures` say why objects were not deleted.

    `before` are the stored conditions: what did not change keeps its time, and others' conditions stay.
    """
    left = list(remaining)
    counts = Counter(each.resource for each in left)
    held = Counter(name for each in left for name in each.finalizers)
    texts = {
        _DISCOVERY: "",
        _PARSING: "",
        _CONTENT: f"Failed to delete all resource types, {len(failures)} remaining: {', '.join(failures)}"
        if failures
        else "",
        _REMAINING: _listed("Some resources are remaining", counts, "has"),
        _FINALIZERS: _listed("Some content in the namespace has finalizers remaining", held, "in"),
    }
    reasons = {
        _CONTENT: "ContentDeletionFailed",
        _REMAINING: "SomeResourcesRemain",
        _FINALIZERS: "SomeFinalizersRemain",
    }
    stored = {condition.get("type"): condition for condition in before}
    own = [
        _condition(each.type, "True", reasons[each], text, stored, now)
        if text
        else _condition(each.type, "False", each.reason, each.message, stored, now)
        for each, text in texts.items()
    ]
    others = [condition for name, condition in stored.items() if name not in {each.type for each in texts}]
    return [*own, *others]


def _listed(begin: str, counts: Counter[str], verb: str) -> str:
    entries = [f"{name} {verb} {number} resource instances" for name, number in sorted(counts.items())]
    return f"{begin}: {', '.join(entries)}" if entries else ""


def _condition(
    type_: str, status: str, reason: str, message: str, stored: dict[Json, Json], now: str
) -> Json:
    before = stored.get(type_) or {}
    is_same = (before.get("status"), before.get("reason")) == (status, reason)
    time = before.get("lastTransitionTime") if is_same else None
    return {
        "type": type_,
        "status": status,
        "lastTransitionTime": time or now,
        "reason": reason,
        "message": message,
    }
