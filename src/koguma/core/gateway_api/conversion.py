"""Conversion: what the rules of a route become, what was dropped of them and why.

A rule that cannot be had is left out as a whole, and the route's status says so (PartiallyInvalid, or
Accepted: False where no rule is left). A reference that leads nowhere keeps its rule: its share of requests
is answered with an error (ResolvedRefs: False).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import world
from koguma.core.gateway_api.backend_refs import RefProblem
from koguma.core.incremental import Db
from koguma.model import derived
from koguma.model.kind import ValidationContext
from koguma.model.resource import Key
from koguma.model.schema import UNKNOWN, Json
from koguma.model.violation import item

UNSUPPORTED_VALUE: Final = "UnsupportedValue"
INCOMPATIBLE_FILTERS: Final = "IncompatibleFilters"

Paths = tuple[tuple[str, str], ...]  # a path in what was converted, and the one in the source
Elsewhere = tuple[tuple[str, Key], ...]  # a path in what was converted, and the RouteFilter it comes from


class Unsupported(Exception):
    """A rule cannot be had: the reason of the condition, and a sentence that begins with the path."""

    def __init__(self, message: str, reason: str = UNSUPPORTED_VALUE) -> None:
        super().__init__(message)
        self.reason = reason


class ConvertedRule(NamedTuple):
    """A rule of ours; the paths are below the rule and below the source's rule."""

    number: int  # in the source
    rule: Mapping[str, Json]
    paths: Paths = ()
    elsewhere: Elsewhere = ()

    def source_path(self, path: str) -> str:
        """Where a path below this rule comes from, in words: the source's path, and another object's."""
        places = tuple(paths((self,), ""))
        place = derived.source_path(places, f"[0].{path}" if path else "[0]")
        found = derived.place_elsewhere(self.elsewhere, path)
        if found is None:
            return place
        named = f"{found[0].kind} {found[0].name}"
        return f"{place.removesuffix(found[1].removeprefix('spec'))} ({named}, {found[1]})"


class DroppedRule(NamedTuple):
    """A rule that was left out, and why."""

    number: int
    reason: str
    message: str


class Conversion(NamedTuple):
    """The rules of a route in our terms."""

    rules: tuple[ConvertedRule, ...] = ()
    dropped: tuple[DroppedRule, ...] = ()
    refs: tuple[RefProblem, ...] = ()  # references that may not be followed, or are of a wrong kind


def paths(rules: Sequence[ConvertedRule], at: str) -> Iterator[tuple[str, str]]:
    """The paths of rules that stand in a list at a path, each with the one in the source."""
    for position, converted in enumerate(rules):
        own, source = item(at, position), item("spec.rules", converted.number)
        yield own, source
        yield f"{own}.default", source
        yield from ((f"{own}.{below}", f"{source}.{there}") for below, there in converted.paths)


def elsewhere(rules: Sequence[ConvertedRule], at: str) -> Iterator[tuple[str, Key]]:
    """The paths of what other objects say in rules that stand in a list at a path."""
    for position, converted in enumerate(rules):
        yield from ((f"{item(at, position)}.{below}", key) for below, key in converted.elsewhere)


def violations(db: Db, kind: str, spec: Json, rule: ConvertedRule) -> Iterator[str]:
    """What our own kind refuses in a spec whose only rule is this one, with paths of the source."""
    context = ValidationContext(world.control_plane(db), "converted")
    for violation in world.kind_of(db, kind).violations(spec, context):
        if violation.rule != UNKNOWN:
            path = rule.source_path(violation.field.removeprefix("spec.to[0].rules[0]").removeprefix("."))
            yield f"{path}: {violation.message}"
