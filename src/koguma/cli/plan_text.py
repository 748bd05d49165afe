"""Plan as text: a plan for people in a terminal."""

from collections.abc import Iterator
from typing import Final

from koguma.cli import plan_words, terminal
from koguma.cli.plan_words import Places
from koguma.core.plan.model import ObjectChange, Plan, ProxyGroup

_COLOURS: Final = {"created": "green", "configured": "yellow", "deleted": "red", "unchanged": "cyan"}
_FIELDS_MAX: Final = 200  # of Envoy's, for each group


def lines(plan: Plan, places: Places) -> Iterator[str]:
    """A plan, line by line."""
    yield terminal.paint(plan_words.summary(plan), "bold")
    for reason in plan_words.unknown_zones(plan):
        yield f"{terminal.paint('unknown:', 'yellow')} {reason}"
    for risk in plan.risks:
        yield f"{terminal.paint('risk:', 'red')} {plan_words.risk(risk)}"
    for group in plan.groups:
        yield ""
        yield from _group(group, places, is_partial=plan.is_partial)
    yield ""
    yield from _objects(plan)
    yield from _problems(plan)
    if plan.changed:
        yield f"configuration of all that change: {plan_words.size(plan.bytes_before, plan.bytes_after)}"


def _group(group: ProxyGroup, places: Places, *, is_partial: bool) -> Iterator[str]:
    yield terminal.paint(plan_words.group_title(group), "bold")
    for sentence in _sentences(group, is_partial=is_partial):
        yield f"  {sentence}"
    where = ""
    for value in plan_words.values(group.values, places):
        if value.where != where:
            where = value.where
            yield f"  {where}"
        by = f"   {value.by}" if value.by else ""
        yield f"    {value.what}: {value.change}{by}"
    if group.resources:
        of = f" of {group.proxies[0].name}" if group.total > 1 else ""
        size = plan_words.size(group.bytes_before, group.bytes_after)
        yield f"  Envoy{of}: {plan_words.counted_resources(group.resources)}; {size}"
    yield from _resources(group)


def _sentences(group: ProxyGroup, *, is_partial: bool) -> Iterator[str]:
    yield from plan_words.ports(group.ports)
    yield from (plan_words.callers(each, is_partial=is_partial) for each in group.callers)
    new = {each.port for each in group.ports}
    yield from (plan_words.endpoints(each) for each in group.endpoints if each.cluster not in new)


def _resources(group: ProxyGroup) -> Iterator[str]:
    """The fields of Envoy's resources, where they were asked for."""
    if not any(each.fields for each in group.resources):
        return
    n_fields = 0
    for each in group.resources:
        yield f"    {each.type} {terminal.printable(each.name)} {each.action}"
        for leaf in each.fields[: max(0, _FIELDS_MAX - n_fields)]:
            yield f"      {plan_words.leaf(leaf)}"
        n_fields += len(each.fields)
    if n_fields > _FIELDS_MAX:
        yield f"    and {n_fields - _FIELDS_MAX} more fields; -o json has all"


def _objects(plan: Plan) -> Iterator[str]:
    for each in plan.objects:
        effect = plan_words.effect(each, is_partial=plan.is_partial)
        yield f"{_title(each)}{f': {effect}' if effect else ''}"
        yield from (
            f"  {terminal.paint('warning:', 'yellow')} {terminal.printable(text)}" for text in each.warnings
        )


def _title(each: ObjectChange) -> str:
    title = plan_words.object_title(each)
    head, action, rest = title.rpartition(each.action)
    return f"{head}{terminal.paint(action, _COLOURS.get(action, 'bold'))}{rest}"


def _problems(plan: Plan) -> Iterator[str]:
    known = {text for each in plan.objects for text in each.warnings}
    for word, problems in (("new problem", plan.new_problems), ("gone", plan.gone_problems)):
        for problem in problems:
            if not any(problem.message in text for text in known):
                yield f"{word}: {plan_words.problem(problem)}"
