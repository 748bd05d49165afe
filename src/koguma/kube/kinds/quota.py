"""ResourceQuota: how many objects of a kind a namespace may have."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Final

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

COUNT: Final = "count/"
# Names without a domain that Kubernetes knows; those of objects are older spellings of `count/<resource>`.
COUNTED_ALIASES: Final = (
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
)
_OTHER_STANDARD: Final = (
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "services.nodeports",
    "services.loadbalancers",
)
_HUGE_PAGES: Final = ("hugepages-", "requests.hugepages-")
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?"
)
_QUANTITY_LENGTH_MAX: Final = 64
_COUNT_MAX: Final = 2**63 - 1  # larger ones mean the same, as in Kubernetes
_QUANTITY_MESSAGE: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {f"{letter}i": 10 * index for index, letter in enumerate("KMGTPE", 1)}


class ScopeRequirement(Spec):
    """One thing that must be true of pods."""

    scope_name: Annotated[str | None, doc("Which property of a pod.")] = None
    operator: Annotated[str | None, doc("In, NotIn, Exists or DoesNotExist.")] = None
    values: Annotated[tuple[str, ...] | None, doc("Values, with In and NotIn.")] = None


class ScopeSelector(Spec):
    """Pods by their properties."""

    match_expressions: Annotated[
        tuple[ScopeRequirement, ...] | None, doc("What must be true of the pods.")
    ] = None


class ResourceQuotaSpec(Spec):
    """The limits."""

    hard: Annotated[
        Mapping[str, str] | None,
        doc("How many may exist, by count/<resource>.<group>; count/<resource> for the core group."),
    ] = None
    scopes: Annotated[tuple[str, ...] | None, doc("Only for pods, which do not exist here.")] = None
    scope_selector: Annotated[ScopeSelector | None, doc("Only for pods, which do not exist here.")] = None


class ResourceQuotaCondition(parts.ObjectCondition):
    """One thing that is true of a quota, or not, and why; the type is Counted."""


class ResourceQuotaStatus(Spec):
    """What is enforced, and how much of it is used."""

    hard: Annotated[Mapping[str, str] | None, doc("The limits that are enforced.")] = None
    used: Annotated[Mapping[str, str] | None, doc("How many exist, by the same keys.")] = None
    conditions: Annotated[
        tuple[ResourceQuotaCondition, ...] | None,
        doc("Counted: whether every key names objects that can be counted here."),
        parts.keyed_by("type"),
    ] = None


def clean(spec: Json) -> Json:
    """Numbers as the texts that quantities are."""
    return parts.without_nulls(parts.changed(spec, {"hard": _texts}))


def _texts(hard: Json) -> Json:
    if not isinstance(hard, dict):
        return hard
    return {name: _text(value) for name, value in hard.items()}


def _text(value: Json) -> Json:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = str(value) if is_number else value
    count = quantity(text) if isinstance(text, str) else None
    is_whole = count is not None and count == count.to_integral_value()
    return str(min(int(count), _COUNT_MAX)) if count is not None and is_whole else text


def quantity(text: str) -> Decimal | None:
    """A quantity as a number (`2`, `1k`, `500m`, `4Gi`, `1e3`); None where it is none."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _QUANTITY_LENGTH_MAX else None
    if match is None:
        return None
    number, suffix, exponent = Decimal(match[1]), match[2] or "", int(match[3] or 0)
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number.scaleb(exponent + _POWERS.get(suffix, 0))


def validate(spec: ResourceQuotaSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Names that nobody knows, values that are no counts, and scopes, which are about pods."""
    for name, value in sorted((spec.hard or {}).items()):
        at = field_errors.at_key("spec.hard", name)
        yield from (field_errors.invalid(at, name, message, "key") for message in _name_messages(name))
        yield from _value_violations(at, name, value)
    if spec.scopes or spec.scope_selector is not None:
        at = "spec.scopes" if spec.scopes else "spec.scopeSelector"
        scopes = list(spec.scopes or ())
        yield field_errors.invalid(at, scopes, "unsupported scope applied to resource", "scope")


def _name_messages(name: str) -> Iterator[str]:
    messages = list(parts.qualified_name_messages(name))
    is_standard = name in (*COUNTED_ALIASES, *_OTHER_STANDARD) or name.startswith(_HUGE_PAGES)
    if not messages and "/" not in name and not is_standard:
        messages = ["must be a standard resource type or fully qualified"]
    yield from messages


def _value_violations(at: str, name: str, value: str) -> Iterator[Violation]:
    number = quantity(value)
    if number is None:
        yield field_errors.invalid(at, value, _QUANTITY_MESSAGE, "quantity")
    elif number < 0:
        yield field_errors.invalid(at, value, "must be greater than or equal to 0", "range")
    elif (name in COUNTED_ALIASES or "/" in name) and number != number.to_integral_value():
        yield field_errors.invalid(at, value, "must be an integer", "integer")


def _used_and_hard(_spec: Json, status: Json) -> str:
    hard, used = status.get("hard") or {}, status.get("used") or {}
    return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard))


RESOURCE_QUOTA = Kind(
    name="ResourceQuota",
    plural="resourcequotas",
    set_name="ResourceQuota.core",
    group="",
    doc="How many objects of a kind a namespace may have, whichever endpoint they are written through.",
    spec=ResourceQuotaSpec,
    status=ResourceQuotaStatus,
    scope=Scope.GLOBAL,
    clean=clean,
    validate=validate,
    columns=(Column("Request", _used_and_hard, "What is used, and of how much."),),
)
