"""Plan words: the parts of a plan as short sentences, for every form in which plans are shown.

Values that change alike for many ports make one sentence.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from koguma.cli import inputs, objects, terminal
from koguma.core.plan.model import (
    CallerChange,
    EndpointChange,
    LeafChange,
    ObjectChange,
    Plan,
    PlannedObject,
    PlannedProblem,
    PortChange,
    ProxyGroup,
    ResourceChange,
    Risk,
    ValueChange,
    ValuePlace,
)
from koguma.model import kri
from koguma.model.documents import Document
from koguma.model.errors import KogumaError

Places = Mapping[str, Document]  # the documents of files by KRI

NAMES_MAX: Final = 5  # how many names a sentence has
_VALUE_MAX: Final = 160
_PLURALS: Final = {"routes": "route configurations", "endpoints": "endpoint lists"}


class ValueWords(NamedTuple):
    """A value that changes: where, what, from what to what, and by whom."""

    where: str
    what: str
    change: str
    by: str


def summary(plan: Plan) -> str:
    """How many proxies change."""
    scope = " that you may read" if plan.is_partial else ""
    groups = f", in {len(plan.groups)} groups" if len(plan.groups) > 1 else ""
    n_unknown = len(plan.unknown_zones)
    zones = "1 zone is" if n_unknown == 1 else f"{n_unknown} zones are"
    unknown = f"; {zones} unknown" if n_unknown else ""
    return f"{plan.changed} of {plan.total} proxies{scope} change{groups}{unknown}"


def unknown_zones(plan: Plan) -> Iterator[str]:
    """The zones that may change too, and why nothing is known of them."""
    return (terminal.printable(each.reason) for each in plan.unknown_zones)


def risk(of: Risk) -> str:
    """What may stop traffic, and in which zone."""
    return terminal.printable(f"zone {of.zone}: {of.message}" if of.zone else of.message)


def size(before: int, after: int) -> str:
    """How the configuration grows or shrinks."""
    difference = after - before
    if not difference:
        return f"{_bytes(after)}, as before"
    word = "more" if difference > 0 else "less"
    return f"{_bytes(before)} → {_bytes(after)}, {_bytes(abs(difference))} {word}"


def _bytes(number: int) -> str:
    for unit, scale in (("MB", 1_000_000), ("kB", 1_000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} bytes"


def group_title(group: ProxyGroup) -> str:
    """The proxies of a group; their zone once where they have the same."""
    zones = {each.zone for each in group.proxies}
    names = listed([_proxy(each, with_zone=len(zones) > 1) for each in group.proxies], group.total)
    word = {"added": "new: ", "removed": "removed: "}.get(group.action, "")
    of_zones = f" in {len(zones)} zones" if len(zones) > 1 else ""
    count = f" ({group.total} proxies{of_zones})" if group.total > 1 else ""
    return f"{word}{names}{'' if of_zones else _in_zone(*zones)}{count}"


def _in_zone(zone: str = "") -> str:
    return f" in zone {terminal.printable(zone)}" if zone else ""


def _proxy(name: PlannedObject, *, with_zone: bool) -> str:
    shown = f"{name.type} {terminal.printable(name.name)}"
    if name.type == "Dataplane":
        shown = objects.shown("", terminal.printable(name.name), name.mesh).removeprefix("/")
    return f"{shown}{_in_zone(name.zone)}" if with_zone else shown


def listed(names: Sequence[str], total: int | None = None) -> str:
    """The first names, and how many more there are."""
    count = len(names) if total is None else total
    more = f" and {count - NAMES_MAX} more" if count > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def port(change: PortChange) -> str:
    """A port that can be called, or no longer."""
    return f"{'can call' if change.is_added else 'can no longer call'} {named(change.port)}"


def ports(changes: Iterable[PortChange]) -> Iterator[str]:
    """The ports that can be called, or no longer, in two sentences at most."""
    for is_added, words in ((True, "can call"), (False, "can no longer call")):
        names = [named(each.port) for each in changes if each.is_added is is_added]
        if names:
            yield f"{words} {listed(names)}"


def callers(change: CallerChange, *, is_partial: bool) -> str:
    """Who may call an inbound, and who no longer."""
    parts = []
    if change.added:
        parts.append(f"{listed(change.added)} may call now")
    if change.removed:
        parts.append(f"{listed(change.removed)} may no longer call")
    nobody = "; none that you may read may then" if is_partial else "; nobody may then"
    return f"inbound {terminal.printable(change.at)}: {', '.join(parts)}{'' if change.n_after else nobody}"


def endpoints(change: EndpointChange) -> str:
    """The addresses behind a port that come and go."""
    parts = [f"+{address}" for address in change.added] + [f"-{address}" for address in change.removed]
    count = f"{change.n_before} → {change.n_after}"
    return f"endpoints of {named(change.cluster)}: {listed(parts)} ({count})"


def values(changes: Iterable[ValueChange], places: Places) -> Iterator[ValueWords]:
    """The values that change; those that change alike in many places as one."""
    alike: dict[str, list[ValueChange]] = {}
    for each in changes:
        name = (each.about, each.kind, each.field, each.requests, each.route, each.before, each.after)
        alike.setdefault(repr((*name, each.set_by, each.was_set_by)), []).append(each)
    for same in alike.values():
        first = same[0]
        yield ValueWords(
            _where(first, [named(each.at) for each in same]),
            f"{first.kind} {first.field}".strip(),
            f"{text(first.before)} → {text(first.after)}",
            _by(first, places),
        )


def _where(change: ValueChange, names: Sequence[str]) -> str:
    requests = f" ({terminal.printable(change.requests)})" if change.requests else ""
    if change.about == "calls":
        through = f" through {named(change.route)}" if change.route else ""
        return f"calls to {listed(names)}{through}{requests}"
    return f"calls that arrive at {listed(names)}{requests}" if change.about == "arrivals" else "the proxy"


def _by(change: ValueChange, places: Places) -> str:
    if change.set_by is not None:
        return place(change.set_by, places)
    if change.was_set_by is not None:
        return f"was set by {named(change.was_set_by.kri)}, {change.was_set_by.path}"
    return ""


def place(of: ValuePlace, places: Places) -> str:
    """Where a value is written: in a file, or in a stored object."""
    document = places.get(of.kri)
    if document is not None:
        return inputs.place(document, of.path)
    return f"{named(of.kri)}, {of.path}, line {of.line}"


def named(name: str) -> str:
    """A short name of what a KRI identifies; other names as they are."""
    core, bracket, rest = name.partition("[")
    try:
        parsed = kri.parse(core)
    except KogumaError:
        return terminal.printable(name)
    short = f"{parsed.name}.{parsed.namespace}" if parsed.namespace else parsed.name
    section = f":{parsed.section}" if parsed.section else ""
    return terminal.printable(f"{short}{section}{bracket}{rest}")


def text(value: Any) -> str:
    """A value, short; `not set` where there is none."""
    if value is None:
        return "not set"
    word = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    shown = terminal.printable(word)
    return shown if len(shown) <= _VALUE_MAX else f"{shown[: _VALUE_MAX - 3]}..."


def counted_resources(changes: Iterable[ResourceChange]) -> str:
    """How many resources of Envoy are added, removed and changed."""
    counts = Counter((each.action, each.type) for each in changes)
    parts = []
    for action in ("added", "changed", "removed"):
        kinds = [f"{n} {_plural(type_, n)}" for (each, type_), n in sorted(counts.items()) if each == action]
        if kinds:
            parts.append(f"{', '.join(kinds)} {action}")
    return "; ".join(parts)


def _plural(type_: str, number: int) -> str:
    plural = _PLURALS.get(type_, f"{type_.replace('_', ' ')}s")
    return plural if number != 1 else plural.removesuffix("s")


def leaf(change: LeafChange) -> str:
    """A field that changes."""
    return f"{terminal.printable(change.path)}: {text(change.before)} → {text(change.after)}"


def object_title(change: ObjectChange) -> str:
    """An object of the change, and what happens to it."""
    name = objects.shown(change.type, terminal.printable(change.name), change.mesh)
    of = f" of zone {terminal.printable(change.zone)}" if change.zone else ""
    by = f" by the control plane{of}" if change.is_generated else ""
    return f"{name} {change.action}{by}"


def effect(change: ObjectChange, *, is_partial: bool) -> str:
    """How many proxies get a value of an object, or lose one; empty where that cannot be told."""
    if change.action == "unchanged":
        return terminal.printable(change.why) or "as it is stored already"
    if change.proxies is None:
        return terminal.printable(change.why)
    scope = " that you may read" if is_partial else ""
    if change.proxies == 0:
        # A warning that says why is shown with the others.
        why = "" if change.why in change.warnings else f": {terminal.printable(change.why)}"
        return f"changes no proxy{scope}{why}"
    return f"changes {change.proxies} {'proxy' if change.proxies == 1 else 'proxies'}{scope}"


def problem(of: PlannedProblem) -> str:
    """A lint problem."""
    at = f"{of.path}: " if of.path else ""
    zone = f"zone {of.zone}: " if of.zone else ""
    return terminal.printable(f"{zone}{', '.join(of.objects)}: {at}{of.message} ({of.code})")
