"""Risks: what in a plan may stop traffic, said in one sentence each."""

from collections.abc import Iterable, Iterator
from typing import Final

from koguma.core.lint.problem import (
    INVALID,
    NEVER_MATCHED,
    NO_EGRESS,
    NO_OBJECT,
    NO_PERMISSION,
    NO_PORT,
    OUTBOUND_TO_NOWHERE,
)
from koguma.core.plan.model import PlannedProblem, ProxyGroup, Risk

_RISKY: Final = {
    INVALID: "unreadable",
    NO_PERMISSION: "no-permission",
    NEVER_MATCHED: "never-matched",
    NO_OBJECT: "refers-to-nothing",
    NO_PORT: "refers-to-nothing",
    OUTBOUND_TO_NOWHERE: "leads-nowhere",
    NO_EGRESS: "leads-nowhere",
}


def of(
    groups: Iterable[ProxyGroup],
    new_problems: Iterable[PlannedProblem],
    failures: Iterable[str],
    *,
    is_partial: bool,
) -> tuple[Risk, ...]:
    """The risks of a plan, each once, sorted."""
    found = [risk for group in groups for risk in _of_group(group, is_partial=is_partial)]
    found += [
        Risk(_RISKY[each.code], f"{each.message} ({each.code})")
        for each in new_problems
        if each.code in _RISKY
    ]
    found += [Risk("cannot-be-built", text) for text in failures]
    return tuple(sorted(set(found)))


def _of_group(group: ProxyGroup, *, is_partial: bool) -> Iterator[Risk]:
    who = _who(group)
    service = "service that you may read" if is_partial else "service"
    for callers in group.callers:
        if callers.n_before and not callers.n_after:
            yield Risk("no-callers", f"no {service} may call inbound {callers.at} of {who} any more")
    no_longer_called = {port.port for port in group.ports if not port.is_added}
    for endpoints in group.endpoints:
        if endpoints.n_after or endpoints.cluster in no_longer_called:
            continue
        if endpoints.n_before:
            message = f"calls of {who} to {endpoints.cluster} have no endpoint any more"
            yield Risk("no-endpoints", message)
        elif group.action == "changed":
            message = f"calls of {who} to {endpoints.cluster} have no endpoint: nobody serves it"
            yield Risk("no-endpoints", message)
    for port in group.ports:
        if not port.is_added:
            yield Risk("not-callable", f"{who} can no longer call {port.port}")


def _who(group: ProxyGroup) -> str:
    first = group.proxies[0].name if group.proxies else "a proxy"
    return first if group.total == 1 else f"{first} and {group.total - 1} more"
