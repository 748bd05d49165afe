"""Plan as Markdown: a plan as a comment of a pull request."""

from collections.abc import Iterator

from koguma.cli import plan_words
from koguma.cli.plan_words import Places
from koguma.core.plan.model import Plan, ProxyGroup


def lines(plan: Plan, places: Places) -> Iterator[str]:
    """A plan, line by line."""
    yield f"### Plan: {_escaped(plan_words.summary(plan))}"
    yield ""
    for reason in plan_words.unknown_zones(plan):
        yield f"- :grey_question: **unknown: {_escaped(reason)}**"
    for risk in plan.risks:
        yield f"- :warning: **{_escaped(plan_words.risk(risk))}**"
    if plan.risks or plan.unknown_zones:
        yield ""
    for each in plan.objects:
        effect = plan_words.effect(each, is_partial=plan.is_partial)
        yield f"- {_escaped(plan_words.object_title(each))}{f': {_escaped(effect)}' if effect else ''}"
        yield from (f"  - warning: {_escaped(text)}" for text in each.warnings)
    for group in plan.groups:
        yield from _group(group, places, is_partial=plan.is_partial)
    yield from _problems(plan)
    if plan.changed:
        yield ""
        size = plan_words.size(plan.bytes_before, plan.bytes_after)
        yield f"Configuration of all that change: {size}."


def _group(group: ProxyGroup, places: Places, *, is_partial: bool) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{_escaped(plan_words.group_title(group))}</summary>"
    yield ""
    yield from (f"- {_escaped(sentence)}" for sentence in plan_words.ports(group.ports))
    for callers in group.callers:
        yield f"- {_escaped(plan_words.callers(callers, is_partial=is_partial))}"
    new = {each.port for each in group.ports}
    for each in group.endpoints:
        if each.cluster not in new:
            yield f"- {_escaped(plan_words.endpoints(each))}"
    found = list(plan_words.values(group.values, places))
    if found:
        yield ""
        yield "| where | what | change | by |"
        yield "|---|---|---|---|"
        yield from (f"| {' | '.join(map(_cell, each))} |" for each in found)
    if group.resources:
        yield ""
        yield f"Envoy: {_escaped(plan_words.counted_resources(group.resources))}"
    changed = [each for each in group.resources if each.fields]
    if changed:
        yield ""
        yield "```diff"
        for resource in changed:
            yield f" {resource.type} {resource.name} {resource.action}"
            for leaf in resource.fields:
                if leaf.before is not None:
                    yield f"-  {leaf.path}: {plan_words.text(leaf.before)}"
                if leaf.after is not None:
                    yield f"+  {leaf.path}: {plan_words.text(leaf.after)}"
        yield "```"
    yield ""
    yield "</details>"


def _problems(plan: Plan) -> Iterator[str]:
    for title, found in (("New problems", plan.new_problems), ("Gone problems", plan.gone_problems)):
        if found:
            yield ""
            yield f"**{title}**"
            yield ""
            yield from (f"- {_escaped(plan_words.problem(each))}" for each in found)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text that is no markup: what objects contain must not become a part of the page."""
    for mark in ("\\", "`", "*", "_", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
